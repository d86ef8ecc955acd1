// @ts-check
// The form's GPUs, and the list of models that the build computed for them or for a smaller machine.

import { soldAs } from "./words.js";

const SIZE = /^(\d{1,3}(?:\.\d+)?) *(?:g|gb|gib)?$/;
const PREFIXES = ["", "rtx", "gtx", "rx", "apple"];

/** @typedef {{name: string, description: string, gib: number, ram?: number}} Card */

/** The form's GPUs as names of cards and sizes: "2x rtx 3060, 24gb" is rtx-3060,rtx-3060,24.
 * @param {string} gpu @param {Card[]} cards @returns {string[]} */
export function canonical(gpu, cards) {
  return gpu.toLowerCase().split(",").map((part) => part.trim()).filter(Boolean).flatMap((part) => {
    const [, count, what] = part.match(/^(?:(\d{1,2}) *[x×] *)?(.*)$/) ?? ["", "", part];
    return Array(Number(count || 1)).fill(one(what.trim(), cards));
  });
}

function one(what, cards) {
  const size = what.match(SIZE);
  if (size) return size[1];
  const typed = PREFIXES.map((prefix) => prefix + plain(what));
  const found = cards.find((card) => [card.name, soldAs(card), card.description].some((name) => typed.includes(plain(name))));
  return found?.name ?? what;
}

function plain(text) {
  return text.toLowerCase().replace(/[^a-z0-9]/g, "");
}

/** {name, same} of the list for these GPUs and this RAM, else of the largest machine that is no larger; null if there is none.
 * @param {string[]} lists machines that have one: GPUs, and @RAM where it is not the usual @param {string} gpu @param {Card[]} cards
 * @param {string} ram @param {string} usual */
export function nearestList(lists, gpu, cards, ram = "", usual = "") {
  const names = canonical(gpu, cards);
  const own = names.join(",") || "none";
  const exact = ram && ram !== usual ? `${own}@${ram}` : own;
  if (lists.includes(exact)) return { name: exact, same: true };
  if (lists.includes(own)) return { name: own, same: false };
  const known = names.map((name) => cards.find((card) => card.name === name) ?? { name, description: name, gib: Number(name), ram: 0 });
  const maker = known.find((card) => card.ram)?.description.split(" ")[0];
  const memory = Math.ceil(known.reduce((sum, card) => sum + (card.ram || card.gib), 0));
  if (!memory) return null;
  const sizes = lists.map((name) => ({ name, gib: sizeOf(name, cards, maker) })).filter(({ gib }) => gib && gib <= memory);
  const nearest = sizes.sort((a, b) => b.gib - a.gib)[0];
  return nearest ? { name: nearest.name, same: false } : null;
}

/** A file of the build for a listed machine: its rows ("known"), or its answer. @param {string} kind @param {string} name */
export function fileOf(kind, name) {
  return `${kind}-${name.replaceAll(",", "+")}.json`;
}

// Of a list: a bare size, or the memory of a machine of that maker whose GPU shares it.
function sizeOf(name, cards, maker) {
  if (!maker) return Number(name) || 0;
  const card = cards.find((one) => one.name === name);
  return card?.description.startsWith(`${maker} `) ? card.ram ?? 0 : 0;
}
