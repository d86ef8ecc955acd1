// @ts-check
// What the parts of the page share: who answers, what is offered, the form, and the answer that is shown.

export const page = {
  /** @type {any} */ engine: null,
  /** @type {any} */ offer: null,
  /** @type {import("./form.js").Form | any} */ form: null,
  /** @type {any} */ latest: null,        // {question, answer} that is shown
  /** @type {any} */ pinned: null,        // {state, answer} that is compared with it
  /** @type {any} */ config: {},
};

/** Models that were opened, by name. @type {Map<string, any>} */
export const opened = new Map();

/** Plans another model on this machine. @param {string} name @param {string} [mmproj] its projector
 * @param {object} [fill] other fields, of a pasted command */
export function choose(name, mmproj = "", fill = {}) {
  page.form.fill({ ...page.form.read(), path: "", yours: "", ...fill, model: name, mmproj, draft: "" });
  page.form.changed(true);
  document.getElementById("subject")?.scrollIntoView({ block: "nearest" });      // the answer, from a list far below it
}

/** Plans another file of the same model, which keeps its projector. @param {string} name */
export function retake(name) {
  page.form.fill({ ...page.form.read(), path: "", model: name });
  page.form.changed(true);
}

/** What an answer is about, so that a picture or a print of it says so. @param {any} question @param {any} plan */
export function subject(question, plan) {
  const { gpu, ram, machine, model } = question;
  const nothing = page.offer.here && gpu !== "none" ? "this machine" : "the CPU";
  const named = machine ? plan.devices.map((device) => device.description).join(", ") : gpu === "none" ? "" : page.form.sold(gpu);
  return `${product(model)} on ${named || nothing}${ram ? `, ${ram.replace(/^(\d+)$/, "$1 GB")} of RAM` : ""}`;
}

/** A model as people call it. @param {string} name */
export function product(name) {
  return page.offer.names[name] ?? name.split("/").pop();
}
