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

/** Makes the engine know the model, however it was named: {name} or {error, choices}; of a pasted command also `fill`,
 * the fields that it fills.
 * @param {{model: string}} state @param {number} mine */
export async function open(state, mine) {
  const typed = state.model, { offer } = page;
  if (opened.has(typed)) return { name: opened.get(typed).model.name };
  if (offer.models.includes(typed)) return { name: typed };
  const { name, near, fill } = await ask(mine, "name", { name: typed }) ?? {};
  if (!isNewest(mine)) return {};
  // a command's file is on another computer: the one model with its name is meant
  const only = fill && near?.length === 1 ? near[0] : name;
  if (!only) return unknown(typed, near ?? [], fill);
  if (opened.has(only) || offer.models.includes(only)) return { name: opened.get(only)?.model.name ?? only, fill };
  status(`Reading the header of ${name}…`);
  const answer = offer.opens ? await ask(mine, "open", { name }) : await addAddress(page.engine, name, offer.first_slice);
  if (!answer) return {};
  if (answer.error) return { ...answer, field: "model", choices: await instead(mine, name, fill) };
  opened.set(name, answer);
  opened.set(typed, answer);
  return { name: answer.model.name, fill };
}

// A repository without GGUF files: those that somebody made of it.
async function instead(mine, name, fill) {
  const plain = name.startsWith("hf:") ? name.slice(3).split(/[/:@]/)[1] : "";
  if (!plain) return [];
  const { near = [] } = await ask(mine, "name", { name: plain }) ?? {};
  return choicesOf(plain, near, fill);
}

function choicesOf(words, near, fill) {
  const choices = near.map((name) => ({ text: name, act: () => choose(name, "", fill) }));
  return [...choices, { text: `Search huggingface.co for “${words}”`, act: () => searchFor(words) }];
}

function unknown(typed, near, fill) {
  if (FILE.test(typed)) return { error: `“${typed}” is a file on a computer: drop it on this page`, field: "model" };
  const words = fill ? fill.path.split("/").pop() : typed;
  return { error: near.length ? `“${words}”: which one?` : `“${words}” is no known model`, field: "model",
           choices: choicesOf(words.replace(/\.gguf$/i, ""), near, fill) };
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
  const best = { value: "", label: "The best for this computer" };
  const options = [best, ...[...opened.values()].map(({ model }) => ({ value: model.name, note: "opened" })),
                   ...[...models].sort((a, b) => usual(b) - usual(a)).map((value) => ({ value, note: names[value] }))];
  const found = whole ? options : matching(options, typed);
  const hub = (inHub.get(typed) ?? []).map(({ name, note }) => ({ value: name, note }));
  const searches = !whole && typed.length > 2 && !/^https?:/.test(typed);
  const search = searches ? [{ value: typed, label: `Search huggingface.co for “${typed}”`, choose: () => searchFor(typed) }] : [];
  return [...hub, ...found.filter((option, i) => found.findIndex((other) => other.value === option.value) === i), ...search];
}
