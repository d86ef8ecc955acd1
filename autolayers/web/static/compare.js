// @ts-check
// An answer that is pinned, beside the one that is shown.

import { ask } from "./asking.js";
import { $, element, table, unbroken } from "./dom.js";
import { bars } from "./bars.js";
import { page, subject } from "./page.js";
import { toHash } from "./state.js";
import { rate, size, thousands } from "./words.js";

/** @type {[string, (answer: any) => string][]} */
const LINES = [
  ["Verdict", (a) => a.verdict.title],
  ["Tokens/s", (a) => rate(a.plan.speed.generation_tokens_per_second)],
  ["Prompt tokens/s", (a) => rate(a.plan.speed.prompt_tokens_per_second)],
  ["Context", (a) => thousands(a.plan.launch.n_ctx)],
  ["Where", (a) => a.plan.placement],
  ["GPU memory", (a) => size(a.plan.devices.reduce((sum, d) => sum + d.used, 0))],
  ["RAM", (a) => size(a.plan.host.needed)],
  ["Command", (a) => a.command.bash]];

/** The launch of a pasted command beside the answer. @param {number} mine @param {any} question */
export async function showYours(mine, question) {
  $("mine").hidden = true;
  if (!question.yours) return;
  const answer = await ask(mine, "yours", question);
  if (!answer) return;
  $("mine").hidden = false;
  if (answer.error) return $("mine").replaceChildren(element("p", { class: "problem" }, `yours: ${answer.error}`));
  const lines = answer.rows.map(([what, yours, best]) => element("tr", yours === best ? {} : { class: "changed" },
    element("th", { scope: "row" }, what.trim()), element("td", { class: "left" }, yours), element("td", { class: "left" }, best)));
  const both = answer.is_better ? [table(["", "Yours", "This one"], lines, { class: "words" }, "What")] : [];
  $("mine").replaceChildren(element("p", {}, element("strong", {}, `${answer.text}.`), ` Yours: ${question.yours}`), ...both);
}

/** Keeps the answer beside the next ones. */
export function pin() {
  const { latest, form } = page;
  if (!latest) return;
  page.pinned = { state: latest.question, answer: latest.answer };
  history.replaceState(history.state, "", toHash(form.read(), page.pinned.state));
  showComparison();
  $("compare").scrollIntoView({ block: "nearest" });
}

export function unpin() {
  page.pinned = null;
  history.replaceState(history.state, "", toHash(page.form.read()));
  showComparison();
}

export function showComparison() {
  const { latest, pinned } = page;
  $("compare").hidden = !pinned?.answer || !latest;
  if (!pinned?.answer || !latest) return;
  $("pinned-bars").replaceChildren(title(pinned.state, pinned.answer.plan), bars(pinned.answer.plan));
  $("now-bars").replaceChildren(title(latest.question, latest.answer.plan), bars(latest.answer.plan));
  $("comparison").replaceChildren(comparison(pinned.answer, latest.answer));
}

function title(question, plan) {
  return element("p", {}, subject(question, plan));
}

// With what differs.
function comparison(before, now) {
  const lines = LINES.map(([name, of]) => {
    const [first, second] = [of(before), of(now)];
    const cells = [first, second].map((text) => element("td", {}, ...(name === "Command" ? unbroken(text) : [text])));
    return element("tr", first === second ? {} : { class: "changed" }, element("th", { scope: "row" }, name), ...cells);
  });
  return table(["", "Pinned", "Now"], lines, { class: "words" }, "What");
}
