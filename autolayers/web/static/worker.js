// @ts-check
// Python in the browser: Pyodide with the autolayers wheel, answering one message after the other.

const SILENCE = 30_000;      // milliseconds without a byte before the next source is tried

let engine = null;

// All files first, with progress; what comes from another host is checked by its SHA-256. Then Pyodide finds them here.
async function download(config) {
  const files = new Map();
  let there = 0;
  const total = Object.values(config.sizes).reduce((sum, size) => sum + size, 0);
  const show = (more) => {
    there += more;
    self.postMessage({ progress: total ? Math.min(1, there / total) : 0, text: `Loading Python: ${Math.round(there / 1e5) / 10} of ${Math.round(total / 1e5) / 10} MB` });
  };
  await Promise.all(Object.keys(config.sizes).map(async (name) => {
    const sources = name === config.wheel ? [config.base] : config.pyodide.map((source) => new URL(source, config.base).href);
    files.set(name, await fromAny(sources, name, config.sha256?.[name], show));
  }));
  return files;
}

async function fromAny(sources, name, sum, show) {
  let problem = null;
  for (const source of sources) {
    let got = 0;
    try {
      const bytes = await read(source + name, (more) => {
        got += more;
        show(more);
      });
      if (sum && await digest(bytes) !== sum) throw new Error("it is not the file that was meant");
      return bytes;
    } catch (error) {
      show(-got);
      problem = error;
    }
  }
  const hosts = sources.map((source) => new URL(source).host).join(" or ");
  throw new Error(`${name} does not load from ${hosts}: ${problem?.message ?? problem}`);
}

async function read(address, show) {
  const stop = new AbortController();
  let timer = setTimeout(() => stop.abort(), SILENCE);
  try {
    const answer = await fetch(address, { signal: stop.signal, credentials: "omit" });
    if (!answer.ok || !answer.body) throw new Error(`the server answers ${answer.status}`);
    const parts = [], reader = answer.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENCE);
      parts.push(value);
      show(value.length);
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  } catch (error) {
    throw stop.signal.aborted ? new Error("the server is silent") : error;
  } finally {
    clearTimeout(timer);
  }
}

async function digest(bytes) {
  if (!crypto.subtle) throw new Error("this page needs https:// or localhost to check what it loads");
  return Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)), (n) => n.toString(16).padStart(2, "0")).join("");
}

const TYPES = { js: "text/javascript", mjs: "text/javascript", wasm: "application/wasm", json: "application/json", zip: "application/zip" };

async function start(config) {
  const files = await download(config);
  const asBlob = (name) => new Blob([files.get(name)], { type: TYPES[name.split(".").pop()] });
  const network = self.fetch.bind(self);
  self.fetch = (request, options) => {
    const name = String(request instanceof Request ? request.url : request).split("/").pop();
    return files.has(name) ? Promise.resolve(new Response(asBlob(name))) : network(request, options);
  };
  self.postMessage({ progress: 1, text: "Starting Python…" });
  await import(URL.createObjectURL(asBlob("pyodide.asm.js")));
  const { loadPyodide } = await import(URL.createObjectURL(asBlob("pyodide.mjs")));
  const python = await loadPyodide({ indexURL: config.base + "pyodide/" });
  python.unpackArchive(files.get(config.wheel).buffer, "wheel");
  self.fetch = network;
  engine = python.runPython(`
import json
from autolayers.web.engine import Engine

_engine = Engine()

def call(method, question):
    return json.dumps(_engine.call(method, json.loads(question)))

def add(name, size, data):
    return json.dumps(_engine.add(name, size, data.to_bytes()))

{"call": call, "add": add}
`);
  return {};
}

async function answer(message) {
  if (message.config) return start(message.config);
  if (message.method) return JSON.parse(engine.get("call")(message.method, JSON.stringify(message.question)));
  return JSON.parse(engine.get("add")(message.name, message.size ?? undefined, new Uint8Array(message.bytes)));
}

self.onmessage = async ({ data }) => {
  let found;
  try {
    found = await answer(data);
  } catch (error) {
    found = { error: String(error?.message ?? error).trim().split("\n").pop() };
  }
  self.postMessage({ id: data.id, answer: found });
};
