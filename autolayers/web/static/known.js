// @ts-check
// What this machine runs: the models of today in the order of the ranker, from the list that the build computed for the
// machine or row by row. The first one is the answer to a question without a model.

import { $, button, element, status, table } from "./dom.js";
import { ask, isNewest } from "./asking.js";
import { fileOf, nearestList } from "./machines.js";
import { choose, page } from "./page.js";
import { rate, size, thousands } from "./words.js";

const STATES = { well: "runs well", tight: "tight", slow: "slow", no: "does not fit" };
const HEADS = ["Model", "", "Tokens/s", "Context", "Size", "Where", "Index", "Released"];
const UNITS = ["", "tokens/s", "context"];      // said where the heads are not shown, on a phone
const USUAL = "chat";              // the job of the lists that the build writes
const SEES = "pictures";           // a job with a shorter context
const OTHERS = 4;                  // beside the answer
const FASTER = 1.2, LONGER = 1.5;  // times the answer's rate and context: worth a word
/** @type {Map<string, any>} */ let rows = new Map();      // of this machine and job, by model
let of = "";                       // the machine and job
let guide = "";                    // whose rows are shown until then
/** @type {{machine: string, rows: Map<string, any>}} */ let chat = { machine: "", rows: new Map() };      // of the usual job
/** @type {any[]} */ let nearby = [];                      // rows of a machine like it

/** The best model for the question's machine and job; null where a newer question came.
 * @param {number} mine @param {any} question */
export async function bestRow(mine, question) {
  if (!await prepared(mine, question)) return null;
  const { models, worth } = page.offer.jobs[jobOf(question)];
  await compute(mine, question, (at) => {
    const found = isBest(ordered()[0], worth[at + 1] ?? 0);
    status(found ? "" : `Looking for the best model: ${rows.size} of ${models.length}…`);
    return found;
  });
  return isNewest(mine) ? ordered()[0] : null;
}

/** The list, as much of it as is shown. @param {number} mine @param {any} question */
export async function knownModels(mine, question) {
  if (!await prepared(mine, question)) return;
  showKnown();
  let good = 0;
  await compute(mine, question, (at, row) => {
    showKnown();
    good += Number(row.how === "well" && !isHere(row));
    return good >= OTHERS && !$("known-box").open;
  });
  if (isNewest(mine)) showKnown();
}

/** Whether the rows are there without Python. @param {any} question */
export function isListed(question) {
  return listedAs(question) !== "";
}

/** The name of the machine's list, "" without one of its own. @param {any} question */
export function listedAs(question) {
  const found = jobOf(question) === USUAL ? listOf(question) : null;
  return found?.same ? found.name : "";
}

/** Rows of the question's machine that the build wrote. @param {any} question @param {any[]} written */
export function knownRows(question, written) {
  const now = asked(question);
  of = JSON.stringify(now);
  rows = new Map(written.map((row) => [row.of, row]));
  const machine = JSON.stringify({ ...now, for: USUAL });
  if (now.for === USUAL || chat.machine !== machine) chat = { machine, rows: now.for === USUAL ? rows : new Map() };
}

// Whether a model cannot run well for a job, as it does not for the usual one, which asks for less of everything but sight.
function hopeless(model, job) {
  const how = chat.rows.get(model)?.how;
  return job !== USUAL && (how === "no" || (how === "slow" && job !== SEES));
}

function asked({ gpu, ram, machine = "", for: job = "" }) {
  return { gpu, ram, machine, for: job || USUAL };
}

/** What a model is wanted for. @param {any} question */
export function jobOf(question) {
  return question.for || USUAL;
}

// Forgets the rows of another machine; the build's are there at once.
async function prepared(mine, question) {
  const clean = asked(question);
  if (of === JSON.stringify(clean)) return true;      // another model changes no row
  const built = clean.for === USUAL ? await builtList(clean) : null;
  if (!isNewest(mine)) return false;
  knownRows(clean, built?.same ? built.rows : []);
  nearby = built && !built.same ? built.rows : [];
  guide = nearby.length ? `First those of ${built?.of}, then this machine's. ` : "";
  $("known").replaceChildren();
  $("also").replaceChildren();
  return true;
}

/** Whether no model that is worth this at most can come before the first row. The models come in the order of what they
 * are worth; a file below Q4 is worth less than its model, and of two alike the faster one is first.
 * @param {any} first @param {number} next */
export function isBest(first, next) {
  return first?.order[0] === 0 && -first.order[1] > next;
}

// Row by row, until there are enough.
async function compute(mine, question, enough) {
  for (const [at, model] of page.offer.jobs[jobOf(question)].models.entries()) {
    if (hopeless(model, jobOf(question))) continue;
    if (!rows.has(model)) {
      const row = await ask(mine, "take", { ...JSON.parse(of), model });
      if (!row) return;
      rows.set(model, row.error ? null : row);
    }
    if (rows.get(model) && enough(at, rows.get(model))) return;
  }
}

function ordered() {
  return inOrder([...rows.values()].filter(Boolean));
}

/** As the ranker orders them. @param {any[]} some */
export function inOrder(some) {
  return some.sort((a, b) => after(a.order, b.order));
}

function after(one, other) {
  for (let i = 0; i < one.length; i++) if (one[i] !== other[i]) return one[i] - other[i];
  return 0;
}

// The rows that the build wrote for this machine (`same`), or for the nearest that it knows; null without any.
async function builtList(clean) {
  const found = listOf(clean);
  if (!found) return null;
  const answer = await fetch(fileOf("known", found.name)).catch(() => null);
  if (!answer?.ok) return null;
  const { rows: written, question } = await answer.json();
  return { rows: written, same: found.same, of: [page.form.sold(question.gpu), question.ram && `${question.ram} GB of RAM`].filter(Boolean).join(", ") };
}

function listOf({ gpu, ram, machine: file }) {
  return file ? null : nearestList(page.config.lists ?? [], gpu, page.offer.cards, ram, page.offer.preset.ram);
}

function isHere(row) {
  return row.model === page.latest?.question.model;
}

/** Draws what is known. */
export function showKnown() {
  const shown = ordered();
  const all = page.offer.jobs[JSON.parse(of).for].models.length;
  drawOthers(shown.filter((row) => !isHere(row) && (row.how === "well" || row.how === "tight")).slice(0, OTHERS),
             shown.find(isHere));
  const runs = (shown.length ? shown : nearby).filter((row) => row.how !== "no");
  const large = shown.filter((row) => row.how === "no");
  const counted = rows.size < all ? `${rows.size} of ${all} computed. ` : "";
  $("known-hint").textContent = `${shown.length ? "" : guide}${counted}Each in the file to take, at the job's context, the best answers first.`
    + (large.length ? ` Too large: ${large.length} model${large.length > 1 ? "s" : ""}, from ${size(large[0].missing ?? 0)} more.` : "");
  fillTable($("known"), runs);
}

// Beside the answer, each with the one reason to take it instead.
function drawOthers(others, here) {
  $("also").hidden = !others.length;
  const lines = others.map((row) => {
    const act = button(`${row.title} ${row.quantisation}`.trim(), () => choose(row.model, row.mmproj));
    const line = element("tr", {}, element("th", { scope: "row" }, act, element("small", {}, `${reason(row, here)}${size(row.size)}`)),
      cell(rate(row.rate), "tokens/s"), cell(thousands(row.context), "context"),
      element("td", { class: "left" }, row.where), element("td", {}, row.released ?? ""));
    return line;
  });
  const before = document.activeElement;
  const title = page.latest?.answer.verdict.state === "no" ? "What runs instead" : "Also good on this machine";
  $("also").replaceChildren(table([title, "Tokens/s", "Context", "Where", "Released"], lines));
  if (before instanceof HTMLElement && !before.isConnected) /** @type {any} */ ($("also").querySelector("button"))?.focus();
}

function cell(text, unit) {
  return element("td", { "data-unit": unit }, text);
}

function reason(row, here) {
  const words = [];
  if (row.how === "tight") words.push("tight");
  if (here && row.worth > here.worth) words.push(row.rate < here.rate ? "better answers, slower" : "better answers");
  else if (here && row.rate > FASTER * here.rate) words.push("faster");
  else if (here && row.context > LONGER * here.context) words.push("holds more text");
  else if (row.vision && !here?.vision) words.push("reads pictures");
  return words.length ? `${words.join(", ")}; ` : "";
}

// A row of a model stays the same element, so that the focus stays.
function fillTable(place, shown) {
  if (!place.firstChild) place.append(table(HEADS, [], { class: "known" }));
  const body = /** @type {HTMLElement} */ (place.querySelector("tbody"));
  const before = new Map([...body.children].map((row) => [/** @type {HTMLElement} */ (row).dataset.model, row]));
  const held = document.activeElement;
  const lines = shown.map((row) => {
    const line = before.get(row.model) ?? newRow(row);
    fill(line, row);
    return line;
  });
  for (const [at, line] of lines.entries()) if (body.children[at] !== line) body.insertBefore(line, body.children[at] ?? null);
  while (body.children.length > lines.length) body.lastChild?.remove();
  if (held instanceof HTMLElement && body.contains(held) && document.activeElement !== held) held.focus();
}

function newRow(row) {
  const act = button(`${row.title} ${row.quantisation}`.trim(), () => choose(row.model, row.mmproj));
  const line = element("tr", {}, element("th", { scope: "row" }, act), ...HEADS.slice(1).map(() => element("td")));
  line.dataset.model = row.model;
  return line;
}

function fill(line, row) {
  line.classList.toggle("here", isHere(row));
  line.classList.toggle("faint", row.how === "slow");
  const placed = row.index ? String(row.index) : "by size and age";      // never a number without a source
  const texts = [STATES[row.how], rate(row.rate), thousands(row.context), size(row.size), row.where, placed, row.released ?? ""];
  texts.forEach((text, i) => {
    const place = line.children[i + 1];
    place.textContent = text;
    if (UNITS[i]) place.dataset.unit = UNITS[i];
  });
  line.children[1].className = `left how ${row.state}`;
  line.children[5].classList.add("left");
  if (row.source) line.children[6].title = `${row.source}, ${row.dated}`;
}
