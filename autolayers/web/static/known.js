// @ts-check
// What a machine runs: the list that the build computed for its card, its filters, and its table, updated in place.

import { element } from "./charts.js";
import { rate, size, thousands } from "./words.js";

const SIGNS = { yes: "fits", if: "slow, or RAM unknown", no: "does not fit" };

/** The rows that the build wrote for this card, or null. @param {any} config @param {any} question */
export async function listOf(config, question) {
  const card = question.machine ? "" : question.gpu || "none";
  if (!config.lists?.includes(card)) return null;
  const answer = await fetch(`known-${card}.json`).catch(() => null);
  return answer?.ok ? (await answer.json()).rows : null;
}

/** Those that are wanted: the largest first, and what writes too slowly to read along, or does not fit, below.
 * @param {any[]} rows @param {{context: number, rate: number, vision: boolean, coding: boolean}} wanted */
export function filtered(rows, wanted) {
  const order = ["yes", "if", "", "no"];
  const kept = rows.filter((row) => !row.state || ((row.context ?? 0) >= wanted.context && (row.rate ?? 0) >= wanted.rate))
    .filter((row) => (!wanted.vision || row.vision) && (!wanted.coding || row.coding));
  return kept.sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state) || (b.size ?? 0) - (a.size ?? 0));
}

/** The table in its place: a row of a model stays the same element, so that the focus stays.
 * @param {HTMLElement} place @param {any[]} rows @param {string} chosen @param {Record<string, string>} names
 * @param {(model: string) => void} choose */
export function knownTable(place, rows, chosen, names, choose) {
  if (!place.firstChild) {
    const heads = ["Model", "", "Tokens/s", "Context", "Size", "Where"].map((title) => element("th", { scope: "col" },
      title || element("span", { class: "hidden" }, "Verdict")));
    place.append(element("table", { class: "known" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody")));
  }
  const body = /** @type {HTMLElement} */ (place.querySelector("tbody"));
  const before = new Map([...body.children].map((row) => [/** @type {HTMLElement} */ (row).dataset.model, row]));
  const held = document.activeElement;
  const drawn = rows.map((row) => {
    const line = before.get(row.model) ?? newRow(row.model, names[row.model] ?? row.model, choose);
    fill(line, row, row.model === chosen);
    return line;
  });
  for (const [at, line] of drawn.entries()) if (body.children[at] !== line) body.insertBefore(line, body.children[at] ?? null);
  while (body.children.length > drawn.length) body.lastChild?.remove();
  if (held instanceof HTMLElement && body.contains(held) && document.activeElement !== held) held.focus();
}

function newRow(model, name, choose) {
  const button = element("button", { type: "button" }, name);
  button.onclick = () => choose(model);
  const line = element("tr", {}, element("th", { scope: "row" }, button), ...Array.from({ length: 5 }, () => element("td")));
  line.dataset.model = model;
  return line;
}

function fill(line, row, here) {
  line.classList.toggle("here", here);
  line.classList.toggle("faint", row.state === "if" || row.state === "no");
  const texts = row.state ? [SIGNS[row.state], row.rate ? rate(row.rate) : "\u2013", row.context ? thousands(row.context) : "\u2013",
                             size(row.size), row.where] : ["\u2026", "", "", "", ""];
  texts.forEach((text, i) => { line.children[i + 1].textContent = text; });
  line.children[1].className = `left how ${row.state}`;
  line.children[5].className = "left";
}
