// @ts-check
// What a machine runs: the list that the build computed for it or for the nearest size, refined row by row.

import { $, element, button, table } from "./dom.js";
import { ask, isNewest } from "./asking.js";
import { nearestList } from "./machines.js";
import { choose, page } from "./page.js";
import { rate, size, thousands } from "./words.js";

const SIGNS = { yes: "fits", if: "slow", no: "does not fit" };
const ORDER = ["yes", "if", "", "no"];
const HEADS = ["Model", "", "Tokens/s", "Context", "Size", "Where"];
const UNITS = ["", "tokens/s", "context"];      // said where the heads are not shown, on a phone
const FILTERS = ["least-context", "least-rate", "only-vision", "only-coding"];
/** @type {any[]} */ let models = [];
let machine = "";                  // that the list is of
/** @type {Set<string>} */ let computed = new Set();      // the models whose rows are of this machine

/** The list of the question's machine. @param {number} mine @param {any} question */
export async function knownModels(mine, question) {
  const clean = { gpu: question.gpu, ram: question.ram, machine: question.machine };
  let guide = "";
  if (machine !== JSON.stringify(clean)) {      // another model changes no row
    const built = await builtList(clean);
    if (!isNewest(mine)) return;
    forget();
    machine = JSON.stringify(clean);
    models = built?.rows ?? page.offer.known.map((name) => ({ model: name, state: "" }));
    computed = new Set(built?.same ? models.map(({ model }) => model) : []);
    if (built && !built.same) guide = `First those of ${built.of}, then this machine's. `;
  }
  draw(computed.size, guide);
  for (let i = 0; i < models.length; i++) {
    if (computed.has(models[i].model)) continue;
    const answer = await ask(mine, "take", { ...clean, model: models[i].model });
    if (!answer) return;
    if (!answer.error) models[i] = answer;
    computed.add(models[i].model);
    draw(computed.size, computed.size < models.length ? guide : "");
  }
}

// The rows that the build wrote for this machine (`same`), or for the nearest that it knows; null without any.
async function builtList(asked) {
  const found = listOf(asked);
  if (!found) return null;
  const answer = await fetch(found.file).catch(() => null);
  if (!answer?.ok) return null;
  const { rows, question } = await answer.json();
  const same = found.same && asked.ram === question.ram;
  const of = [page.form.sold(question.gpu), question.ram && `${question.ram} GB of RAM`].filter(Boolean).join(", ");
  return { rows, same, of };
}

/** Whether the list is there without Python. @param {any} question */
export function isListed(question) {
  return $("known-box").open && listOf(question) !== null;
}

function listOf({ gpu, machine: file }) {
  return file ? null : nearestList(page.config.lists ?? [], gpu, page.offer.cards);
}

/** Nothing of another machine is shown. */
function forget() {
  models = [];
  $("known").replaceChildren();
}

/** Those that the filters leave. */
export function wireFilters() {
  for (const id of FILTERS) $(id).onchange = () => draw(models.length, "");
}

function draw(done, guide) {
  const wanted = { context: Number($("least-context").value), rate: Number($("least-rate").value),
                   vision: $("only-vision").checked, coding: $("only-coding").checked };
  const counted = done < models.length ? `Computing ${done} of ${models.length}. ` : "";
  $("known-hint").textContent = `${guide}${counted}Large models that write 20 tokens/s or more first; each in the quantisation to take.`
    + (wanted.vision ? withProjectors(models) : "");
  fillTable($("known"), filtered(models, wanted));
}

// Vision models have their projector, but for those whose projector is not known.
function withProjectors(rows) {
  const without = rows.filter((row) => row.vision && !row.mmproj).map((row) => page.offer.names[row.model] ?? row.model);
  return " Each with the projector that reads pictures" + (without.length ? `, but for ${without.join(", ")}: drop its file on this page to count it.` : ".");
}

/** Those that are wanted: what is worth most first, and what writes too slowly to read along, or does not fit, below.
 * @param {any[]} rows @param {{context: number, rate: number, vision: boolean, coding: boolean}} wanted */
export function filtered(rows, wanted) {
  const kept = rows.filter((row) => !row.state || ((row.context ?? 0) >= wanted.context && (row.rate ?? 0) >= wanted.rate))
    .filter((row) => (!wanted.vision || row.vision) && (!wanted.coding || row.coding));
  return kept.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (b.worth ?? 0) - (a.worth ?? 0)
    || (a.size ?? 0) - (b.size ?? 0));
}

// A row of a model stays the same element, so that the focus stays.
function fillTable(place, rows) {
  if (!place.firstChild) place.append(table(HEADS, [], { class: "known" }));
  const body = /** @type {HTMLElement} */ (place.querySelector("tbody"));
  const before = new Map([...body.children].map((row) => [/** @type {HTMLElement} */ (row).dataset.model, row]));
  const held = document.activeElement;
  const lines = rows.map((row) => {
    const line = before.get(row.model) ?? newRow(row.model);
    fill(line, row);
    return line;
  });
  for (const [at, line] of lines.entries()) if (body.children[at] !== line) body.insertBefore(line, body.children[at] ?? null);
  while (body.children.length > lines.length) body.lastChild?.remove();
  if (held instanceof HTMLElement && body.contains(held) && document.activeElement !== held) held.focus();
}

function newRow(model) {
  const act = button(page.offer.names[model] ?? model, () => choose(model, line.dataset.mmproj));
  const line = element("tr", {}, element("th", { scope: "row" }, act), ...HEADS.slice(1).map(() => element("td")));
  line.dataset.model = model;
  return line;
}

function fill(line, row) {
  if (row.mmproj) line.dataset.mmproj = row.mmproj;
  line.classList.toggle("here", row.model === page.latest?.question.model);
  line.classList.toggle("faint", row.state === "if" || row.state === "no");
  const sign = row.needed ? "RAM unknown" : SIGNS[row.state];
  const texts = row.state ? [sign, row.rate ? rate(row.rate) : "–", row.context ? thousands(row.context) : "–",
                             size(row.size), row.where] : ["…", "", "", "", ""];
  texts.forEach((text, i) => {
    const cell = line.children[i + 1];
    cell.textContent = text;
    cell.classList.toggle("none", text === "–");
    if (UNITS[i]) cell.dataset.unit = UNITS[i];
  });
  line.children[1].className = `left how ${row.state}`;
  line.children[5].classList.add("left");
}
