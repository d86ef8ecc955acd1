// Python in the browser: Pyodide with the autolayers wheel, answering one message after the other.

let engine = null;

async function start(config) {
  const base = new URL(config.pyodide, self.location.href).href;
  const { loadPyodide } = await import(base + "pyodide.mjs");
  const [python, wheel] = await Promise.all([
    loadPyodide({ indexURL: base }),
    fetch(config.wheel).then((answer) => answer.arrayBuffer()),
  ]);
  python.unpackArchive(wheel, "wheel");
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
    found = { error: String(error.message ?? error).trim().split("\n").pop() };
  }
  self.postMessage({ id: data.id, answer: found });
};
