// @ts-check
// Questions have numbers. What belongs to an older one is neither asked any more nor shown.

import { page } from "./page.js";

let number = 0;              // of the newest question
let turnOf = -1;             // the question whose calls stand in the row
/** @type {Promise<unknown>} */ let turn = Promise.resolve();

/** A new question's number. */
export function begun() {
  return ++number;
}

export function newest() {
  return number;
}

/** @param {number} mine */
export function isNewest(mine) {
  return mine === number;
}

/** The engine's answer, or null if a newer question came before it was asked or answered. The calls of one question
 * stand in a row; those of a newer one do not wait for them.
 * @param {number} mine @param {string} method @param {object} question */
export function ask(mine, method, question) {
  if (turnOf !== mine) turn = Promise.resolve();
  turnOf = mine;
  const answer = turn.then(() => (mine === number ? page.engine.call(method, question) : null));
  turn = answer.catch(() => null);
  return answer.then((found) => (mine === number ? found : null));
}

/** What is under way: "plan", "reasons", or "". @param {string} what */
export function busy(what) {
  document.body.dataset.asking = what || "false";
}

const done = new Map();

/** Makes a table once for each question, however often it is asked for.
 * @param {string} name @param {number} mine @param {object} question
 * @param {(mine: number, question: any) => Promise<void>} make */
export async function once(name, mine, question, make) {
  if (done.get(name) === mine) return;
  done.set(name, mine);
  await make(mine, question);
}
