// @ts-check
// The answer that is shown: verdict, command, bars, layers, reasons; or an error, which stands alone.

import { ask, newest } from "./asking.js";
import { bars, between, byteTable, strip } from "./bars.js";
import { showComparison } from "./compare.js";
import { $, button, element, kept, status, unbroken } from "./dom.js";
import { opened, page, subject } from "./page.js";
import { quoted, rate, sentence, size, thousands } from "./words.js";

const FIELD_OF = { "-c": "ctx", "--ctx": "ctx", "-np": "np", "-ctk": "ctk", "-ctv": "ctv", "-ub": "ub", "-fa": "fa" };
const SHOWN = ["answer", "result"];
const LAUNCHERS = [["llama.cpp", ""], ["Ollama", "ollama"], ["LM Studio", "lm-studio"], ["Docker", "docker"]];
let launcher = "";           // the format of what is shown in the command's place

/** An error: nothing of an older question is beside it. `choices`: what could have been meant.
 * @param {{error: string, field?: string, choices?: {text: string, act: () => void}[]}} problem */
export function fail({ error, field = "", choices = [] }) {
  status("");
  page.latest = null;
  document.body.classList.remove("unanswered");
  for (const id of SHOWN) $(id).hidden = true;
  document.title = "autolayers";
  page.form?.error(field, error);
  const buttons = choices.map(({ text, act }) => button(text, act));
  $("error").replaceChildren(element("p", { class: "problem" }, error), ...(buttons.length ? [element("p", {}, ...buttons)] : []));
}

/** @param {any} answer @param {any} question */
export function show(answer, question) {
  status("");
  const { form, latest } = page;
  const before = latest?.answer.plan ?? null;
  page.latest = { answer, question };
  form.error("", "");
  $("error").replaceChildren();
  document.body.classList.remove("unanswered");
  for (const id of SHOWN) $(id).hidden = false;
  const { plan, verdict } = answer;
  form.longest = plan.model.n_ctx_train || 131072;
  form.slide();
  form.showProjector(question);
  showVerdict(answer, question);
  showCommand();
  $("bars").replaceChildren(bars(plan, before));
  $("strip").replaceChildren(...strip(answer.layers));
  $("bytes").replaceChildren(byteTable(plan));
  $("speed").textContent = speedWords(plan);
  $("model-facts").textContent = facts(plan.model, opened.get(question.model));
  if (verdict.state === "no") $("bars").after($("notes"), $("also"));      // what would fit, before the command that fails
  else {
    $("quants-box").after($("notes"));
    $("answer").after($("also"));
  }
  for (const id of ["quants", "notes"]) $(id).style.minHeight = `${$(id).offsetHeight}px`;      // until they are filled again
  for (const id of ["curve", "quants", "file-notes"]) $(id).replaceChildren();
  $("file-text").hidden = true;
  $("quants-hint").textContent = "";
  $("read-all").hidden = true;
  showReasons(answer);
  showComparison();
}

function showVerdict({ plan, verdict, get }, question) {
  const said = sentence(verdict);
  $("announced").textContent = said;      // a screen reader hears that there is an answer
  $("verdict").replaceChildren(element("span", { class: "sign" }, verdict.title), verdict.parts.length ? `. ${verdict.parts.at(-1)}.` : ".");
  $("verdict").className = verdict.state;
  $("answer").className = `best ${verdict.state}`;
  const about = subject(question, plan), [name, machine] = about.split(/ on (.*)/);
  $("subject").replaceChildren(name, element("small", {}, ` on ${machine}`));
  document.title = `${verdict.title}: ${about} – autolayers`;
  $("numbers").replaceChildren(...verdict.numbers.map(([value, unit]) => element("div", {}, element("dd", {}, value), element("dt", {}, unit))));
  $("plain").textContent = verdict.plain;
  $("assumed").textContent = [verdict.assumed && `Predicted: ${verdict.assumed}.`, measuredWords(plan)].filter(Boolean).join(" ");
  $("get-model").hidden = !get;
  if (get) $("get-model").href = get;
  const near = page.offer.names[question.model] ? "about " : "";      // the repository's conversion may be another one
  $("get-model").textContent = `get the model (${near}${size(plan.model.size)})`;
}

function measuredWords(plan) {
  const rows = Array.isArray(plan.measured) ? plan.measured : plan.measured ? [plan.measured] : [];
  return rows.map((row) => ({ found: row.generation_tokens_per_second ?? row.tokens_per_second, source: row.source }))
    .filter(({ found }) => found).map(({ found, source }) => `Measured: ${rate(found)} tokens/s${source ? ` (${source})` : ""}.`).join(" ");
}

function facts(model, found) {
  return [`${model.name || model.path}: ${model.architecture}, ${size(model.size)}, ${model.n_layer} layers, trained for ${thousands(model.n_ctx_train)} of context`,
          ...(found?.model?.warnings ?? []), ...(found?.notes ?? [])].join(". ");
}

function speedWords({ speed, placement, launch, exact }) {
  const slots = launch.n_seq_max > 1 ? `, ${launch.n_seq_max} slots` : "";
  return `${placement}, context ${launch.n_ctx}${slots}. ${exact ? "Sizes are exact to the byte." : "Sizes are upper bounds, not exact."}`
    + (speed ? ` Speed is predicted, not measured, within a factor of ${speed.uncertainty_factor}: ${rate(speed.generation_tokens_per_second)} tokens/s, `
      + `${rate(speed.generation_tokens_per_second_full_context)} with a full context; prompts ${rate(speed.prompt_tokens_per_second)} tokens/s.` : "");
}

/** What is known of the answer so far. @param {any} answer */
export function showReasons(answer) {
  const { plan, instead = [], remedies = [], verdict, faster = null } = answer;
  $("faster").replaceChildren(...(faster ? tried(faster.flags, faster.words, faster.change) : []));
  $("notes").replaceChildren(
    ...listed(verdict.state === "no" ? "What would make it fit" : "What you could change", [
      ...remedies.map(({ flags, change, words }) => element("li", {}, ...tried(flags, words, change))),
      ...instead.map(({ flags, change, buys }) => element("li", {}, ...tried(flags, `${quoted(change)}: ${buys}`, change))),
      ...(plan.fit ? [element("li", {}, fitWords(plan.fit))] : [])], "why"),
    ...listed("Good to know", plan.warnings.map((line) => element("li", {}, line)), "warning"),
    ...listed("Why this plan", plan.reasons.map((line) => element("li", {}, line)), "why"));
}

function fitWords({ placement, n_ctx, speed, fits }) {
  return `llama-server's own choice (--fit) would be ${placement}, context ${n_ctx}, ${rate(speed.generation_tokens_per_second)} tokens/s`
    + (fits ? "" : "; that breaks these margins");
}

function listed(title, items, kind) {
  return items.length ? [element("h3", {}, title), element("ul", { class: kind }, ...items)] : [];
}

// The words, whose flags are not broken, after a button if flags can be tried: all of a launch, which change these.
function tried(flags, words, change) {
  if (!flags.length) return [words];
  const tries = button("Try", () => use(flags));
  tries.setAttribute("aria-label", `Try ${quoted(change)}`);
  const whole = (word) => (word.startsWith("-") ? element("span", { class: "word" }, word) : word);
  return [tries, ...words.split(" ").flatMap((word) => [" ", whole(word)])];
}

function use(flags) {
  const { form } = page;
  const state = form.read(), others = [];
  for (let i = 0; i < flags.length; i++) {
    const field = FIELD_OF[flags[i]];
    if (field) state[field] = flags[++i] ?? "";
    else others.push(flags[i]);
  }
  state.flags = quoted(others);                 // all of that launch: none of before stays
  form.fill(state);
  form.changed(true);
}

/** For the chosen program, and shell. */
export async function showCommand() {
  const { latest } = page;
  if (!latest) return;
  for (const tab of $("launchers").children) tab.setAttribute("aria-pressed", String(tab.dataset.format === launcher));
  $("shell").hidden = Boolean(launcher);
  $("command-notes").replaceChildren();
  if (!launcher) return $("command").replaceChildren(...unbroken(latest.answer.command[$("shell").value]));
  $("command").textContent = "…";
  const answer = await ask(newest(), "file", { ...latest.question, format: launcher });
  if (!answer || page.latest !== latest) return;
  $("command").textContent = answer.text ?? answer.error;
  $("command-notes").replaceChildren(...(answer.notes ?? []).map((note) => element("li", {}, note)));
}

/** The bars at another context, while its slider is dragged: as placed now, until the plan for it comes.
 * @param {number} context */
export function preview(context) {
  const { latest } = page;
  const points = latest?.answer.ahead ?? [];
  if (!points.length || !context) return;
  $("bars").replaceChildren(bars(between(points, context), latest.answer.plan));
}

/** The shell of this system, as it was chosen before. */
export function chooseShell() {
  if (kept("shell") || /Windows/.test(navigator.userAgent)) $("shell").value = kept("shell") ?? "powershell";
  $("launchers").append(...LAUNCHERS.map(([name, format]) => {
    const tab = button(name, () => {
      launcher = format;
      showCommand();
    });
    tab.dataset.format = format;
    return tab;
  }));
  $("shell").onchange = () => {
    kept("shell", $("shell").value);
    showCommand();
  };
}
