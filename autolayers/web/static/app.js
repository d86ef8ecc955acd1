// @ts-check
// The page: the form is the question, the address holds it, the engine answers, the answer is drawn. Here it starts.

import { chooseShell, fail, preview, show } from "./answer.js";
import { busy } from "./asking.js";
import { combobox } from "./combobox.js";
import { pin, unpin } from "./compare.js";
import { copy, savePicture, shared } from "./copying.js";
import { drawCurve } from "./curve.js";
import { $, button, kept, status } from "./dom.js";
import { readConfig, start, waiting } from "./engine.js";
import { download, dropped, explain, openMachine, saveMachine } from "./files.js";
import { Form, thisComputer } from "./form.js";
import { knownModels, knownRows, showKnown } from "./known.js";
import { modelOptions } from "./opening.js";
import { page } from "./page.js";
import { again, changed, hold, isForeign, plan } from "./question.js";
import { fromHash, pinnedOf, toHash } from "./state.js";

const PAUSE = { slide: 60, type: 600 };      // milliseconds without a change before a question is asked
const SILENT = new Set(["file", "machine-file"]);      // fields that are no part of a question

// --- the form's events

function wire() {
  wireForm();
  wireDrops();
  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll(".skip"))) {
    link.onclick = (event) => {      // what stands behind the # is the question, which stays
      event.preventDefault();
      $(link.hash.slice(1)).focus();
    };
  }
  $("copy").onclick = () => copy($("copy"), $("command").textContent, $("command"));
  $("share").onclick = () => copy($("share"), shared(page.offer.opens && page.latest !== null, $("subject").textContent,
                                                    $("announced").textContent, $("command").textContent), null);
  $("picture").onclick = savePicture;
  $("pin").onclick = pin;
  $("unpin").onclick = unpin;
  $("download").onclick = download;
  $("explain").onclick = explain;
  $("known-box").ontoggle = () => { if ($("known-box").open) again("all", knownModels); };
  $("curve-box").ontoggle = () => { if ($("curve-box").open) again("curve", drawCurve); };
  $("this-computer").onclick = findComputer;
  addEventListener("popstate", () => {
    readPinned();
    page.form.fill(fromHash(location.hash));
    history.replaceState(history.state, "", toHash(page.form.read(), page.pinned?.state));      // a typed key does not stay
    if (waits()) hold();
    else changed(false);
  });
}

function wireForm() {
  const { form } = page;
  $("form").addEventListener("submit", (event) => event.preventDefault());
  $("form").addEventListener("input", ({ target }) => {
    if (SILENT.has(target.id)) return;
    if (target.getAttribute("aria-expanded") === "true") return;      // its list is open: nothing is chosen yet
    if (target.id === "ctx-slider") {
      form.slid();
      preview(Number($("ctx").value));
    } else if (target.id === "ctx") form.slide();
    changed(false, target.type === "range" ? PAUSE.slide : target.tagName === "SELECT" ? 0 : PAUSE.type);
  });
  $("form").addEventListener("change", ({ target }) => {
    if (target.id === "model") form.forget();
    if (target.closest("#cards")) form.chosen();
    else if (!SILENT.has(target.id)) changed(true);
  });
  const anew = () => {
    form.forget();
    changed(true);
  };
  combobox($("model"), modelOptions, anew, true);
  $("forget-extras").onclick = anew;
  chosen("file", dropped);
  chosen("machine-file", ([file]) => openMachine(file));
  $("save-machine").onclick = saveMachine;
}

// The field is emptied, so that the same file can be chosen again.
function chosen(id, open) {
  $(id).onchange = () => {
    open([...$(id).files]);
    $(id).value = "";
  };
}

function wireDrops() {
  const { classList } = document.body;
  addEventListener("dragover", (event) => {
    event.preventDefault();
    classList.add("dragging");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) classList.remove("dragging"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    classList.remove("dragging");
    if (event.dataTransfer?.files.length) dropped(event.dataTransfer.files);
  });
}

async function findComputer() {
  const { form, offer, engine } = page;
  if (offer.here) {
    form.fill({ ...form.read(), gpu: "", ram: "", machine: "" });
    return changed(true);
  }
  const { gpu, ram } = thisComputer();
  const { cards = [] } = gpu ? await engine.call("card", { name: gpu }) : {};
  const named = cards.length ? `Your browser names the GPU “${gpu}”.` : gpu
    ? `Your browser names the GPU “${gpu}”, which is no known card: write its memory in GiB.`
    : "Your browser does not name the GPU: write its name.";
  const memory = ram ? ` It says that there are ${ram >= 8 ? "at least 8" : `about ${ram}`} GiB of RAM: write how much there are.` : "";
  $("computer-facts").textContent = `${named}${memory} Nothing was sent.`;
  const several = cards.length > 1;      // of one name with several sizes of memory: the owner knows which
  if (several) $("computer-facts").append(" Which is it? ", ...cards.map((card) => button(form.sold(card), () => form.setCards([card]))));
  else if (cards.length) form.setCards(cards);
}

// --- start

async function main() {
  chooseScheme();
  chooseShell();
  busy("plan");
  let over = false;
  try {
    page.config = await readConfig();
    const shown = page.config.first ? await showFirst(page.config.first).catch(() => false) : false;
    // files that still arrive after a failure say nothing
    const coming = start(page.config, (text, part) => { if (!over) loading(text, part); }).then((found) => {
      loading("", 1);
      return found;
    });
    page.engine = waiting(coming);
    if (page.offer) alive(shown);
    const there = await coming;
    if (shown) there.call("plan", page.latest.question);      // so that the first change finds its model read
    if (!page.offer) {
      setUp(await there.call("start", {}));
      begin(page.offer.preset);
      alive(false);
    }
  } catch (error) {
    over = true;
    loading("", 1);
    busy("");
    if (page.latest) return status(`Python could not start, so that nothing else can be computed here: ${error.message}`);
    return fail({ error: `autolayers could not start: ${error.message}` });
  }
  if ("serviceWorker" in navigator && page.config.version) await navigator.serviceWorker.register(`sw.js?${page.config.version}`).catch(() => null);
}

// The system's scheme is the style sheet's; the button takes the other one.
function chooseScheme() {
  const chosen = kept("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  const now = () => document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const name = () => { $("theme").textContent = now() === "dark" ? "Light" : "Dark"; };
  name();
  $("theme").onclick = () => {
    document.documentElement.dataset.theme = now() === "dark" ? "light" : "dark";
    kept("theme", document.documentElement.dataset.theme);
    name();
  };
}

// The form takes questions; those that nothing answers yet wait for Python.
function alive(shown) {
  wire();
  document.body.classList.remove("early");
  if (waits()) hold();
  else plan(page.form.read(), shown);
}

function waits() {
  return isForeign(page.form.read()) || (page.pinned && isForeign(page.pinned.state));
}

function setUp(answer) {
  if (answer.error) throw new Error(answer.error);
  answer.models ??= Object.keys(answer.names);
  page.offer = answer;
  page.form = new Form(answer, changed);
  if (answer.opens) $("share").textContent = "Copy answer";      // a loopback address leads nobody here
  if (answer.here) $("ram").placeholder = "this machine's";
  $("format").append(...answer.formats.map(({ name }) => new Option(name)));
  for (const [id, place] of [["report", "/issues"], ["how", "/blob/main/docs/memory-model.md"], ["home", ""]]) {
    $(id).hidden = !answer.home;
    if (answer.home) $(id).href = answer.home + place;
  }
  $("version").append(` autolayers ${answer.version}, planned for llama.cpp b${answer.build}.`);
}

// The question of the address, else the presets.
function begin(preset) {
  const { form, offer } = page;
  const state = fromHash(location.hash);
  if (!offer.here && !state.model && !state.gpu && !state.machine) Object.assign(state, preset);
  readPinned();
  form.fill(state);
  history.replaceState(history.state, "", toHash(form.read(), page.pinned?.state));
  return state;
}

function readPinned() {
  const state = pinnedOf(location.hash);
  page.pinned = state && { state, answer: null };
}

// What the build has answered already is shown while Python loads; the names of all cards follow.
async function showFirst(name) {
  const first = await (await fetch(name)).json();
  setUp(first.offer);
  const same = toHash(begin(first.offer.preset)) === toHash(first.asked);
  if (same) {
    knownRows(first.asked, first.rows);
    show(first.answer, first.question);
    showKnown();
  }
  fetch(page.config.cards).then((answer) => answer.json()).then((cards) => { page.offer.cards = cards; }).catch(() => null);
  return same;
}

function loading(text, part = 0) {
  status(text && page.latest ? `${text.replace(/…$/, "")}. The answer below was computed when this page was built.` : text);
  $("loading").hidden = part >= 1 && !text;
  if (part < 1) $("loading").value = part;
  else $("loading").removeAttribute("value");
}

main();
