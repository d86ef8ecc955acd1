// @ts-check
// The answer leaves the page: as text in the clipboard, and as a picture.

import { $, element, save } from "./dom.js";
import { ask, newest } from "./asking.js";
import { listedAs } from "./known.js";
import { page } from "./page.js";
import { toHash } from "./state.js";

const SAID = 2000;           // milliseconds that a button says what it did
const SHARP = 2;             // pixels of the picture for one of the drawing

/** Copies, and says so on the button. @param {any} button @param {string} text
 * @param {Element | null} select what is selected where the clipboard is closed */
export async function copy(button, text, select) {
  const before = button.dataset.says ?? button.textContent;
  button.dataset.says = before;
  const done = await copied(text);
  if (!done && select) getSelection()?.selectAllChildren(select);
  button.textContent = done ? "Copied" : select ? "Press Ctrl+C" : "Copy the address bar";
  setTimeout(() => { button.textContent = before; }, SAID);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {               // not https, or in a frame
    const place = element("textarea", { class: "hidden", "aria-hidden": "true", tabindex: "-1" });
    place.value = text;
    document.body.append(place);
    place.select();
    const done = document.execCommand("copy");
    place.remove();
    return done;
  }
}

/** What "Copy link" copies: of a page that only this computer can open, the answer itself.
 * @param {boolean} local @param {string} about @param {string} said @param {string} command */
export function shared(local, about, said, command) {
  return local ? `${about}: ${said}\n${command}` : addressToShare();
}

/** The address of the answer: its own page, with its picture for previews, where the build made one. */
function addressToShare() {
  const { config, latest, pinned } = page;
  const own = config.pages;
  if (!own || !latest || pinned) return location.href;
  const { model, gpu, ram } = latest.question;
  const plain = toHash(latest.question) === toHash({ model, gpu, ram });
  const has = plain && ram === own.ram && own.models.includes(model) && own.machines.includes(gpu);
  const listed = toHash(page.form.read()) === toHash({ gpu, ram }) ? listedAs({ gpu, ram }) : "";      // the best one of a machine
  const name = has ? `${model}-on-${gpu}` : listed && `best-${listed.replaceAll(",", "+")}`;
  return name ? new URL(`on/${name}.html`, location.href.replace(/[?#].*/, "")).href : location.href;
}

/** Saves the answer as a picture to post: what the terminal shows, as PNG, or SVG where that cannot be drawn. */
export async function savePicture() {
  if (!page.latest) return;
  const answer = await ask(newest(), "picture", page.latest.question);
  if (!answer || answer.error) return;
  const name = page.latest.question.model.split("/").pop();
  try {
    save(`${name}.png`, await png(answer.svg));
  } catch {
    save(`${name}.svg`, answer.svg);
  }
  $("picture").focus();
}

/** @param {string} svg @returns {Promise<Blob>} */
async function png(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = SHARP * image.width;
  canvas.height = SHARP * image.height;
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("no picture")))));
}
