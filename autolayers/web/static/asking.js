// @ts-check
// Questions have numbers. What belongs to an older one is neither asked any more nor shown.

import { page } from "./page.js";

let number = 0;              // of the newest question
let working = 0;             // tasks of it that are under way
let turnOf = -1;             // the question whose calls stand in the row
/** @type {Promise<unknown>} */ let turn = Promise.resolve();

/** A new question's number. */
export function begun() {
  working = 0;
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

/** Says what is under way until the last task of the newest question has ended.
 * @param {number} mine @param {string} what @param {() => Promise<void>} act */
export async function during(mine, what, act) {
  if (!working++) busy(what);
  try {
    await act();
  } finally {
    if (isNewest(mine) && !--working) busy("");
  }
}

/** @type {Map<string, {mine: number, made: Promise<void>}>} */ const tables = new Map();

/** Makes a table once for each question, however often it is asked for.
 * @param {string} name @param {number} mine @param {object} question
 * @param {(mine: number, question: any) => Promise<void>} make */
export function once(name, mine, question, make) {
  const before = tables.get(name);
  if (before?.mine === mine) return before.made;
  const made = make(mine, question);
  tables.set(name, { mine, made });
  return made;
}
