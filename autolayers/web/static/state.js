// @ts-check
// The question as the page's address has it: #model=...&gpu=...&ctx=..., so that a plan is shared by its link.

export const FIELDS = ["model", "path", "mmproj", "draft", "machine", "gpu", "ram", "for", "yours", "ctx", "np", "ctk", "ctv", "ub", "fa",
                       "strategy", "workload", "flags"];
const SECRET = /(--api-key|--hf-token|-hft)(\s+|=)(?:"[^"]*"|'[^']*'|\S+)\s*/g;

/** @typedef {Record<string, string>} State */

/** @param {string} hash @returns {State} */
export function fromHash(hash) {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  const state = Object.fromEntries(FIELDS.map((name) => [name, (query.get(name) ?? "").slice(0, 16384)]));
  state.model = state.model.replace(/^bundled:/, "");
  return state;
}

/** The link of a state, without keys. @param {State} state @param {State | null} pinned the answer beside it */
export function toHash(state, pinned = null) {
  const query = new URLSearchParams();
  for (const name of FIELDS) {
    const value = name === "flags" ? state.flags?.replace(SECRET, "").trim() : state[name];
    if (value) query.set(name, value);
  }
  if (pinned) query.set("beside", toHash(pinned).slice(1));
  return "#" + query.toString();
}

/** The pinned state of a link, or null. @param {string} hash @returns {State | null} */
export function pinnedOf(hash) {
  const beside = new URLSearchParams(hash.replace(/^#/, "")).get("beside");
  return beside ? fromHash("#" + beside.slice(0, 32768)) : null;
}

/** Whether a state names more than the models that come with the page: another site may have made its link.
 * @param {State} state @param {string[]} models */
export function opensMore(state, models) {
  const own = !state.model || models.includes(state.model);
  return !own || ["path", "mmproj", "draft", "flags", "yours"].some((name) => Boolean(state[name]));
}
