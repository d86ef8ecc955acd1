// @ts-check
// From the form to the answer: the plan first, then the list of models, the reasons and the tables.

import { fail, show, showReasons } from "./answer.js";
import { ask, begun, busy, during, isNewest, newest, once } from "./asking.js";
import { showComparison, showYours } from "./compare.js";
import { drawCurve } from "./curve.js";
import { $ } from "./dom.js";
import { bestRow, isListed, jobOf, knownModels, listedAs } from "./known.js";
import { fileOf } from "./machines.js";
import { open } from "./opening.js";
import { opened, page } from "./page.js";
import { quantisations } from "./quantisations.js";
import { opensMore, toHash } from "./state.js";

// of an entry of the history whose question was asked here, by hand
const ASKED = { asked: true };
const KEPT = 50;                             // answers
const QUIET = 500;                           // milliseconds without a change before reasons are asked for
const answers = new Map();                   // with all their reasons, by the question
let timer = 0;

/** Asks anew. @param {boolean} step the address follows, and the back button returns to the one before
 * @param {number} [pause] milliseconds to wait for another change */
export function changed(step, pause = 0) {
  const { form, offer, pinned } = page;
  const state = form.read();
  form.sayMore(state);
  if (offer.here) $("ram").placeholder = state.gpu && state.gpu !== "none" ? "how much?" : "this machine's";
  const hash = toHash(state, pinned?.state);
  if (step && hash !== location.hash) history.pushState(ASKED, "", hash);
  else history.replaceState(ASKED, "");
  clearTimeout(timer);
  begun();
  busy("plan");
  timer = setTimeout(() => plan(form.read()), pause);
}

/** Whether the address names what is to be opened from this computer, and nobody here has asked for it.
 * @param {any} state */
export function isForeign(state) {
  return Boolean(page.offer.here && !history.state?.asked && opensMore(state, page.offer.models));
}

/** Shows a button in the answer's place. */
export function hold() {
  begun();
  busy("");
  fail({ error: "This question came with a link. To answer it, what it names is opened from this computer.",
         choices: [{ text: "Ask it", act: () => changed(false) }] });
}

/** Answers the form. @param {any} state @param {boolean} quiet the answer is shown already, and its reasons follow */
export function plan(state, quiet = false) {
  const mine = begun();
  return during(mine, quiet ? "reasons" : "plan", () => answered(mine, state, quiet));
}

async function answered(mine, state, quiet) {
  const written = quiet ? page.latest : await builtAnswer(state);
  const asked = written?.question ?? (state.model ? state : await withBest(mine, state));
  if (!asked) return;
  const found = await open(asked, mine);
  if (!isNewest(mine)) return;
  if (found.error) return fail(found);
  if (found.fill) filled({ ...asked, ...found.fill, model: found.name });
  const question = { ...asked, ...found.fill, model: found.name };
  const before = answers.get(JSON.stringify(question)) ?? null;
  const built = before ?? written?.answer ?? null;
  const answer = built ?? await ask(mine, "plan", question);
  if (!answer) return;
  // the engine was started anew, or has read too many since
  if (answer.kind === "NotOpened" && opened.delete(state.model)) return await plan(state);
  if (answer.error) return fail(withCards(answer));
  if (!quiet) show(answer, question);
  await showYours(mine, question);
  if (isListed(question)) once("known", mine, question, knownModels);
  await rest(mine, question, built !== null);
}

// Without a model the best one is planned.
async function withBest(mine, state) {
  const row = await bestRow(mine, state);
  if (row) return { ...state, for: jobOf(state), model: row.model, mmproj: row.mmproj ?? "" };
  if (isNewest(mine)) fail({ error: "No model of the list is known to run on this machine: name one.", field: "model" });
  return null;
}

// A pasted command becomes the form's fields, and the address has these.
function filled(state) {
  page.form.fill(state);
  history.replaceState(ASKED, "", toHash(page.form.read(), page.pinned?.state));
}

// The cards that a name could have meant, as buttons.
function withCards(answer) {
  const { form } = page;
  return { ...answer, choices: (answer.near ?? []).map((card) => ({ text: form.sold(card), act: () => form.setCards([card]) })) };
}

// What was computed when the page was built, with all its reasons: {question, answer}, or null.
async function builtAnswer(state) {
  const { gpu, ram } = state;
  const name = toHash(state) === toHash({ gpu, ram }) ? listedAs(state) : "";
  if (!name) return null;
  const found = await fetch(fileOf("answer", name)).catch(() => null);
  return found?.ok ? found.json() : null;
}

// What is not needed at once, in pieces, so that a change waits for at most one of them.
async function rest(mine, question, whole) {
  busy("reasons");
  await new Promise((done) => setTimeout(done, QUIET));
  if (!await pinnedAnswer(mine)) return;
  void once("known", mine, question, knownModels);      // between the others' calls: nothing waits for a list
  if (!whole && !await reasons(mine, question)) return;
  if (isNewest(mine)) await quantisations(mine, question);
  if (isNewest(mine)) for (const id of ["quants", "notes"]) $(id).style.minHeight = "";
  if (isNewest(mine) && $("curve-box").open) await once("curve", mine, question, drawCurve);
}

// The other answer of a link that compares; false where a newer question came.
async function pinnedAnswer(mine) {
  const { pinned } = page;
  if (pinned && !pinned.answer) {
    const answer = await ask(mine, "plan", pinned.state);
    if (!answer) return false;
    page.pinned = answer.error ? null : { ...pinned, answer };
    showComparison();
  }
  return isNewest(mine);
}

// One after the other, and the memory at other contexts first, for the slider.
async function reasons(mine, question) {
  const { latest } = page;
  let ahead = latest.answer.ahead;
  if (!ahead) {
    const answer = await ask(mine, "ahead", question);
    if (!answer) return false;
    ahead = answer.points ?? [];
    latest.answer.ahead = ahead;
  }
  for (;;) {
    const more = await ask(mine, "more", question);
    if (!more) return false;
    if (more.error) return true;
    if (more.done) break;
    page.latest = { answer: { ...more, ahead }, question };
    showReasons(more);
  }
  answers.set(JSON.stringify(question), page.latest.answer);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value);
  return true;
}

/** A table that was opened after the answer. @param {string} name
 * @param {(mine: number, question: any) => Promise<void>} make */
export async function again(name, make) {
  if (!page.latest) return;
  const mine = newest();
  await during(mine, "reasons", () => once(name, mine, page.latest.question, make));
}
