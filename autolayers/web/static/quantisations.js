// @ts-check
// Which quantisation: the files of a repository or the bundle, or types that the model could have, on this machine and
// at the context of the answer.

import { $, button, element, status, table } from "./dom.js";
import { ask, busy, isNewest, newest } from "./asking.js";
import { open } from "./opening.js";
import { opened, page, retake } from "./page.js";
import { rate, size, thousands } from "./words.js";

const SIGNS = { yes: "✓ fits", if: "? fits, slowly", no: "✗ does not fit" };
const LOSSES = { least: "almost the original", little: "good", noticeable: "noticeable loss", heavy: "heavy loss" };
const HEADS = ["File", "", "Tokens/s", "Size", "Close to the original", "Bits per weight", "Where", "Context"];
const HINT = "More bits per weight are closer to the original model.";

/** @typedef {{row: any, answer: any}} Line a row and its answer, null while it is computed */

/** Fills the table. @param {number} mine @param {any} question */
export async function quantisations(mine, question) {
  const model = opened.get(question.model) ?? opened.get(page.form.read().model);
  const at = page.latest.answer.plan.launch.n_ctx;
  const asked = { ...question, at: page.latest.answer.plan.fits ? at : 0 };
  if ((model?.models ?? []).length > 1) return ofRepository(mine, asked, model);
  $("quants-hint").textContent = "Computing…";
  const answer = await ask(mine, "rows", question);
  if (!answer || answer.error) {
    if (answer) $("quants-hint").textContent = "";
    return;
  }
  hint(asked.at, answer.rows.some((row) => row.as) ? "Estimates: as if all of this model had that type." : "");
  await fill(mine, asked, answer.rows.map((row) => ({ row, answer: null })));
}

// What was read already; the others are read where that is asked for.
async function ofRepository(mine, question, model) {
  const lines = model.models.map((file) => ({ row: { model: file.name, label: file.label, size: file.size, read: true }, answer: null }));
  for (const { row } of lines) {
    if (!opened.has(row.model) && row.model.endsWith(`/${model.file ?? ""}`)) row.model = question.model;
    row.read = !opened.has(row.model);
  }
  hint(question.at, "Every file of the repository.");
  const here = lines.filter(({ row }) => !row.read);
  await fill(mine, question, here);
  if (!isNewest(mine) || here.length === lines.length) return;
  draw(lines, question.model);
  $("read-all").hidden = false;
  $("read-all").textContent = `Plan all ${lines.length} files (reads the first megabytes of each)`;
  $("read-all").onclick = async () => {
    $("read-all").hidden = true;
    busy("reasons");
    await fill(newest(), question, lines);
    if (isNewest(mine)) busy("");
  };
}

function hint(context, more) {
  const same = context ? `All at ${thousands(context)} of context, the answer's; a click on one chooses its own.` : "";
  $("quants-hint").textContent = [same, HINT, more].filter(Boolean).join(" ");
}

// Row by row; a row's button plans it.
async function fill(mine, question, lines) {
  draw(lines, question.model);
  for (const line of lines) {
    if (line.answer) continue;
    if (line.row.read) {
      const found = await open({ model: line.row.model }, mine);
      if (!isNewest(mine)) return;
      if (found.error) line.answer = found;
    }
    const own = isShown(line.row, question.model) ? { at: 0 } : {};
    const answer = line.answer ?? await ask(mine, "row", { ...question, ...line.row, ...own });
    if (!answer) return;
    line.answer = answer;
    draw(lines, question.model);
  }
  status("");
}

/** @param {Line[]} lines @param {string} chosen */
function draw(lines, chosen) {
  const place = $("quants");
  const held = place.contains(document.activeElement) ? document.activeElement?.textContent : null;
  place.replaceChildren(table(HEADS, lines.map((line) => drawnLine(line, chosen))));
  if (held) [...place.querySelectorAll("button")].find((one) => one.textContent === held)?.focus();
}

/** @param {Line} line @param {string} chosen */
function drawnLine({ row, answer }, chosen) {
  const here = isShown(row, chosen);
  const name = row.as || answer?.error ? element("span", {}, row.label) : button(row.label, () => retake(row.model));
  const head = element("th", { scope: "row" }, name, ...(row.as ? [" ", element("small", {}, "estimate")] : []));
  const cells = !answer || answer.error ? waitingCells(row, answer) : cellsOf(answer);
  return element("tr", here ? { class: "here", "aria-current": "true" } : {}, head, ...cells);
}

function isShown(row, chosen) {
  return row.model === chosen && !row.as;
}

function waitingCells(row, answer) {
  return [element("td", { colspan: "2", class: "left" }, answer ? answer.error : "…"),
          element("td", {}, row.size ? size(row.size) : ""), element("td", { colspan: "4" })];
}

function cellsOf(answer) {
  const sign = answer.needed ? `? fits if ${size(answer.needed)} of RAM are free` : SIGNS[answer.state];
  const quality = answer.quality;
  const usual = quality ? { title: `KL divergence from the original, usual for ${quality.type}: ${quality.least} to ${quality.most}` } : {};
  const left = { class: "left" };
  return [element("td", { class: `left how ${answer.state}` }, sign), number(answer.rate && rate(answer.rate), "tokens/s"),
          element("td", {}, size(answer.size)), element("td", { ...left, ...usual }, LOSSES[answer.loss] ?? "–"),
          number(answer.bits.toFixed(1), "bits per weight"), element("td", left, answer.where),
          number(answer.context && thousands(answer.context), "context")];
}

// A cell whose unit is said where the heads are not shown, on a phone.
function number(text, unit) {
  return element("td", text ? { "data-unit": unit } : { class: "none" }, text || "–");
}
