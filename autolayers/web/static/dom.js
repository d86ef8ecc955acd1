// @ts-check
// Elements of the page. Text is set as text, never as HTML: names come from files.

const WORDS = new Set(["", "Where", "Close to the original", "Pinned", "Now", "Yours", "This one"]);      // heads of columns of words
const SVG = "http://www.w3.org/2000/svg";

/** @param {string} id @returns {any} */
export const $ = (id) => document.getElementById(id);

/** @returns {any} */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

/** A button that acts. @param {string} text @param {() => void} act */
export function button(text, act) {
  const made = element("button", { type: "button" }, text);
  made.onclick = act;
  return made;
}

let explanations = 0;

/** A command whose flags stay on one line with their values. @param {string} command */
export function unbroken(command) {
  return command.split(/ (?=-\D)/).flatMap((flag, i) => [i ? " " : "", element("span", { class: "word" }, flag)]);
}

/** A word that explains itself when it is pressed. */
export function explained(word, about) {
  const id = `about-${explanations++}`;
  const asks = element("button", { type: "button", class: "word-button", popovertarget: id }, word);
  return element("span", { class: "explained" }, asks, element("span", { id, popover: "", class: "about" }, about));
}

/** A table of cells: heads, and rows whose first cell is their head. "" stands for a head that is only spoken.
 * @param {string[]} heads @param {any[]} lines @param {Record<string, string>} attributes */
export function table(heads, lines, attributes = {}, spoken = "Verdict") {
  const head = heads.map((title) => element("th", WORDS.has(title) ? { scope: "col", class: "left" } : { scope: "col" },
    title || element("span", { class: "hidden" }, spoken)));
  return element("table", attributes, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...lines));
}

/** What is under way, or "". @param {string} text */
export function status(text) {
  $("status").textContent = text;
}

/** Saves a file. @param {string} name @param {BlobPart} data */
export function save(name, data) {
  const blob = new Blob([data], { type: "application/octet-stream" });
  const link = element("a", { download: name, href: URL.createObjectURL(blob) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** What the browser keeps under a name, or null; `value` is kept first. @param {string} name @param {string} [value] */
export function kept(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}
