// @ts-check
// The form: its fields, rows of GPUs, and what the browser knows of this computer.

import { combobox } from "./combobox.js";
import { $, element } from "./dom.js";
import { canonical } from "./machines.js";
import { FIELDS } from "./state.js";
import { contextAt, positionOf, size, soldAs } from "./words.js";

const SHOWN = 50;              // options of a list
const ITS_OWN = "auto";        // the projector of the model's repository
// fields that are folded, as they are said
const FOLDED = { path: "", ctx: "context", np: "slots", ub: "micro-batch", ctk: "K cache", ctv: "V cache", fa: "flash attention",
                 strategy: "strategy", workload: "workload", mmproj: "projector", draft: "draft", flags: "" };
const LETTERS = /[^a-z0-9.]+/g;

export class Form {
  /** @param {any} offer what the engine offers @param {(step: boolean) => void} changed */
  constructor(offer, changed) {
    this.offer = offer;
    this.changed = changed;
    this.longest = 131072;       // the trained context of the model
    this.picked = false;         // a job, by hand: the usual one is that of nobody's choice
    this.ram = "";               // that of another machine, while a GPU's name says how much there is
    for (const id of ["ctk", "ctv"]) {
      $(id).append(new Option("f16", ""), ...offer.cache_types.filter((type) => type !== "f16").map((type) => new Option(type)));
    }
    $("chips").append(...offer.chips.map((name) => {
      const chip = element("button", { type: "button", class: "chip" }, this.sold(name));
      chip.onclick = () => this.setCards([name]);
      return chip;
    }));
    $("jobs").append(...Object.entries(offer.jobs).map(([name, { title }]) => element("label", { class: "job" },
      element("input", { type: "radio", name: "for", value: name }), title)));
    $("pictures").onchange = () => { $("mmproj").value = $("pictures").checked ? ITS_OWN : ""; };
    $("jobs").onchange = () => { this.picked = true; };
    combobox($("workload"), () => offer.workloads.map((value) => ({ value })), () => changed(true));
    $("add-card").onclick = () => this.addCard().focus();
    $("forget-machine").onclick = () => {
      this.fill({ ...this.read(), machine: "" });
      changed(true);
    };
  }

  /** The form's GPUs as they are sold: "2 x RTX 3060 12 GB, a GPU of 24 GB". @param {string} typed */
  sold(typed) {
    const counts = new Map();
    for (const name of canonical(typed, this.offer.cards)) counts.set(name, (counts.get(name) ?? 0) + 1);
    return [...counts].map(([name, count]) => {
      if (Number(name)) return count > 1 ? `${count} GPUs of ${name} GB` : `a GPU of ${name} GB`;
      if (name === "none") return "no GPU";
      const card = this.offer.cards.find((one) => one.name === name);
      return `${count > 1 ? `${count} x ` : ""}${card ? soldAs(card) : name}`;
    }).join(", ");
  }

  /** A projector, a draft, a path and a pasted command belong to their model. */
  forget() {
    for (const id of ["mmproj", "draft", "path", "yours"]) $(id).value = "";
  }

  read() {
    const state = Object.fromEntries(FIELDS.map((name) => [name, $(name)?.value.trim() ?? ""]));
    state.gpu = [...$("cards").querySelectorAll("input")].map((input) => input.value.trim()).filter(Boolean).join(",");
    const job = /** @type {any} */ (document.querySelector("[name=for]:checked"))?.value ?? "";
    state.for = this.picked ? job : "";
    return state;
  }

  fill(state) {
    for (const name of FIELDS) if ($(name)) $(name).value = state[name] ?? "";
    const job = state.for || (state.model ? "" : Object.keys(this.offer.jobs)[0]);
    this.picked = Boolean(state.for);
    for (const one of document.getElementsByName("for")) /** @type {any} */ (one).checked = /** @type {any} */ (one).value === job;
    this.slide();
    $("cards").replaceChildren();
    for (const card of state.gpu ? state.gpu.split(",") : [""]) this.addCard(card);
    this.sayMore(state);
    this.showMachine(state.machine);
  }

  /** Says what is set in the part of the form that is folded. @param {Record<string, string>} state */
  sayMore(state) {
    const set = Object.entries(FOLDED).filter(([name]) => state[name]).map(([name, title]) => `${title} ${state[name]}`);
    $("more-set").textContent = set.length ? set.join(", ") : "context, slots, files";
  }

  /** Offers the projector of the model's repository. @param {any} question that is answered */
  showProjector({ model, mmproj }) {
    const bytes = this.offer.projectors[model] ?? 0;
    $("pictures-field").hidden = !bytes;
    $("pictures").checked = mmproj === ITS_OWN;
    $("pictures-words").textContent = `reads pictures (its projector: ${size(bytes)})`;
  }

  /** The slider follows the field. */
  slide() {
    $("ctx-slider").value = positionOf($("ctx").value, this.longest);
    $("ctx-slider").setAttribute("aria-valuetext", $("ctx").value ? `${$("ctx").value} tokens` : "chosen for you");
  }

  slid() {
    $("ctx").value = contextAt(Number($("ctx-slider").value), this.longest);
    $("ctx-slider").setAttribute("aria-valuetext", $("ctx").value ? `${$("ctx").value} tokens` : "chosen for you");
  }

  // The devices of a machine file instead of cards.
  showMachine(text) {
    let devices = [];
    try {
      devices = JSON.parse(text || "{}").devices ?? [];
    } catch { /* the engine says what is wrong with it */ }
    $("machine-facts").hidden = !text;
    $("gpus").hidden = Boolean(text);
    $("machine-devices").textContent = "Machine file: "
      + (devices.map((d) => d?.card ?? d?.description ?? d?.name ?? "?").join(", ") || "no GPU");
  }

  setCards(names) {
    this.fill({ ...this.read(), gpu: names.join(","), machine: "" });
    this.chosen();
  }

  // A GPU that shares the machine's memory says how much RAM there is, if its name does.
  chosen() {
    const { gpu } = this.read();
    const own = this.offer.cards.some((card) => card.ram && gpu.split(",").includes(card.name));
    if (own && $("ram").value) this.ram = $("ram").value;
    if (own) $("ram").value = "";
    else if (!$("ram").value) $("ram").value = this.ram;
    if (!own) this.ram = "";
    this.changed(true);
  }

  addCard(text = "") {
    const number = $("cards").children.length + 1;
    const input = element("input", { "aria-label": `GPU ${number}`, "aria-describedby": "gpu-error",
                                     placeholder: this.offer.here ? "this machine" : "none" });
    input.value = text;
    const remove = element("button", { type: "button", "aria-label": `Remove GPU ${number}` }, "×");
    const row = element("div", { class: "card" }, input, remove);
    remove.onclick = () => {
      row.remove();
      if (!$("cards").children.length) this.addCard();
      this.changed(true);
    };
    $("cards").append(row);
    combobox(input, (typed, whole) => this.cardsFor(typed, whole), () => this.chosen());
    return input;
  }

  cardsFor(typed, whole) {
    const options = this.offer.cards.map((card) => ({ value: card.name, note: card.description }));
    return whole ? options : matching(options, typed);
  }

  error(field, text) {
    for (const place of document.querySelectorAll("[id$='-error']")) {
      place.textContent = place.id === `${field}-error` ? text : "";
      /** @type {any} */ (place).hidden = !place.textContent;
    }
    for (const input of $("form").querySelectorAll("input")) {
      const wrong = Boolean(field) && (input.id === field || (field === "gpu" && Boolean(input.closest("#cards"))));
      if (wrong) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
    return Boolean(field && $(`${field}-error`));
  }
}

/** Options that have all the typed words, those that begin with them first. */
export function matching(options, typed) {
  const words = typed.toLowerCase().replace(/^(bundled|hf|ollama):/, "").split(LETTERS).filter(Boolean);
  if (!words.length) return options.slice(0, SHOWN);
  const plain = (text) => text.toLowerCase().replace(LETTERS, "");
  const joined = plain(typed);
  return options.map((option) => ({ option, text: plain(`${option.value} ${option.note ?? ""}`) }))
    .filter(({ text }) => text.includes(joined) || words.every((word) => text.includes(word)))
    .sort((a, b) => Number(b.text.startsWith(joined)) - Number(a.text.startsWith(joined)))
    .slice(0, SHOWN).map(({ option }) => option);
}

/** What the browser says of this computer; nothing is sent. @returns {{gpu: string, ram: number}} */
export function thisComputer() {
  let gpu = "";
  try {
    const context = document.createElement("canvas").getContext("webgl");
    const names = context?.getExtension("WEBGL_debug_renderer_info");
    gpu = context ? String(context.getParameter(names ? names.UNMASKED_RENDERER_WEBGL : context.RENDERER)) : "";
  } catch { /* a browser that tells nothing */ }
  return { gpu, ram: /** @type {any} */ (navigator).deviceMemory ?? 0 };
}
