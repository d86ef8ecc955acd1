// @ts-check
// An answer that is pinned, beside the one that is shown.

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
