// @ts-check
// The memory of a plan as bars, and its layers as a strip. Blue is what the GPUs hold, amber what RAM holds.

import { element, explained, table } from "./dom.js";
import { size, withoutMaker } from "./words.js";

/** Part, its name, and what it is. */
export const PARTS = [
  ["model", "weights", "The model itself: its numbers, as they are in the file."],
  ["context", "KV cache", "The memory of the conversation: it grows with the context."],
  ["compute", "compute", "Room for intermediate results while a token is computed."],
  ["extra", "others", "What else the program holds there: its runtime, a projector, a draft model."],
  ["shared", "the GPU's", "What the GPU's row above shows: its memory is this RAM."],
  ["growing", "prompt cache", "What the server may add while it serves: older prompts, kept for a faster start."],
  ["margin", "margin", "Left free on purpose, for the desktop and for what drivers take."],
  ["remaining", "free", "Not used."]];

/** The rows of devices and RAM: {name, place, free (null: unknown), needed, parts: {part: bytes}, short}. */
export function rows(plan) {
  const devices = plan.devices.map((d) => ({
    name: `${d.name} ${withoutMaker(d.description)}`.trim(), place: "gpu", free: d.free, needed: d.used, parts: d,
    short: Math.max(0, -d.remaining),
  }));
  const { host } = plan;
  const others = host.context + host.compute + host.extra;
  // weights that stay in the file and are never read are mapped, but not in RAM
  const parts = { ...host, model: Math.max(0, Math.min(host.model, host.resident - others)),
                  growing: host.free === null ? 0 : host.growing };
  const short = Math.max(0, -(host.remaining ?? 0));
  return [...devices, { name: "RAM", place: "ram", free: host.free, needed: host.needed, parts, short }];
}

/** A bar for each device; a thin one at its foot is what the plan `before` took there. */
export function bars(plan, before = null) {
  const box = element("div", { class: "bars" });
  const former = new Map(before ? rows(before).map((row) => [row.name, row.needed]) : []);
  const there = new Set();
  for (const row of rows(plan)) {
    for (const [part] of shown(row.parts)) there.add(part);
    box.append(bar(row, former.get(row.name) ?? row.needed));
  }
  const entries = PARTS.filter(([part]) => there.has(part)).map(([part, title, about]) =>
    element("span", { class: "entry" }, element("span", { class: `key ${part}` }), explained(title, about)));
  box.append(element("p", { class: "legend" }, ...entries));
  return box;
}

function shown(parts) {
  return PARTS.filter(([part]) => (parts[part] ?? 0) > 0);
}

function bar({ name, place, free, needed, parts, short }, was) {
  const made = element("div", { class: free === null ? "bar open" : "bar", role: "img" });
  const sum = shown(parts).reduce((total, [part]) => total + parts[part], 0);
  const whole = free === null ? sum * 1.6 : Math.max(free, sum);
  for (const [part, title] of shown(parts)) {
    const piece = element("span", { class: `part ${part}`, title: `${title}: ${size(parts[part])}` });
    piece.style.width = `${(100 * parts[part]) / whole}%`;
    made.append(piece);
  }
  if (was !== needed) {
    const foot = element("span", { class: "was", title: `Before: ${size(was)}` });
    foot.style.width = `${Math.min(100, (100 * was) / whole)}%`;
    made.append(foot);
  }
  const text = amount({ place, free, needed, parts, short });
  const words = shown(parts).map(([part, title]) => `${title} ${size(parts[part])}`).join(", ");
  made.setAttribute("aria-label", `${name}: ${text}; ${words}${was === needed ? "" : `; before: ${size(was)}`}`);
  return element("div", { class: `row ${place}${short ? " short" : ""}` }, element("span", { class: "name" }, name), made,
                 element("span", { class: "amount" }, text));
}

/** What a device takes, as the terminal says it: without the margin, and without what saved prompts may add. */
export function amount({ place, free, needed, parts, short }) {
  if (free === null) return `${size(needed)} needed`;
  if (short) return `${size(short)} missing of ${size(free)}`;
  const growing = parts.growing ?? 0;
  const kept = place === "ram" ? parts.margin ?? 0 : 0;      // a GPU's is not in what it needs
  return `${size(needed - growing - kept)} of ${size(free)}${growing ? `, may grow by ${size(growing)}` : ""}`;
}

/** Every byte, of each device. */
export function byteTable(plan) {
  const parts = PARTS.filter(([part]) => part !== "shared" || plan.host.shared);
  const devices = [...plan.devices.map((d) => [`${d.name} ${d.description}`.trim(), d]), ["RAM", plan.host]];
  const lines = devices.map(([name, use]) => element("tr", {}, element("th", { scope: "row" }, name),
    ...parts.map(([part]) => element("td", {}, use[part]?.toLocaleString("en") ?? "–"))));
  return table(["Bytes", ...parts.map(([, title]) => title)], lines);
}

/** A cell for each layer, in the row of the device that computes it; amber at its foot where some of its weights are in
 * RAM, and whole where the CPU computes it. */
export function strip(layers) {
  const devices = [...new Set(layers.map((layer) => layer.device))];
  const found = devices.map((device) => {
    const cells = layers.filter((layer) => layer.device === device).map(cell);
    return element("div", { class: "row layers" }, element("span", { class: "name" }, device === "CPU" ? "layers on the CPU" : `layers on ${device}`),
                   element("ol", { class: "strip" }, ...cells));
  });
  if (layers.some(isMoved)) {
    found.push(element("p", { class: "legend" }, element("span", { class: "entry" },
      element("span", { class: "key moved" }), "a layer with some of its weights in RAM")));
  }
  return found;
}

function isMoved({ device, buffers }) {
  return device !== "CPU" && Object.keys(buffers).some((buffer) => buffer !== device);
}

function cell(layer) {
  const parts = Object.entries(layer.buffers).map(([buffer, bytes]) => `, ${size(bytes)} in ${buffer === "CPU" ? "RAM" : buffer}`);
  const words = `layer ${layer.name}: ${layer.device}${parts.join("")}`;
  const kind = layer.device === "CPU" ? "cpu" : isMoved(layer) ? "moved" : "whole";
  return element("li", { class: kind, title: words }, element("span", { class: "hidden" }, words));
}

/** Devices and RAM at another context, as they are placed now: on the line between the two nearest `points`.
 * @param {{n_ctx: number, devices: any[], host: any}[]} points by context @param {number} context */
export function between(points, context) {
  const above = points.find((point) => point.n_ctx >= context) ?? points[points.length - 1];
  const below = [...points].reverse().find((point) => point.n_ctx <= context) ?? points[0];
  const share = above.n_ctx === below.n_ctx ? 0 : (context - below.n_ctx) / (above.n_ctx - below.n_ctx);
  const mixed = (low, high) => Object.fromEntries(Object.entries(low).map(([key, value]) =>
    [key, typeof value === "number" ? Math.round(value + share * (high[key] - value)) : value]));
  return { devices: below.devices.map((device, i) => mixed(device, above.devices[i])), host: mixed(below.host, above.host) };
}
