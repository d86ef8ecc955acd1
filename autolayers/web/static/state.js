// The question as the page's address has it: #model=...&gpu=...&ctx=..., so that a plan is shared by its link.

export const FIELDS = ["model", "machine", "gpu", "ram", "ctx", "np", "ctk", "ctv", "ub", "fa", "strategy", "workload", "flags"];

export function fromHash(hash) {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  return Object.fromEntries(FIELDS.map((name) => [name, (query.get(name) ?? "").slice(0, 16384)]));
}

export function toHash(state) {
  const query = new URLSearchParams();
  for (const name of FIELDS) if (state[name]) query.set(name, state[name]);
  return "#" + query.toString();
}
