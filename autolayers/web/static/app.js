// The page: the form is the question, the address holds it, the engine answers, the answer is drawn.

import { bars, byteTable, curve, element, matrix, size, strip } from "./charts.js";
import { start } from "./engine.js";
import { addAddress, addFiles } from "./models.js";
import { FIELDS, fromHash, toHash } from "./state.js";

const $ = (id) => document.getElementById(id);
const SLIDER = ["", "4096", "8192", "16384", "32768", "65536", "131072", "262144", "1048576"];
const FIELD_OF = { "-c": "ctx", "-np": "np", "-ctk": "ctk", "-ctv": "ctv", "-ub": "ub", "-fa": "fa" };
const PRIVATE = new Set(["uuid", "pci_id", "notes", "sure"]);      // of a machine file, not for the address
const PAUSE = 40;                       // milliseconds without typing before a question is asked
let engine, offer, latest;              // latest: the answer that is shown
let known = new Map();                  // models that were opened, by name
let asking = false, again = false;

// --- the form and the address

function read() {
  const state = Object.fromEntries(FIELDS.map((name) => [name, $(name)?.value.trim() ?? ""]));
  state.gpu = [...$("cards").querySelectorAll("input")].map((input) => input.value.trim()).filter(Boolean).join(",");
  return state;
}

function fill(state) {
  for (const name of FIELDS) if ($(name)) $(name).value = state[name];
  $("ctx-slider").value = Math.max(0, SLIDER.indexOf(state.ctx));
  $("cards").replaceChildren();
  for (const card of state.gpu ? state.gpu.split(",") : [""]) addCard(card);
  showMachine(state.machine);
}

// The devices of a machine file instead of cards.
function showMachine(text) {
  let devices = [];
  try {
    devices = JSON.parse(text || "{}").devices ?? [];
  } catch { /* the engine says what is wrong with it */ }
  $("machine-facts").hidden = !text;
  $("gpus").hidden = Boolean(text);
  $("machine-devices").textContent = "Machine file: "
    + (devices.map((d) => d?.card ?? d?.description ?? d?.name ?? "?").join(", ") || "no GPU");
}

function addCard(text = "") {
  const input = element("input", { list: "card-names", "aria-label": `GPU ${$("cards").children.length + 1}`,
                                   placeholder: offer.here ? "this machine" : "rtx-3090 or 24GiB" });
  input.value = text;
  const remove = element("button", { type: "button", "aria-label": "Remove this GPU" }, "×");
  const row = element("div", { class: "card" }, input, remove);
  remove.onclick = () => {
    row.remove();
    if (!$("cards").children.length) addCard();
    changed(true);
  };
  $("cards").append(row);
  return input;
}

// Asks anew; `step`: the address follows, and the back button returns to the one before.
function changed(step) {
  const hash = toHash(read());
  if (step && hash !== location.hash) history.pushState(null, "", hash);
  clearTimeout(changed.timer);
  document.body.dataset.asking = "true";
  changed.timer = setTimeout(ask, PAUSE);
}

// --- asking

// One question at a time; while it is answered only the newest further one is kept.
async function ask() {
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  document.body.dataset.asking = "true";
  const state = read();
  try {
    const opened = await open(state.model);
    const quick = opened.error ? opened : await engine.call("plan", { ...state, quick: true });
    if (!again) show(quick, state);
    if (!again && !quick.error) {          // the reasons cost as much as the plan
      const answer = await engine.call("plan", state);
      if (!again) show(answer, state);
    }
  } finally {
    asking = false;
    document.body.dataset.asking = String(again);
    if (again) {
      again = false;
      ask();
    }
  }
}

// Makes the engine know a model that is named by an address; others it knows itself or says why not.
async function open(name) {
  if (!name || known.has(name) || offer.models.includes(name)) return known.get(name) ?? {};
  if (!offer.opens && !/^(https?:\/\/|hf:)/.test(name)) {
    const near = offer.models.find((model) => model === "bundled:" + name);
    if (!near) return { error: `${name}: drop the file here, or give an address` };
    $("model").value = near;
    return {};
  }
  status(`Reading ${name}…`);
  const answer = offer.opens ? await engine.call("open", { name }) : await addAddress(engine, name, offer.first_slice);
  if (!answer.error) remember(name, answer);
  return answer;
}

function remember(name, answer) {
  known.set(name, answer);
  $("models").append(element("option", { value: name }));
  $("matrix-models").append(new Option(name, name));
}

function status(text) {
  $("status").textContent = text;
}

// --- showing

function show(answer, state) {
  status("");
  $("error").hidden = !answer.error;
  $("error").textContent = answer.error ?? "";
  $("result").classList.toggle("old", Boolean(answer.error));
  const opened = known.get(state.model);
  $("model-facts").textContent = opened?.model ? facts(opened) : "";
  $("others").hidden = !opened?.models?.length;
  if (opened?.models?.length) {
    $("other").replaceChildren(new Option("choose…", ""), ...opened.models.map((name) => new Option(name, name)));
  }
  if (answer.error) return;
  latest = answer;
  const { plan } = answer;
  $("result").hidden = false;
  status(answer.verdict);
  $("verdict").textContent = answer.verdict[0].toUpperCase() + answer.verdict.slice(1);
  $("verdict").className = plan.fits ? "yes" : "no";
  const slots = plan.launch.n_seq_max > 1 ? `, ${plan.launch.n_seq_max} slots` : "";
  $("summary").textContent = `${plan.model.name || plan.model.path} (${plan.model.architecture}, ${size(plan.model.size)}): `
    + `${plan.placement}, context ${plan.launch.n_ctx}${slots}. ${plan.exact ? "Exact to the byte." : "Upper bounds, not exact."}`;
  showCommand();
  $("bars").replaceChildren(bars(plan));
  $("bytes").replaceChildren(byteTable(plan));
  $("speed").textContent = speedWords(plan.speed);
  $("strip").replaceChildren(...strip(answer.layers));
  $("notes").replaceChildren(...notes("Warnings", plan.warnings, "warning"), ...notes("Why", plan.reasons, "why"),
                             ...notes("What would make it fit", answer.remedies, "why"), ...instead(answer.instead, plan.fit));
}

// What else could be asked for, what it buys, and a button that asks for it; then llama-server's own choice.
function instead(others, fit) {
  if (!others.length && !fit) return [];
  const list = element("ul", { class: "why" }, ...others.map(({ flags, buys }) => {
    const button = element("button", { type: "button" }, flags.join(" "));
    button.onclick = () => use(flags);
    return element("li", {}, button, ` ${buys}`);
  }));
  if (fit) list.append(element("li", {}, `--fit, llama-server's own choice: ${fit.placement}, context ${fit.n_ctx}, `
    + `${rate(fit.speed.generation_tokens_per_second)} tokens/s${fit.fits ? "" : "; that breaks these margins"}`));
  return [element("h3", {}, "Instead"), list];
}

function use(flags) {
  const state = read(), others = [];
  for (let i = 0; i < flags.length; i++) {
    if (FIELD_OF[flags[i]]) state[FIELD_OF[flags[i]]] = flags[++i] ?? "";
    else others.push(flags[i]);
  }
  state.flags = [state.flags, ...others].filter(Boolean).join(" ");
  fill(state);
  changed(true);
}

function facts({ model, notes: said = [] }) {
  return [`${model.title}: ${model.architecture}, ${size(model.size)}, ${model.n_layer} layers, trained context ${model.n_ctx_train}`,
          ...model.warnings, ...said].join(". ");
}

function rate(value) {
  return value.toFixed(value < 10 ? 1 : 0);
}

function speedWords(speed) {
  if (!speed) return "not predicted";
  return `Predicted, not measured, within a factor of ${speed.uncertainty_factor}: `
    + `${rate(speed.generation_tokens_per_second)} tokens/s, ${rate(speed.generation_tokens_per_second_full_context)} with a `
    + `full context; prompt ${rate(speed.prompt_tokens_per_second)} tokens/s.`;
}

function notes(title, lines, kind) {
  if (!lines.length) return [];
  return [element("h3", {}, title), element("ul", { class: kind }, ...lines.map((line) => element("li", {}, line)))];
}

function showCommand() {
  if (!latest) return;
  const words = latest.command[$("shell").value].split(" ");
  $("command").replaceChildren(...words.flatMap((word, i) => [i ? " " : "", element("span", { class: "word" }, word)]));
}

async function drawCurve() {
  $("curve").textContent = "Computing…";
  const answer = await engine.call("curve", { ...read(), types: ["f16", "q8_0", "q4_0"] });
  $("curve").replaceChildren(answer.error ? element("p", {}, answer.error) : curve(answer.points, answer.n_layer));
}

async function drawMatrix() {
  const chosen = [...$("matrix-models").selectedOptions].map((option) => option.value);
  const models = chosen.length ? chosen : [read().model];
  $("matrix").replaceChildren();
  const all = { gpus: offer.matrix_gpus, rows: [] };
  for (const model of models) {          // row by row, so that other questions are answered in between
    const answer = await engine.call("matrix", { ...read(), models: [model], gpus: offer.matrix_gpus });
    if (answer.error) {
      $("matrix").replaceChildren(element("p", {}, answer.error));
      return;
    }
    all.rows.push(...answer.rows);
    $("matrix").replaceChildren(matrix(all));
  }
}

function save(name, text) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text])) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// --- files

async function dropped(files) {
  status("Reading the header…");
  const answer = await addFiles(engine, [...files].filter((file) => /\.gguf$/i.test(file.name)), offer.first_slice);
  if (answer.model) {
    remember(answer.model.name, answer);
    $("model").value = answer.model.name;
    changed(true);
  } else {
    show({ error: answer.error ?? `parts ${answer.missing.join(", ")} of ${answer.of} are missing: drop them too` }, read());
  }
}

async function openMachine(file) {
  try {
    const known = JSON.parse(await file.slice(0, 1 << 20).text(), (key, value) =>
      PRIVATE.has(key) || value === null || value === "" ? undefined : value);
    fill({ ...read(), machine: JSON.stringify(known), gpu: "", ram: "" });
    changed(true);
  } catch {
    show({ error: `${file.name}: not a machine file, as autolayers devices --json writes it` }, read());
  }
}

async function saveMachine() {
  const answer = await engine.call("machine", read());
  if (answer.error) show(answer, read());
  else save("machine.json", answer.text);
}

function forgetMachine() {
  fill({ ...read(), machine: "" });
  changed(true);
}

// --- start

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").setAttribute("aria-pressed", String(dark));
}

function wire() {
  $("form").addEventListener("submit", (event) => event.preventDefault());
  $("form").addEventListener("input", (event) => {
    if (event.target.id === "ctx-slider") $("ctx").value = SLIDER[event.target.value];
    else if (event.target.id === "ctx") $("ctx-slider").value = Math.max(0, SLIDER.indexOf($("ctx").value));
    if (!["file", "machine-file", "other", "model"].includes(event.target.id)) changed(false);
  });
  $("form").addEventListener("change", (event) => {
    if (!["file", "machine-file", "other"].includes(event.target.id)) changed(true);
  });
  $("file").onchange = () => dropped($("file").files);
  $("drop").ondragover = (event) => event.preventDefault();
  $("drop").ondrop = (event) => {
    event.preventDefault();
    dropped(event.dataTransfer.files);
  };
  $("other").onchange = () => {
    if (!$("other").value) return;
    $("model").value = $("other").value;
    changed(true);
  };
  $("add-card").onclick = () => addCard().focus();
  $("machine-file").onchange = () => openMachine($("machine-file").files[0]);
  $("save-machine").onclick = saveMachine;
  $("forget-machine").onclick = forgetMachine;
  $("shell").onchange = showCommand;
  $("copy").onclick = () => navigator.clipboard.writeText($("command").textContent).then(() => status("Copied"));
  $("share").onclick = () => navigator.clipboard.writeText(location.href).then(() => status("Link copied"));
  $("download").onclick = async () => {
    const answer = await engine.call("file", { ...read(), format: $("format").value });
    if (answer.error) show(answer, read());
    else save(`autolayers.${$("format").value}.txt`, answer.text);
  };
  $("draw-curve").onclick = drawCurve;
  $("draw-matrix").onclick = drawMatrix;
  $("theme").onclick = () => theme(document.documentElement.dataset.theme !== "dark");
  addEventListener("popstate", () => {
    fill(fromHash(location.hash));
    ask();
  });
}

async function main() {
  theme(matchMedia("(prefers-color-scheme: dark)").matches);
  try {
    engine = await start(status);
    offer = await engine.call("start", {});
    if (offer.error) throw new Error(offer.error);
  } catch (error) {
    status("");
    $("error").hidden = false;
    $("error").textContent = `autolayers could not start: ${error.message}`;
    return;
  }
  $("models").append(...offer.models.map((name) => element("option", { value: name })));
  $("matrix-models").append(...offer.models.map((name) => new Option(name.replace(/^bundled:/, ""), name)));
  $("card-names").append(...offer.cards.map((card) => element("option", { value: card.name }, card.description)));
  for (const id of ["ctk", "ctv"]) {
    $(id).append(new Option("f16", ""), ...offer.cache_types.filter((type) => type !== "f16").map((type) => new Option(type)));
  }
  $("format").append(...offer.formats.map((name) => new Option(name)));
  $("workloads").append(...offer.workloads.map((name) => element("option", { value: name })));
  $("version").textContent += ` autolayers ${offer.version}.`;
  wire();
  const state = fromHash(location.hash);
  if (!state.model) state.model = offer.models[0] ?? "";
  if (!state.gpu && !state.machine && !offer.here) state.gpu = "24GiB";
  fill(state);
  history.replaceState(null, "", toHash(read()));
  await ask();
  if ("serviceWorker" in navigator && !offer.here) {
    const { version } = await (await fetch("config.json")).json();
    await navigator.serviceWorker.register(`sw.js?${version}`);
  }
}

main();
