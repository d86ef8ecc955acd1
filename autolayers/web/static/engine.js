// Who answers: the server on loopback (autolayers web), or Python in a worker (the static page). Both are engine.py.
//   engine.call(method, question) -> answer        engine.add(name, size, bytes) -> answer

export async function start(status) {
  keepToken();
  const config = await (await fetch("config.json")).json();
  if (config.engine === "server") return new Server();
  status("Loading Python…");
  const engine = new Browser(config);
  await engine.ready;
  return engine;
}

// At once: the address may change while the page still loads.
function keepToken() {
  const address = new URL(location.href);
  const given = address.searchParams.get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
  }
}

class Server {
  constructor() {
    this.token = sessionStorage.getItem("token") ?? "";
  }

  async post(path, body) {
    let answer;
    try {
      answer = await fetch(path, { method: "POST", body, headers: { "X-Autolayers-Token": this.token } });
    } catch {
      return { error: "autolayers web does not answer: is it still running?" };
    }
    return answer.json();
  }

  call(method, question) {
    return this.post("call/" + method, JSON.stringify(question));
  }

  add(name, size, bytes) {
    const query = new URLSearchParams({ name, size: size ?? "" });
    return this.post("add?" + query, bytes);
  }
}

class Browser {
  constructor(config) {
    this.waiting = new Map();
    this.next = 0;
    this.worker = new Worker("worker.js", { type: "module" });
    this.worker.onmessage = ({ data }) => {
      this.waiting.get(data.id)?.(data.answer);
      this.waiting.delete(data.id);
    };
    this.ready = this.ask({ config }).then((answer) => {
      if (answer.error) throw new Error(answer.error);
    });
  }

  ask(message, transfer = []) {
    const id = this.next++;
    return new Promise((done) => {
      this.waiting.set(id, done);
      this.worker.postMessage({ id, ...message }, transfer);
    });
  }

  call(method, question) {
    return this.ask({ method, question });
  }

  add(name, size, bytes) {
    return this.ask({ name, size, bytes }, [bytes]);
  }
}
