// Headers of models that the browser can read: dropped files and addresses. Only their first bytes are read.

const SILENCE = 30_000;      // milliseconds that a server may take for one answer
const MAX_LISTING = 8 << 20;

// Adds files until the engine knows the model; the last answer: {model}, {missing, of} or {error}.
export async function addFiles(engine, files, first) {
  let answer = { error: "no .gguf file among them" };
  for (const file of files) {
    const read = async (n) => ({ bytes: await file.slice(0, n).arrayBuffer(), size: file.size });
    answer = await add(engine, file.name, read, first);
    if (answer.error) return answer;
  }
  return answer;
}

// Opens an address or an hf: name: {model, models, notes} or {error}.
export async function addAddress(engine, name, first) {
  try {
    let found = await engine.call("locate", { name });
    if (found.listing) {
      const listing = JSON.parse(new TextDecoder().decode((await fetchStart(found.listing, MAX_LISTING, false)).bytes));
      if (!Array.isArray(listing)) return { error: `${name}: the Hub lists no files` };
      const files = listing.filter((entry) => entry?.type === "file").map((entry) => String(entry.path));
      found = await engine.call("locate", { name, files });
    }
    if (found.error) return found;
    let answer = {};
    for (const url of found.urls) {
      const part = found.urls.length > 1 ? decodeURIComponent(new URL(url).pathname.split("/").pop()) : name;
      answer = await add(engine, part, (n) => fetchStart(url, n, true), first);
      if (answer.error) return answer;
    }
    return { ...answer, models: found.models ?? [], notes: found.notes ?? [] };
  } catch (error) {
    return { error: `${name}: ${error.name === "TimeoutError" ? "the server is silent" : error.message}` };
  }
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
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
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
