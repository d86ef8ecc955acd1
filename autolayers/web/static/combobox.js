// @ts-check
// A text field with a list, by the ARIA pattern "combobox with list autocomplete".

import { element } from "./dom.js";

/** @typedef {{value: string, label?: string, note?: string, choose?: () => void}} Option */

let made = 0;

/** @param {HTMLInputElement} input
 * @param {(text: string, whole: boolean) => Option[]} find the options for a text; `whole`: nothing was typed yet
 * @param {(value: string) => void} chosen
 * @param {boolean} first Enter without a choice takes the first option that is a value */
export function combobox(input, find, chosen, first = false) {
  const id = `list-${made++}`;
  const list = element("ul", { id, role: "listbox", class: "options", "aria-label": input.getAttribute("aria-label") ?? "Suggestions" });
  list.hidden = true;
  /** @type {Option[]} */
  let options = [];
  let at = -1, typed = false;
  for (const [key, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false",
                                              "aria-controls": id, autocomplete: "off", spellcheck: "false" })) {
    input.setAttribute(key, value);
  }
  input.after(list);

  function close() {
    list.hidden = true;
    at = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function open() {
    options = find(input.value.trim(), !typed);
    list.replaceChildren(...options.map((option, i) => {
      const item = element("li", { role: "option", id: `${id}-${i}`, "aria-selected": "false" }, option.label ?? option.value);
      if (option.note) item.append(" ", element("small", {}, option.note));
      item.onpointerdown = (event) => event.preventDefault();
      item.onclick = () => take(i);
      return item;
    }));
    list.hidden = !options.length;
    at = -1;
    input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-expanded", String(!list.hidden));
  }

  function mark(next) {
    if (list.hidden) open();
    if (!options.length) return;
    list.children[at]?.setAttribute("aria-selected", "false");
    at = (next + options.length) % options.length;
    const item = list.children[at];
    item.setAttribute("aria-selected", "true");
    item.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", item.id);
  }

  function take(i) {
    const option = options[i];
    close();
    typed = false;
    if (option.choose) {
      option.choose();
      return;
    }
    input.value = option.value;
    chosen(option.value);
  }

  input.addEventListener("focus", () => input.select());
  input.addEventListener("click", () => { if (list.hidden) open(); });
  input.addEventListener("input", () => {
    typed = true;
    open();
  });
  input.addEventListener("blur", () => {
    typed = false;
    close();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") mark(at + 1);
    else if (event.key === "ArrowUp") mark(at < 0 ? options.length - 1 : at - 1);
    else if (event.key === "Enter" && at >= 0) take(at);
    else if (event.key === "Enter" && first && typed && !list.hidden && !options[0]?.choose && input.value.trim()) take(0);
    else if (event.key === "Enter") close();
    else if (event.key === "Escape" && !list.hidden) close();
    else return;
    if (event.key !== "Enter" || at >= 0) event.preventDefault();
  });
  return { open: () => { input.focus(); open(); } };
}
