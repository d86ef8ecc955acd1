// @ts-check
// Who answers: the server on loopback (autolayers web), or Python in a worker (the static page). Both are engine.py.
//   engine.call(method, question) -> answer        engine.add(name, size, bytes) -> answer

const PATIENCE = 120_000;     // milliseconds for one question, then Python is started anew
const LOADING = 300_000;      // and for all of Python to be there

/** @typedef {{call: (method: string, question: object) => Promise<any>,
 *             add: (name: string, size: number | null, bytes: ArrayBuffer) => Promise<any>}} Engine */

/** @param {any} config @param {(text: string, part?: number) => void} progress @returns {Promise<Engine>} */
export async function start(config, progress) {
  if (config.engine === "server") return new Server();
  const engine = new Pair(config, progress);
  await engine.ready;
  return engine;
}

/** An engine that is used before it is there: its questions wait. @param {Promise<Engine>} coming @returns {any} */
export function waiting(coming) {
  const failed = (error) => ({ error: `autolayers could not start: ${error.message}` });
  return { call: (method, question) => coming.then((engine) => engine.call(method, question), failed),
           add: (name, size, bytes) => coming.then((engine) => engine.add(name, size, bytes), failed) };
}

export async function readConfig() {
  keepToken();
  const answer = await fetch("config.json", { cache: "no-store" });
  if (!answer.ok) throw new Error(`config.json: the server answers ${answer.status}`);
  return answer.json();
}

let offered = "";            // by the address, until the server has accepted or refused it

// At once: the address may change while the page still loads. All tabs of this origin have the token that was accepted:
// any site can open this page with another one.
function keepToken() {
  const address = new URL(location.href);
  const given = address.searchParams.get("token");
  if (given) {
    offered = given;
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
  }
}

const REFUSED = 403;

export class Server {
  parallel = true;

  async post(path, body) {
    const kept = localStorage.getItem("token") ?? "";
    const tried = offered || kept;
    try {
      const answer = await fetch(path, { method: "POST", body, headers: { "X-Autolayers-Token": tried } });
      if (tried === offered) offered = "";
      if (answer.status !== REFUSED) {
        if (tried !== kept) localStorage.setItem("token", tried);
      } else if (tried !== kept && kept) return this.post(path, body);
      return await answer.json();
    } catch {
      return { error: "autolayers web does not answer: is it still running?" };
    }
  }

  call(method, question) {
    return this.post("call/" + method, JSON.stringify(question));
  }

  add(name, size, bytes) {
    return this.post("add?" + new URLSearchParams({ name, size: String(size ?? "") }), bytes);
  }
}

const ASIDE = new Set(["ahead", "more", "rows", "row", "take", "curve"]);      // what a change need not wait for
const MEMORY = 4;                                                     // GiB, for a second Python

// One Python for plans; a second one, started when reasons or tables are first asked for, computes them. While it
// starts they wait for it, so that a change never waits for them.
class Pair {
  parallel = true;

  constructor(config, progress) {
    this.config = config;
    this.main = new Browser(config, progress);
    this.ready = this.main.ready;
    /** @type {Browser | null} */ this.aside = null;
    /** @type {Promise<Browser> | null} */ this.coming = null;
    this.planned = "";            // the question whose plan the second one has
    this.added = [];              // headers and listings that the second one must know, too
  }

  // The first one where memory is small, and where the second does not start.
  second() {
    const memory = /** @type {any} */ (navigator).deviceMemory ?? MEMORY;
    if (memory < MEMORY) return this.main;
    this.coming ??= this.another().catch(() => this.main);
    return this.coming;
  }

  async another() {
    await this.main.ready;
    const other = new Browser(this.config, () => null);
    await other.ready;
    for (let i = 0; i < this.added.length; i++) await this.added[i](other);
    this.aside = other;
    return other;
  }

  async tell(act) {
    this.added.push(act);
    if (this.aside) await act(this.aside);
  }

  async call(method, question) {
    if (!ASIDE.has(method)) {
      const answer = await this.main.call(method, question);
      if (method === "locate") await this.tell((other) => other.call(method, question));
      return answer;
    }
    const other = await this.second();
    const asked = JSON.stringify(question);
    if (method === "more" && other !== this.main && this.planned !== asked) {
      this.planned = asked;
      await other.call("plan", question);
    }
    return other.call(method, question);
  }

  async add(name, size, bytes) {
    const copy = bytes.slice(0);
    const answer = await this.main.add(name, size, bytes);
    if (!answer.need) await this.tell((other) => other.add(name, size, copy.slice(0)));
    return answer;
  }
}

class Browser {
  constructor(config, progress) {
    this.config = config;
    this.progress = progress;
    this.ready = this.begin();
  }

  // A worker made from a blob has this page's Content-Security-Policy; one from an address has its response's.
  async begin() {
    this.waiting = new Map();
    this.next = 0;
    const code = await (await fetch("worker.js")).blob();
    const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    const worker = this.worker = new Worker(address, { type: "module" });
    worker.onmessage = ({ data }) => {
      if (data.progress !== undefined) {
        this.progress(data.text, data.progress);
        return;
      }
      this.waiting.get(data.id)?.(data.answer);
      this.waiting.delete(data.id);
    };
    worker.onerror = (event) => this.fail(`Python in the browser failed: ${event.message || "the worker did not load"}`);
    worker.onmessageerror = () => this.fail("Python in the browser gave no readable answer");
    const answer = await this.ask({ config: { ...this.config, base: location.href.replace(/[?#].*/, "") } }, [], LOADING);
    URL.revokeObjectURL(address);
    if (answer.error) throw new Error(answer.error);
  }

  fail(error) {
    for (const done of this.waiting.values()) done({ error });
    this.waiting.clear();
  }

  ask(message, transfer = [], patience = PATIENCE) {
    const id = this.next++;
    return new Promise((done) => {
      const timer = setTimeout(() => this.late(message), patience);
      this.waiting.set(id, (answer) => {
        clearTimeout(timer);
        done(answer);
      });
      this.worker.postMessage({ id, ...message }, transfer);
    });
  }

  // A question without end holds the worker: it is ended, and the next question has a new one.
  late(message) {
    this.worker.terminate();
    this.fail(message.config ? "Python did not start within five minutes: is the network slow, or the download blocked?"
      : `no answer within ${PATIENCE / 1000} s: the question was given up`);
    if (!message.config) this.ready = this.begin();
  }

  async call(method, question) {
    await this.ready;
    return this.ask({ method, question });
  }

  async add(name, size, bytes) {
    await this.ready;
    return this.ask({ name, size, bytes }, [bytes]);
  }
}
