// Keeps the static page for use without a network; a new build has another version and replaces it.

const CONFIG = "config.json";
const LOADERS = ["pyodide.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip"];

async function keep() {
  const config = await (await fetch(CONFIG, { cache: "no-store" })).json();
  const cache = await caches.open(config.version);
  await cache.addAll(["./", CONFIG, ...config.files, ...LOADERS.map((name) => config.pyodide + name)]);
  await Promise.any(["pyodide.asm.mjs", "pyodide.asm.js"].map((name) => cache.add(config.pyodide + name)));
  for (const name of await caches.keys()) if (name !== config.version) await caches.delete(name);
}

self.addEventListener("install", (event) => event.waitUntil(keep().then(() => self.skipWaiting())));
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || event.request.headers.has("Range")) return;
  const kept = () => caches.match(event.request, { ignoreSearch: true });
  if (new URL(event.request.url).pathname.endsWith("/" + CONFIG)) {   // a newer build is seen here
    event.respondWith(fetch(event.request).catch(kept));
  } else {
    event.respondWith(kept().then((found) => found ?? fetch(event.request)));
  }
});
