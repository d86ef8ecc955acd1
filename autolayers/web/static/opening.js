// @ts-check
// Models by name: known ones, files and addresses that were opened, and a search of the Hub.

import { element, $, button, status } from "./dom.js";
import { fail } from "./answer.js";
import { ask, isNewest } from "./asking.js";
import { matching } from "./form.js";
import { addAddress, searchHub } from "./models.js";
import { choose, opened, page } from "./page.js";

const inHub = new Map();                     // what a search found, by the words
const FILE = /^[^/\\:]+\.gguf( \(\d+ parts\))?$/i;

/** Makes the engine know the model, however it was named: {name} or {error, choices}.
 * @param {{model: string}} state @param {number} mine */
export async function open(state, mine) {
  const typed = state.model, { offer } = page;
  if (!typed) return { error: "choose a model, or drop a .gguf file", field: "model" };
  if (opened.has(typed)) return { name: opened.get(typed).model.name };
  if (offer.models.includes(typed)) return { name: typed };
  const { name, near } = await ask(mine, "name", { name: typed }) ?? {};
  if (!isNewest(mine)) return {};
  if (!name) return unknown(typed, near ?? []);
  if (opened.has(name) || offer.models.includes(name)) return { name: opened.get(name)?.model.name ?? name };
  status(`Reading the header of ${name}…`);
  const answer = offer.opens ? await ask(mine, "open", { name }) : await addAddress(page.engine, name, offer.first_slice);
  if (!answer) return {};
  if (answer.error) return { ...answer, field: "model" };
  opened.set(name, answer);
  opened.set(typed, answer);
  return { name: answer.model.name };
}

function unknown(typed, near) {
  if (FILE.test(typed)) return { error: `“${typed}” is a file on a computer: drop it on this page`, field: "model" };
  const choices = near.map((name) => ({ text: name, act: () => choose(name) }));
  choices.push({ text: `Search huggingface.co for “${typed}”`, act: () => searchFor(typed) });
  return { error: near.length ? `“${typed}”: which one?` : `“${typed}” is no known model`, field: "model", choices };
}

/** Only when it is asked for: typing is not sent. @param {string} words */
export async function searchFor(words) {
  status(`Searching huggingface.co for ${words}…`);
  const found = await searchHub(words);
  status("");
  const models = found.models ?? [];
  inHub.set(words, models);
  if (found.error) return fail({ error: found.error, field: "model" });
  const said = models.length ? `GGUF repositories with “${words}”:` : `huggingface.co has no GGUF repository with “${words}”.`;
  const lines = models.map(({ name, note }) => element("li", {}, button(name, () => choose(name)), ` ${note}`));
  $("error").replaceChildren(element("p", {}, said), element("ul", { class: "choices" }, ...lines));
}

/** What the list below the model's field offers. @param {string} typed @param {boolean} whole nothing was typed yet */
export function modelOptions(typed, whole) {
  const { models, names } = page.offer;
  const usual = (name) => Number(name.includes("q4_k_m"));
  const options = [...[...opened.values()].map(({ model }) => ({ value: model.name, note: "opened" })),
                   ...[...models].sort((a, b) => usual(b) - usual(a)).map((value) => ({ value, note: names[value] }))];
  const found = whole ? options : matching(options, typed);
  const hub = (inHub.get(typed) ?? []).map(({ name, note }) => ({ value: name, note }));
  const searches = !whole && typed.length > 2 && !/^https?:/.test(typed);
  const search = searches ? [{ value: typed, label: `Search huggingface.co for “${typed}”`, choose: () => searchFor(typed) }] : [];
  return [...hub, ...found.filter((option, i) => found.findIndex((other) => other.value === option.value) === i), ...search];
}
