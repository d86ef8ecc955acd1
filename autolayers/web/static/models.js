// @ts-check
// Headers of models that the browser can read: dropped files and addresses. Only their first bytes are read.

const SILENCE = 30_000;      // milliseconds that a server may take for one answer
const MAX_LISTING = 8 << 20;
const HUB = "https://huggingface.co/api/models?filter=gguf&sort=downloads&limit=20&search=";

/** Adds files until the engine knows the model: {model, projector, others} or {missing, of} or {error}. */
export async function addFiles(engine, files, first) {
  if (!files.length) return { error: "no .gguf file among them" };
  const models = [];
  let projector = "", missing = null;
  for (const file of files) {
    const read = async (n) => ({ bytes: await file.slice(0, n).arrayBuffer(), size: file.size });
    const answer = await add(engine, file.name, read, first);
    if (answer.error) return answer;
    if (answer.model) models.push(answer.model);
    if (answer.projector) projector = answer.projector;
    missing = answer.missing ? answer : answer.model ? null : missing;
  }
  if (missing) return missing;
  models.sort((a, b) => b.size - a.size);      // a draft is the smaller one
  return { model: models[0], draft: models[1]?.name ?? "", projector };
}

/** Opens an address or an hf: name: {model, models, notes} or {error}. */
export async function addAddress(engine, name, first) {
  try {
    let found = await engine.call("locate", { name });
    if (found.listing) {
      const listing = await json(found.listing);
      if (!Array.isArray(listing)) return { error: `${name}: the Hub lists no files` };
      const files = listing.filter((entry) => entry?.type === "file")
        .map((entry) => [String(entry.path), Number(entry.lfs?.size ?? entry.size) || 0]);
      found = await engine.call("locate", { name, files });
    }
    if (found.error) return found;
    let answer = {};
    for (const url of found.urls) {
      const part = found.urls.length > 1 ? decodeURIComponent(new URL(url).pathname.split("/").pop() ?? "") : name;
      answer = await add(engine, part, (n) => fetchStart(url, n, true), first);
      if (answer.error) return answer;
    }
    return { ...answer, models: found.models ?? [], notes: found.notes ?? [], file: found.file };
  } catch (error) {
    return { error: `${name}: ${why(error)}` };
  }
}

/** Repositories of the Hub with these words: {models: [{name, note}]} or {error}. @param {string} words */
export async function searchHub(words) {
  try {
    const found = await json(HUB + encodeURIComponent(words));
    return { models: found.filter((entry) => typeof entry?.id === "string").map((entry) =>
      ({ name: entry.id, note: entry.downloads ? `${entry.downloads.toLocaleString("en")} downloads` : "" })) };
  } catch (error) {
    return { error: `huggingface.co: ${why(error)}` };
  }
}

async function json(url) {
  return JSON.parse(new TextDecoder().decode((await fetchStart(url, MAX_LISTING, false)).bytes));
}

function why(error) {
  if (error.name === "TimeoutError") return "the server is silent";
  return error instanceof TypeError ? "it cannot be reached from this page, or does not allow it" : error.message;
}

async function add(engine, name, read, first) {
  for (let wanted = first, before = -1; ;) {
    const { bytes, size } = await read(wanted);
    if (bytes.byteLength <= before) return { error: `${name}: the file ends inside its header` };
    before = bytes.byteLength;
    const answer = await engine.add(name, size, bytes);
    if (!answer.need) return answer;
    wanted = answer.need;
  }
}

// The first n bytes behind an address and the whole length (null: unknown). A server without ranges is cut off.
async function fetchStart(url, n, ranged) {
  const headers = ranged ? { Range: `bytes=0-${n - 1}` } : {};
  const answer = await fetch(url, { headers, credentials: "omit", referrerPolicy: "no-referrer",
                                    signal: AbortSignal.timeout(SILENCE) });
  if (answer.status === 401 || answer.status === 404) throw new Error("there is no such public file or repository");
  if (!answer.ok || !answer.body) throw new Error(`the server answers ${answer.status}`);
  const whole = answer.headers.get("Content-Range")?.match(/\/(\d+)$/)?.[1]
    ?? (answer.status === 200 ? answer.headers.get("Content-Length") : null);
  const parts = [];
  let length = 0;
  const reader = answer.body.getReader();
  while (length < n) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    length += value.length;
  }
  if (length >= n) reader.cancel();
  const bytes = new Uint8Array(await new Blob(parts).slice(0, n).arrayBuffer());
  return { bytes: bytes.buffer, size: whole === null || whole === undefined ? null : Number(whole) };
}
