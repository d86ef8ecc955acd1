// @ts-check
// Drawings of an answer: stacked bars of memory, the layers as a strip, the curve of context against speed.
// Text is set as text, never as HTML: names come from files.

import { rate, size, thousands, ticks } from "./words.js";

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
const SVG = "http://www.w3.org/2000/svg";

/** @returns {any} */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

/** The rows of devices and RAM: {name, free (null: unknown), needed, parts: {part: bytes}, short}. */
export function rows(plan) {
  const devices = plan.devices.map((d) => ({
    name: `${d.name} ${d.description}`.trim(), free: d.free, needed: d.used, parts: d, short: Math.max(0, -d.remaining),
  }));
  const { host } = plan;
  const others = host.context + host.compute + host.extra;
  // weights that stay in the file and are never read are mapped, but not in RAM
  const parts = { ...host, model: Math.max(0, Math.min(host.model, host.resident - others)),
                  growing: host.free === null ? 0 : host.growing };
  return [...devices, { name: "RAM", free: host.free, needed: host.needed, parts, short: Math.max(0, -(host.remaining ?? 0)) }];
}

/** A bar for each device; a thin one at its foot is what the plan `before` took there. */
export function bars(plan, before = null) {
  const box = element("div", { class: "bars" });
  const former = new Map(before ? rows(before).map((row) => [row.name, row.needed]) : []);
  const there = new Set();
  for (const { name, free, needed, parts, short } of rows(plan)) {
    const bar = element("div", { class: free === null ? "bar open" : "bar", role: "img" });
    const drawnParts = PARTS.filter(([part]) => (parts[part] ?? 0) > 0);
    const sum = drawnParts.reduce((total, [part]) => total + parts[part], 0);
    const whole = free === null ? sum * 1.6 : Math.max(free, sum);
    for (const [part, title] of drawnParts) {
      there.add(part);
      const piece = element("span", { class: `part ${part}`, title: `${title}: ${size(parts[part])}` });
      piece.style.width = `${(100 * parts[part]) / whole}%`;
      bar.append(piece);
    }
    const was = former.get(name) ?? needed;
    if (was !== needed) {
      const foot = element("span", { class: "was", title: `Before: ${size(was)}` });
      foot.style.width = `${Math.min(100, (100 * was) / whole)}%`;
      bar.append(foot);
    }
    const text = free === null ? `${size(needed)} needed` : short ? `${size(short)} missing of ${size(free)}`
      : `${size(needed - (parts.growing ?? 0))} of ${size(free)}${parts.growing ? `, may grow by ${size(parts.growing)}` : ""}`;
    bar.setAttribute("aria-label", `${name}: ${text}; ` + drawnParts.map(([part, title]) => `${title} ${size(parts[part])}`).join(", ")
      + (was === needed ? "" : `; before: ${size(was)}`));
    box.append(element("div", { class: short ? "row short" : "row" }, element("span", { class: "name" }, name), bar,
                       element("span", { class: "amount" }, text)));
  }
  box.append(element("p", { class: "legend" }, ...PARTS.filter(([part]) => there.has(part)).map(([part, title, about]) =>
    element("span", { class: "entry" }, element("span", { class: `key ${part}` }), explained(title, about)))));
  return box;
}

let explanations = 0;

/** A word that explains itself when it is pressed. */
export function explained(word, about) {
  const id = `about-${explanations++}`;
  return element("span", { class: "explained" }, element("button", { type: "button", class: "word-button", popovertarget: id }, word),
                 element("span", { id, popover: "", class: "about" }, about));
}

export function byteTable(plan) {
  const parts = PARTS.filter(([part]) => part !== "shared" || plan.host.shared);
  const head = element("tr", {}, element("th", { scope: "col" }, "Bytes"),
                       ...parts.map(([, title]) => element("th", { scope: "col" }, title)));
  const devices = [...plan.devices.map((d) => [`${d.name} ${d.description}`.trim(), d]), ["RAM", plan.host]];
  const body = devices.map(([name, use]) => element("tr", {}, element("th", { scope: "row" }, name),
    ...parts.map(([part]) => element("td", {}, use[part] === null || use[part] === undefined ? "–"
      : use[part].toLocaleString("en")))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

// One cell for each layer: its device as the colour, a mark where weights lie elsewhere.
export function strip(layers) {
  const gpus = [...new Set(layers.map((layer) => layer.device))].filter((name) => name !== "CPU");
  const colour = (name) => (name === "CPU" ? "cpu" : `device${gpus.indexOf(name) % 6}${gpus.indexOf(name) >= 6 ? " again" : ""}`);
  const box = element("ol", { class: "strip" });
  for (const layer of layers) {
    const onGpu = layer.device !== "CPU";
    const moved = onGpu && Object.keys(layer.buffers).some((buffer) => buffer !== layer.device);
    const words = `layer ${layer.name}: ${layer.device}` + Object.entries(layer.buffers)
      .map(([buffer, bytes]) => `, ${size(bytes)} in ${buffer === "CPU" ? "RAM" : buffer}`).join("");
    box.append(element("li", { class: `${colour(layer.device)}${moved ? " moved" : ""}`, title: words },
                       element("span", { class: "hidden" }, words)));
  }
  const legend = element("p", { class: "legend" });
  for (const name of new Set(layers.map((layer) => layer.device))) {
    legend.append(element("span", { class: "entry" }, element("span", { class: `key ${colour(name)}` }),
                          name === "CPU" ? "on the CPU" : `on ${name}`));
  }
  if (box.querySelector(".moved")) {
    legend.append(element("span", { class: "entry" }, element("span", { class: "key device0 moved" }), "some of its weights in RAM"));
  }
  return [box, legend];
}

// points: of the curve's answer; one line for each cache type, context (log) against tokens per second.
export function curve(points) {
  const planned = points.filter((point) => point.speed);
  if (!planned.length) return element("p", {}, "No context could be planned.");
  const types = [...new Set(planned.map((point) => point.cache_type))];
  const contexts = [...new Set(planned.map((point) => point.n_ctx))].sort((a, b) => a - b);
  const steps = ticks(Math.max(...planned.map(speedAt)));
  const top = steps[steps.length - 1];
  const [width, height, left, bottom] = [640, 260, 48, 32];
  const x = (n) => left + ((Math.log2(n) - Math.log2(contexts[0])) * (width - left - 16))
    / Math.max(1e-9, Math.log2(contexts[contexts.length - 1]) - Math.log2(contexts[0]));
  const y = (value) => height - bottom - (value / top) * (height - bottom - 12);
  const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "curve",
                                 "aria-label": "Tokens per second over context; the table below has the figures" });
  for (const value of steps) {
    picture.append(drawn("line", { class: "grid", x1: left, x2: width - 16, y1: y(value), y2: y(value) }),
                   drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toFixed(2)))));
  }
  for (const n of contexts) {
    picture.append(drawn("text", { x: x(n), y: height - 12, "text-anchor": "middle" }, thousands(n)));
  }
  types.forEach((type, i) => {
    const line = planned.filter((point) => point.cache_type === type);
    const path = line.map((point, at) => `${at ? "L" : "M"}${x(point.n_ctx)},${y(speedAt(point))}`);
    picture.append(drawn("path", { class: `line type${i}`, d: path.join("") }));
    for (const point of line) {
      picture.append(drawn("circle", {
        class: `dot type${i}${point.fits ? "" : " hollow"}`, r: 4, cx: x(point.n_ctx), cy: y(speedAt(point)),
      }, drawn("title", {}, `${type}, context ${point.n_ctx}: ${rateOf(point)}, ${point.placement}`)));
    }
  });
  const head = element("tr", {}, element("th", { scope: "col" }, "Context"),
    ...types.map((type, i) => element("th", { scope: "col" }, element("span", { class: `key type${i}` }), type)));
  const body = contexts.map((n) => element("tr", {}, element("th", { scope: "row" }, thousands(n)), ...types.map((type) => {
    const point = points.find((found) => found.cache_type === type && found.n_ctx === n);
    if (!point || point.refused) return element("td", {}, "refused");
    return element("td", {}, point.fits ? `${rateOf(point)}; ${point.placement}` : "does not fit");
  })));
  const table = element("table", { class: "words" }, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", {}, picture, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Speed by context" }, table));
}

function speedAt(point) {
  return point.speed.generation_tokens_per_second_full_context;
}

function rateOf(point) {
  return `${rate(speedAt(point))} tokens/s`;
}

const SIGNS = { yes: "✓ fits", if: "? fits if", no: "✗ does not fit" };

// What is usual for a type, over about twenty models; less divergence is closer to the original.
function closeness(quality) {
  return quality ? { title: `KL divergence from the original, usual for ${quality.type}: ${quality.least} to ${quality.most}` } : {};
}

/** A table of models: `found` are rows with their answers, null while they are computed; `plan` is called with a row.
 * @param {{row: any, answer: any}[]} found */
export function modelTable(found, chosen, plan) {
  const head = element("tr", {}, ...["Model", "Size", "Bits per weight", "Close to the original", "", "Tokens/s", "Context", "Where"].map((title) =>
    element("th", { scope: "col" }, title || element("span", { class: "hidden" }, "Verdict"))));
  const body = found.map(({ row, answer }) => {
    const here = row.model === chosen && !row.as;
    const name = row.as || answer?.error ? element("span", {}, row.label)
      : element("button", { type: "button" }, row.label);
    if (name.localName === "button") name.onclick = () => plan(row);
    const cells = [element("th", { scope: "row" }, name, ...(row.as ? [" ", element("small", {}, "estimate")] : []))];
    const bytes = answer?.size || row.size;
    if (!answer || answer.error) {
      cells.push(element("td", {}, bytes ? size(bytes) : ""),
                 element("td", { colspan: "6", class: "left" }, answer ? answer.error : "…"));
    } else {
      const sign = answer.state === "if" ? `${SIGNS.if} ${answer.condition.replace(/^needs /, "")}` : SIGNS[answer.state];
      cells.push(element("td", {}, size(bytes)), element("td", {}, answer.bits.toFixed(1)), element("td", closeness(answer.quality), lossOf(answer.quality)),
                 element("td", { class: `left how ${answer.state}` }, sign),
                 element("td", {}, answer.rate ? rate(answer.rate) : "–"),
                 element("td", {}, answer.context ? thousands(answer.context) : "–"), element("td", { class: "left" }, answer.where));
    }
    return element("tr", here ? { class: "here", "aria-current": "true" } : {}, ...cells);
  });
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

// What the quantisation costs, in words; the band is the type that loses as much.
function lossOf(quality) {
  const band = String(quality?.band ?? "");
  if (!band) return "\u2013";
  const bits = Number(band.match(/\d/)?.[0] ?? 16);
  return bits >= 6 ? "almost the original" : bits >= 4 ? "good" : bits === 3 ? "noticeable loss" : "heavy loss";
}

/** Two answers side by side, with what differs. */
export function comparison(before, now) {
  /** @type {[string, (answer: any) => string][]} */
  const lines = [
    ["Verdict", (a) => a.verdict.title],
    ["Tokens/s", (a) => rate(a.plan.speed.generation_tokens_per_second)],
    ["Prompt tokens/s", (a) => rate(a.plan.speed.prompt_tokens_per_second)],
    ["Context", (a) => thousands(a.plan.launch.n_ctx)],
    ["Where", (a) => a.plan.placement],
    ["GPU memory", (a) => size(a.plan.devices.reduce((sum, d) => sum + d.used, 0))],
    ["RAM", (a) => size(a.plan.host.needed)],
    ["Command", (a) => a.command.bash]];
  const body = lines.map(([title, of]) => {
    const [first, second] = [of(before), of(now)];
    return element("tr", first === second ? {} : { class: "changed" }, element("th", { scope: "row" }, title),
                   element("td", {}, first), element("td", {}, second));
  });
  const head = element("tr", {}, ...["", "Pinned", "Now"].map((title) => element("th", { scope: "col" }, title || element("span", { class: "hidden" }, "What"))));
  return element("table", { class: "words" }, element("thead", {}, head), element("tbody", {}, ...body));
}
