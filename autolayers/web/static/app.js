// @ts-check
// The page: the form is the question, the address holds it, the engine answers, the answer is drawn.
// Every question has a number. What belongs to an older one is neither asked any more nor shown.

import { bars, byteTable, comparison, curve, element, modelTable, strip } from "./charts.js";
import { combobox } from "./combobox.js";
import { readConfig, start, waiting } from "./engine.js";
import { $, Form, matching, thisComputer } from "./form.js";
import { filtered, knownTable, listOf } from "./known.js";
import { addAddress, addFiles, searchHub } from "./models.js";
import { fromHash, pinnedOf, toHash } from "./state.js";
import { quoted, rate, sentence, size, thousands } from "./words.js";

const FIELD_OF = { "-c": "ctx", "--ctx": "ctx", "-np": "np", "-ctk": "ctk", "-ctv": "ctv", "-ub": "ub", "-fa": "fa" };
const PRIVATE = new Set(["uuid", "pci_id", "notes", "sure"]);      // of a machine file, not for the address
const PAUSE = { slide: 60, type: 600 };      // milliseconds without a change before a question is asked
const KEPT = 50;                             // answers
const QUIET = 500;                           // and before its reasons are
/** @type {any} */ let engine;
/** @type {any} */ let offer;
/** @type {Form} */ let form;
/** @type {any} */ let latest = null;         // the answer that is shown
/** @type {any} */ let pinned = null;         // {state, answer} that is compared with it
const known = new Map();                     // models that were opened, by name
const answers = new Map();                   // with all their reasons, by the question
const inHub = new Map();                     // what a search found, by the words
let number = 0;                              // of the newest question
let turnOf = -1;                             // the question whose calls stand in the row
/** @type {any} */ let config = {};
let ready = false;                           // Python, or the server, is there
/** @type {Promise<unknown>} */ let turn = Promise.resolve();

// --- asking

// The engine's answer, or null if a newer question came before it was asked or answered. The calls of one question
// stand in a row; those of a newer one do not wait for them.
function ask(mine, method, question) {
  if (turnOf !== mine) turn = Promise.resolve();
  turnOf = mine;
  const answer = turn.then(() => (mine === number ? engine.call(method, question) : null));
  turn = answer.catch(() => null);
  return answer.then((found) => (mine === number ? found : null));
}

// Asks anew; `step`: the address follows, and the back button returns to the one before.
function changed(step, pause = 0) {
  const state = form.read();
  if (offer.here) $("ram").placeholder = state.gpu ? "how much?" : "this machine's";
  const hash = toHash(state, pinned?.state);
  if (step && hash !== location.hash) history.pushState(null, "", hash);
  clearTimeout(changed.timer);
  number++;
  busy("plan");
  changed.timer = setTimeout(() => plan(form.read()), pause);
}
/** @type {any} */ changed.timer = 0;

function busy(what) {
  document.body.dataset.asking = what ? String(what) : "false";
}

// `quiet`: the answer is shown already, and its reasons follow.
async function plan(state, quiet = false) {
  const mine = ++number;
  busy(quiet ? "reasons" : "plan");
  try {
    const opened = await open(state, mine);
    if (mine !== number) return;
    if (opened.error) return fail(opened);
    const question = { ...state, model: opened.name };
    const before = answers.get(JSON.stringify(question));
    const answer = before ?? await builtAnswer(question) ?? await ask(mine, "plan", question);
    if (!answer) return;
    // the engine was started anew, or has read too many since
    if (answer.kind === "NotOpened" && known.delete(state.model)) return await plan(state);
    if (answer.error && quiet) return;      // what the build answered stays
    if (answer.error) return fail(answer);
    if (!quiet) show(answer, question);
    if (isListed(question)) once("known", mine, question, knownModels);
    await rest(mine, question, Boolean(before));
  } finally {
    if (mine === number) busy("");
  }
}

// What was computed when the page was built, while Python is not there yet.
async function builtAnswer(question) {
  const asked = Object.entries(config.answers ?? {}).find(([key]) => toHash(JSON.parse(key)) === toHash(question));
  if (ready || !asked) return null;
  const found = await fetch(asked[1]).catch(() => null);
  return found?.ok ? found.json() : null;
}

// What is not needed at once, in pieces, so that a change waits for at most one of them.
async function rest(mine, question, whole) {
  busy("reasons");
  await new Promise((done) => setTimeout(done, QUIET));
  if (pinned && !pinned.answer) {
    const answer = await ask(mine, "plan", pinned.state);
    if (!answer) return;
    pinned = answer.error ? null : { ...pinned, answer };
    showComparison();
  }
  while (!whole) {
    const more = await ask(mine, "more", question);
    if (!more || more.error) break;
    if (more.done) {
      keep(question);
      break;
    }
    latest = { answer: more, question };
    showReasons(more);
  }
  if (mine === number && $("known-box").open) await once("known", mine, question, knownModels);
  await quantisations(mine, question);
  if (mine === number) for (const id of ["quants", "notes"]) $(id).style.minHeight = "";
  if (mine === number && $("curve-box").open) await once("curve", mine, question, drawCurve);
}

// Answers with all their reasons, for the way back.
function keep(question) {
  answers.set(JSON.stringify(question), latest.answer);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value);
}

// Makes the engine know the model, however it was named: {name} or {error, near}.
async function open(state, mine) {
  const typed = state.model;
  if (!typed) return { error: "choose a model, or drop a .gguf file", field: "model" };
  if (known.has(typed)) return { name: known.get(typed).model.name };
  if (offer.models.includes(typed)) return { name: typed };
  const { name, near } = await ask(mine, "name", { name: typed }) ?? {};
  if (mine !== number) return {};
  if (!name) {
    return { error: near?.length ? `“${typed}”: which one?` : `“${typed}” is no known model`, field: "model", near: near ?? [], search: typed };
  }
  if (known.has(name) || offer.models.includes(name)) return { name: known.get(name)?.model.name ?? name };
  status(`Reading the header of ${name}…`);
  const answer = offer.opens ? await ask(mine, "open", { name }) : await addAddress(engine, name, offer.first_slice);
  if (!answer) return {};
  if (answer.error) return { ...answer, field: "model" };
  known.set(name, answer);
  known.set(typed, answer);
  return { name: answer.model.name };
}

function status(text) {
  $("status").textContent = text;
}

// --- showing

// An error stands alone: nothing of an older question is beside it.
function fail({ error, field = "", near = [], search = "" }) {
  status("");
  latest = null;
  for (const id of ["subject", "verdict", "answer", "result"]) $(id).hidden = true;
  document.title = "autolayers";
  const shown = form?.error(field, error);
  $("error").replaceChildren(element("p", { class: "problem" }, shown ? `${error}` : error));
  if (!search) return;
  const list = element("p", {}, ...near.map((name) => choice(name, () => choose(name))));
  list.append(choice(`Search huggingface.co for “${search}”`, () => searchFor(search)));
  $("error").append(list);
}

function choice(text, act) {
  const button = element("button", { type: "button" }, text);
  button.onclick = act;
  return button;
}

// Only when it is asked for: typing is not sent.
async function searchFor(words) {
  status(`Searching huggingface.co for ${words}…`);
  const found = await searchHub(words);
  status("");
  inHub.set(words, found.models ?? []);
  if (found.error) return fail({ error: found.error, field: "model" });
  $("error").replaceChildren(element("p", {}, found.models.length ? `GGUF repositories with “${words}”:` : `huggingface.co has no GGUF repository with “${words}”.`),
    element("ul", { class: "choices" }, ...found.models.map(({ name, note }) => element("li", {}, choice(name, () => choose(name)), ` ${note}`))));
}

function choose(name) {
  form.fill({ ...form.read(), model: name, mmproj: "", draft: "" });
  changed(true);
}

// Another file of the same model keeps its projector.
function retake(name) {
  form.fill({ ...form.read(), model: name });
  changed(true);
}

function show(answer, question) {
  status("");
  const before = latest?.answer.plan ?? null, asked = latest?.question;
  latest = { answer, question };
  form.error("", "");
  $("error").replaceChildren();
  const { plan, verdict } = answer;
  const opened = known.get(question.model);
  form.longest = plan.model.n_ctx_train || 131072;
  form.slide();
  for (const id of ["subject", "verdict", "answer", "result"]) $(id).hidden = false;
  $("verdict").textContent = sentence(verdict);
  $("verdict").className = verdict.state;
  document.title = `${verdict.title}: ${question.model.split("/").pop()} on ${question.gpu || (offer.here ? "this machine" : "no GPU")} – autolayers`;
  if (before && machineOf(question) !== machineOf(asked)) {
    models = [];
    $("known").replaceChildren();
  }
  $("subject").textContent = subject(question, plan);
  $("plain").textContent = verdict.plain;
  $("assumed").textContent = [verdict.assumed && `Predicted: ${verdict.assumed}.`, measuredWords(plan)].filter(Boolean).join(" ");
  $("get-model").hidden = !answer.get;
  if (answer.get) $("get-model").href = answer.get;
  $("get-model").textContent = `get the model (${size(plan.model.size)})`;
  $("answer").classList.toggle("not", verdict.state === "no");
  $("quants-box")[verdict.state === "no" ? "before" : "after"]($("notes"));
  $("model-facts").textContent = facts(plan.model, opened);
  showCommand();
  $("bars").replaceChildren(bars(plan, before));
  $("strip").replaceChildren(...strip(answer.layers));
  $("bytes").replaceChildren(byteTable(plan));
  $("speed").textContent = speedWords(plan);
  for (const id of ["quants", "notes"]) $(id).style.minHeight = `${$(id).offsetHeight}px`;      // until they are filled again
  for (const id of ["curve", "quants", "file-notes"]) $(id).replaceChildren();
  $("file-text").hidden = true;
  $("quants-hint").textContent = "";
  $("read-all").hidden = true;
  showReasons(answer);
  showComparison();
}

function machineOf({ gpu, ram, machine }) {
  return JSON.stringify([gpu, ram, machine]);
}

// What the answer is about, so that a picture or a print of it says so.
function subject(question, plan) {
  const name = offer.names[question.model] ?? question.model.split("/").pop();
  const cards = question.gpu.split(",").map((card) => form.sold(card));
  const machine = question.machine ? plan.devices.map((device) => device.description) : question.gpu ? cards : [offer.here ? "this machine" : "the CPU"];
  return `${name} on ${machine.join(", ")}${question.ram ? `, ${question.ram.replace(/^(\d+)$/, "$1 GB")} of RAM` : ""}`;
}

function measuredWords(plan) {
  const rows = Array.isArray(plan.measured) ? plan.measured : plan.measured ? [plan.measured] : [];
  return rows.filter((row) => row.generation_tokens_per_second ?? row.tokens_per_second)
    .map((row) => `Measured: ${rate(row.generation_tokens_per_second ?? row.tokens_per_second)} tokens/s${row.source ? ` (${row.source})` : ""}.`).join(" ");
}

function facts(model, opened) {
  return [`${model.name || model.path}: ${model.architecture}, ${size(model.size)}, ${model.n_layer} layers, trained for ${thousands(model.n_ctx_train)} of context`,
          ...(opened?.model?.warnings ?? []), ...(opened?.notes ?? [])].join(". ");
}

function speedWords({ speed, placement, launch, exact }) {
  const slots = launch.n_seq_max > 1 ? `, ${launch.n_seq_max} slots` : "";
  return `${placement}, context ${launch.n_ctx}${slots}. ${exact ? "Sizes are exact to the byte." : "Sizes are upper bounds, not exact."}`
    + (speed ? ` Speed is predicted, not measured, within a factor of ${speed.uncertainty_factor}: ${rate(speed.generation_tokens_per_second)} tokens/s, `
      + `${rate(speed.generation_tokens_per_second_full_context)} with a full context; prompts ${rate(speed.prompt_tokens_per_second)} tokens/s.` : "");
}

function showReasons(answer) {
  const { plan, instead = [], remedies = [], verdict } = answer;
  $("notes").replaceChildren(
    ...listed(verdict.state === "no" ? "What would make it fit" : "What you could change", [
      ...remedies.map(({ flags, words }) => (flags.length ? withButton(flags, words) : element("li", {}, words))),
      ...instead.map(({ flags, buys }) => withButton(flags, `${quoted(flags)}: ${buys}`)),
      ...(plan.fit ? [element("li", {}, `llama-server's own choice (--fit) would be ${plan.fit.placement}, context ${plan.fit.n_ctx}, `
        + `${rate(plan.fit.speed.generation_tokens_per_second)} tokens/s${plan.fit.fits ? "" : "; that breaks these margins"}`)] : [])], "why"),
    ...listed("Good to know", plan.warnings.map((line) => element("li", {}, line)), "warning"),
    ...listed("Why this plan", plan.reasons.map((line) => element("li", {}, line)), "why"));
}

function listed(title, items, kind) {
  return items.length ? [element("h3", {}, title), element("ul", { class: kind }, ...items)] : [];
}

function withButton(flags, words) {
  const button = choice("Try", () => use(flags));
  button.setAttribute("aria-label", `Try ${quoted(flags)}`);
  return element("li", {}, button, ` ${words}`);
}

function use(flags) {
  const state = form.read(), others = [];
  for (let i = 0; i < flags.length; i++) {
    const field = FIELD_OF[flags[i]];
    if (field) state[field] = flags[++i] ?? "";
    else others.push(flags[i]);
  }
  state.flags = [state.flags, quoted(others)].filter(Boolean).join(" ");
  form.fill(state);
  changed(true);
}

function showCommand() {
  if (!latest) return;
  const words = latest.answer.command[$("shell").value].split(" ");
  $("command").replaceChildren(...words.flatMap((word, i) => [i ? " " : "", element("span", { class: "word" }, word)]));
}

// --- tables

// Row by row; a row's button plans it.
async function fillTable(mine, question, place, found) {
  const draw = () => {
    const held = $(place).contains(document.activeElement) ? document.activeElement?.textContent : null;
    $(place).replaceChildren(modelTable(found, question.model, (row) => retake(row.model)));
    if (held) [...$(place).querySelectorAll("button")].find((button) => button.textContent === held)?.focus();
  };
  draw();
  for (const line of found) {
    if (line.answer) continue;
    if (line.row.read) {
      const opened = await open({ model: line.row.model }, mine);
      if (mine !== number) return;
      if (opened.error) line.answer = opened;
    }
    const answer = line.answer ?? await ask(mine, "row", { ...question, ...line.row });
    if (!answer) return;
    line.answer = answer;
    draw();
  }
  status("");
}

async function quantisations(mine, question) {
  const opened = known.get(question.model) ?? known.get(form.read().model);
  const files = opened?.models ?? [];
  if (files.length > 1) {
    const rows = files.map((file) => ({ row: { model: file.name, label: file.label, size: file.size, read: true }, answer: null }));
    for (const line of rows) {
      if (!known.has(line.row.model) && line.row.model.endsWith(`/${opened.file ?? ""}`)) line.row.model = question.model;
      line.row.read = !known.has(line.row.model);
    }
    $("quants-hint").textContent = "Every file of the repository. More bits per weight are closer to the original model.";
    const here = rows.filter(({ row }) => !row.read);
    await fillTable(mine, question, "quants", here);
    if (mine !== number || here.length === rows.length) return;
    $("quants").replaceChildren(modelTable(rows, question.model, (row) => retake(row.model)));
    $("read-all").hidden = false;
    $("read-all").textContent = `Plan all ${rows.length} files (reads the first megabytes of each)`;
    $("read-all").onclick = async () => {
      $("read-all").hidden = true;
      busy("reasons");
      await fillTable(number, question, "quants", rows);
      if (mine === number) busy("");
    };
    return;
  }
  const answer = await ask(mine, "rows", question);
  if (!answer || answer.error) return;
  $("quants-hint").textContent = "More bits per weight are closer to the original model. "
    + (answer.rows.some((row) => row.as) ? "Estimates: as if all of this model had that type." : "");
  await fillTable(mine, question, "quants", answer.rows.map((row) => ({ row, answer: null })));
}

// Runs a table once for each question, however often it is asked for.
async function once(name, mine, question, table) {
  if (once.done[name] === mine) return;
  once.done[name] = mine;
  await table(mine, question);
}
/** @type {Record<string, number>} */ once.done = {};

// What this machine runs: the list of the build at once, else row by row.
async function knownModels(mine, question) {
  const clean = { gpu: question.gpu, ram: question.ram, machine: question.machine };
  const built = await listOf(config, clean);
  if (mine !== number) return;
  $("known").replaceChildren();
  models = built ?? offer.known.map((name) => ({ model: name, state: "" }));
  drawKnown();
  if (built && clean.ram === (config.lists ? presetRam(clean.gpu) : "")) return;
  for (let i = 0; i < models.length; i++) {
    const answer = await ask(mine, "take", { ...clean, model: models[i].model });
    if (!answer) return;
    if (!answer.error) models[i] = answer;
    drawKnown(i + 1);
  }
}
/** @type {any[]} */ let models = [];

function presetRam(gpu) {
  return offer.cards.some((card) => card.ram && card.name === gpu) ? "" : offer.preset.ram;
}

// The build has this machine's list: it waits for nothing.
function isListed(question) {
  return $("known-box").open && config.lists?.includes(question.gpu || "none") && !question.machine;
}

function drawKnown(done = models.length) {
  const wanted = { context: Number($("least-context").value), rate: Number($("least-rate").value),
                   vision: $("only-vision").checked, coding: $("only-coding").checked };
  const found = filtered(models, wanted);
  $("known-hint").textContent = (done < models.length ? `Computing ${done} of ${models.length}. ` : "")
    + "The largest first among those that write faster than one reads; each in the best quantisation that does.";
  knownTable($("known"), found, latest?.question.model ?? "", offer.names, choose);
}

async function drawCurve(mine, question) {
  $("curve").textContent = "Computing…";
  const points = [];
  for (const type of ["f16", "q8_0", "q4_0"]) {
    const answer = await ask(mine, "curve", { ...question, types: [type] });
    if (!answer) return;
    if (answer.error) {
      $("curve").replaceChildren(element("p", {}, answer.error));
      return;
    }
    points.push(...answer.points);
    $("curve").replaceChildren(curve(points));
  }
}

// --- comparing

function pin() {
  if (!latest) return;
  pinned = { state: latest.question, answer: latest.answer };
  history.replaceState(null, "", toHash(form.read(), pinned.state));
  showComparison();
  $("compare").scrollIntoView({ block: "nearest" });
}

function unpin() {
  pinned = null;
  history.replaceState(null, "", toHash(form.read()));
  showComparison();
}

function showComparison() {
  $("compare").hidden = !pinned?.answer || !latest;
  if ($("compare").hidden) return;
  $("pinned-bars").replaceChildren(element("p", {}, `${pinned.state.model} on ${pinned.state.gpu || "no GPU"}`), bars(pinned.answer.plan));
  $("now-bars").replaceChildren(element("p", {}, `${latest.question.model} on ${latest.question.gpu || "no GPU"}`), bars(latest.answer.plan));
  $("comparison").replaceChildren(comparison(pinned.answer, latest.answer));
}

// --- files

function save(name, text) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text], { type: "application/octet-stream" })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function download() {
  if (!latest) return;
  const mine = number;
  const answer = await ask(mine, "file", { ...latest.question, format: $("format").value });
  if (!answer) return;
  $("file-notes").replaceChildren(...[answer.error, ...(answer.notes ?? [])].filter(Boolean).map((note) => element("li", {}, note)));
  $("file-text").hidden = !answer.text;
  $("file-text").textContent = answer.text ?? "";
  if (answer.text) save(answer.file, answer.text);
}

async function dropped(files) {
  const all = [...files];
  const models = all.filter((file) => /\.gguf$/i.test(file.name));
  const machine = all.find((file) => /\.json$/i.test(file.name));
  const log = all.find((file) => /\.(log|txt)$/i.test(file.name));
  if (machine && !models.length) return openMachine(machine);
  if (log && !models.length) return explainFile(log);
  const mine = ++number;
  busy("plan");
  status("Reading the header…");
  const answer = await addFiles(engine, models, offer.first_slice);
  if (mine !== number) return;
  busy("");
  if (answer.error || answer.missing) {
    return fail({ field: "model", error: answer.error ?? `parts ${answer.missing.join(", ")} of ${answer.of} are missing: drop them too` });
  }
  const state = /** @type {any} */ ({ ...form.read(), draft: answer.draft, mmproj: answer.projector });
  if (answer.model) {
    known.set(answer.model.name, answer);
    state.model = answer.model.name;
  }
  form.fill(state);
  changed(true);
}

async function openMachine(file) {
  try {
    const text = JSON.parse(await file.slice(0, 1 << 20).text(), (key, value) =>
      PRIVATE.has(key) || value === null || value === "" ? undefined : value);
    form.fill({ ...form.read(), machine: JSON.stringify(text), gpu: "", ram: "" });
    changed(true);
  } catch {
    fail({ error: `${file.name}: not a machine file, as autolayers devices --json writes it` });
  }
}

async function saveMachine() {
  const answer = await ask(number, "machine", form.read());
  if (answer?.error) fail(answer);
  else if (answer) save("machine.json", answer.text);
}

// --- logs

async function explainFile(file) {
  $("log").value = await file.slice(0, 64 << 20).text();
  $("explain-box").querySelector("details").open = true;
  await explain();
}

async function explain() {
  const { model, gpu, ram, machine } = latest?.question ?? form.read();
  $("explained").hidden = false;
  $("explained").textContent = "Reading the log…";
  const answer = await engine.call("explain", { log: $("log").value, ...(latest ? { model } : {}), gpu, ram, machine });
  $("explained").textContent = answer.error ?? answer.text;
  $("explained").scrollIntoView({ block: "nearest" });
}

// --- copying

async function copy(button, text, select) {
  const before = button.dataset.says ?? button.textContent;
  button.dataset.says = before;
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {               // not https, or in a frame
    const place = element("textarea", { class: "hidden", "aria-hidden": "true", tabindex: "-1" });
    place.value = text;
    document.body.append(place);
    place.select();
    done = document.execCommand("copy");
    place.remove();
  }
  if (!done && select) getSelection()?.selectAllChildren(select);
  button.textContent = done ? "Copied" : select ? "Press Ctrl+C" : "Copy the address bar";
  setTimeout(() => { button.textContent = before; }, 2000);
}

// --- start

// The system's scheme is the style sheet's; the button chooses the other one.
function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  scheme(dark);
}

function scheme(dark) {
  $("theme").textContent = dark ? "Light" : "Dark";
}

function kept(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function modelOptions(typed, whole) {
  const options = [...[...known.values()].map(({ model }) => ({ value: model.name, note: "opened" })),
                   ...[...offer.models].sort((a, b) => Number(b.includes("q4_k_m")) - Number(a.includes("q4_k_m")))
                     .map((value) => ({ value, note: offer.names[value] }))];
  const found = whole ? options : matching(options, typed);
  const hub = (inHub.get(typed) ?? []).map(({ name, note }) => ({ value: name, note }));
  const search = !whole && typed.length > 2 && !/^https?:/.test(typed) ? [{ value: typed, label: `Search huggingface.co for “${typed}”`, choose: () => searchFor(typed) }] : [];
  return [...hub, ...found.filter((option, i) => found.findIndex((other) => other.value === option.value) === i), ...search];
}

function wire() {
  $("form").addEventListener("submit", (event) => event.preventDefault());
  const silent = new Set(["file", "machine-file"]);
  $("form").addEventListener("input", ({ target }) => {
    if (silent.has(target.id)) return;
    if (target.getAttribute("aria-expanded") === "true") return;      // its list is open: nothing is chosen yet
    if (target.id === "ctx-slider") form.slid();
    else if (target.id === "ctx") form.slide();
    changed(false, target.type === "range" ? PAUSE.slide : target.tagName === "SELECT" ? 0 : PAUSE.type);
  });
  $("form").addEventListener("change", ({ target }) => {
    if (target.id === "model") form.forget();
    if (target.closest("#cards")) form.chosen();
    else if (!silent.has(target.id)) changed(true);
  });
  combobox($("model"), modelOptions, () => {
    form.forget();
    changed(true);
  }, true);
  $("forget-extras").onclick = () => {
    form.forget();
    changed(true);
  };
  $("file").onchange = () => dropped($("file").files);
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    if (event.dataTransfer?.files.length) dropped(event.dataTransfer.files);
  });
  $("machine-file").onchange = () => openMachine($("machine-file").files[0]);
  $("save-machine").onclick = saveMachine;
  $("shell").onchange = () => {
    kept("shell", $("shell").value);
    showCommand();
  };
  $("copy").onclick = () => copy($("copy"), $("command").textContent, $("command"));
  $("share").onclick = () => copy($("share"), location.href, null);
  $("pin").onclick = pin;
  $("unpin").onclick = unpin;
  $("download").onclick = download;
  $("explain").onclick = explain;
  $("known-box").ontoggle = () => { if ($("known-box").open && latest) again("known", knownModels); };
  $("curve-box").ontoggle = () => { if ($("curve-box").open && latest) again("curve", drawCurve); };
  for (const id of ["least-context", "least-rate", "only-vision", "only-coding"]) $(id).onchange = () => drawKnown();
  $("this-computer").onclick = findComputer;
  addEventListener("popstate", () => {
    pinned = pinnedOf(location.hash) ? { state: pinnedOf(location.hash), answer: null } : null;
    form.fill(fromHash(location.hash));
    changed(false);
  });
}

// A table that was opened after the answer.
async function again(name, table) {
  const mine = number;
  busy("reasons");
  await once(name, mine, latest.question, table);
  if (mine === number) busy("");
}

async function findComputer() {
  if (offer.here) {
    form.fill({ ...form.read(), gpu: "", ram: "", machine: "" });
    return changed(true);
  }
  const { gpu, ram } = thisComputer();
  const { cards = [] } = gpu ? await engine.call("card", { name: gpu }) : {};
  const memory = ram ? ` It says that there are ${ram >= 8 ? "at least 8" : `about ${ram}`} GiB of RAM: write how much there are.` : "";
  $("computer-facts").textContent = (cards.length ? `Your browser names the GPU “${gpu}”.` : gpu
    ? `Your browser names the GPU “${gpu}”, which is no known card: write its memory in GiB.`
    : "Your browser does not name the GPU: write its name.") + memory + " Nothing was sent.";
  if (cards.length) form.setCards([cards[0]]);
}

function begin(preset) {
  const state = fromHash(location.hash);
  if (!state.model && !state.gpu && !state.machine) Object.assign(state, offer.here ? { model: preset.model } : preset);
  pinned = pinnedOf(location.hash) ? { state: pinnedOf(location.hash), answer: null } : null;
  form.fill(state);
  history.replaceState(null, "", toHash(form.read(), pinned?.state));
  return state;
}

async function main() {
  if (kept("theme")) theme(kept("theme") === "dark");
  else scheme(matchMedia("(prefers-color-scheme: dark)").matches);
  $("theme").onclick = () => {
    theme($("theme").textContent === "Dark");
    kept("theme", document.documentElement.dataset.theme);
  };
  if (kept("shell") || /Windows/.test(navigator.userAgent)) $("shell").value = kept("shell") ?? "powershell";
  busy("plan");
  let over = false;
  try {
    config = await readConfig();
    const shown = config.first ? await showFirst(config.first).catch(() => false) : false;
    // files that still arrive after a failure say nothing
    const coming = start(config, (text, part) => { if (!over) loading(text, part); }).then((found) => {
      ready = true;
      loading("", 1);
      return found;
    });
    engine = waiting(coming);
    if (offer) alive(shown);
    const there = await coming;
    if (!offer) {
      setUp(await there.call("start", {}));
      begin(offer.preset);
      alive(false);
    }
  } catch (error) {
    over = true;
    loading("", 1);
    busy("");
    if (latest) return status(`Python could not start, so that nothing else can be computed here: ${error.message}`);
    return fail({ error: `autolayers could not start: ${error.message}` });
  }
  if ("serviceWorker" in navigator && config.version) await navigator.serviceWorker.register(`sw.js?${config.version}`).catch(() => null);
}

// The form takes questions; those that nothing answers yet wait for Python.
function alive(shown) {
  wire();
  document.body.classList.remove("early");
  plan(form.read(), shown);
}

function setUp(answer) {
  if (answer.error) throw new Error(answer.error);
  offer = answer;
  $("known-box").open = Boolean(config.lists?.length);
  form = new Form(offer, changed);
  if (offer.here) $("ram").placeholder = "this machine's";
  $("format").append(...offer.formats.map(({ name }) => new Option(name)));
  for (const [id, address] of [["report", offer.home && `${offer.home}/issues`], ["how", offer.home && `${offer.home}/blob/main/docs/memory-model.md`]]) {
    $(id).hidden = !address;
    if (address) $(id).href = address;
  }
  $("version").append(` autolayers ${offer.version}, planned for llama.cpp b${offer.build}.`);
}

// What the build has answered already is shown while Python loads.
async function showFirst(name) {
  const first = await (await fetch(name)).json();
  setUp(first.offer);
  const same = toHash(begin(offer.preset)) === toHash(first.question);
  if (same) show(first.answer, first.question);
  return same;
}

function loading(text, part = 0) {
  status(text && latest ? `${text}. The answer below was computed when this page was built.` : text);
  $("loading").hidden = part >= 1 && !text;
  if (part < 1) $("loading").value = part;
  else $("loading").removeAttribute("value");
}

main();
