// @ts-check
// Keeps the static page for use without a network; a new build has another version and replaces it.

const CONFIG = "config.json";
// Other pages may share this origin, and all their caches: ours begin so, with the place of this page.
const OURS = `autolayers ${new URL("./", self.location.href).pathname} `;
const worker = /** @type {any} */ (self);

async function keep() {
  const config = await (await fetch(CONFIG, { cache: "no-store" })).json();
  const cache = await caches.open(OURS + config.version);
  await cache.addAll(["./", CONFIG, ...config.files]);
  for (const name of Object.keys(config.sizes)) {
    if (name !== config.wheel) await fromAny(cache, config.pyodide, name);
  }
  for (const name of await own()) if (name !== OURS + config.version) await caches.delete(name);
}

async function own() {
  return (await caches.keys()).filter((name) => name.startsWith(OURS));
}

// The worker of the page checks what comes from another host, each time that it is read from here.
async function fromAny(cache, sources, name) {
  for (const source of sources.slice(0, -1)) {
    try {
      return await cache.add(source + name);
    } catch { /* the next one has it */ }
  }
  return cache.add(sources.at(-1) + name);
}

worker.addEventListener("install", (event) => event.waitUntil(keep().then(() => worker.skipWaiting())));
worker.addEventListener("activate", (event) => event.waitUntil(worker.clients.claim()));
worker.addEventListener("fetch", (event) => {
  const address = new URL(event.request.url);
  const ours = address.origin === worker.location.origin || address.pathname.includes("/pyodide");
  if (!ours || event.request.method !== "GET" || event.request.headers.has("Range")) return;
  const kept = () => find(event.request);
  if (address.pathname.endsWith("/" + CONFIG)) {   // a newer build is seen here
    event.respondWith(fetch(event.request).catch(kept));
  } else {
    event.respondWith(kept().then((found) => found ?? visited(event.request)));
  }
});

async function find(request) {
  for (const name of await own()) {
    const found = await (await caches.open(name)).match(request, { ignoreSearch: true });
    if (found) return found;
  }
}

// Pages of single answers and lists of models are kept once somebody has read them.
async function visited(request) {
  const answer = await fetch(request);
  const [version] = await own();
  if (answer.ok && version && /\/(on\/|known-|answer-)/.test(new URL(request.url).pathname)) {
    await (await caches.open(version)).put(request, answer.clone());
  }
  return answer;
}
