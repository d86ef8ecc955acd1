// @ts-check
// The curve of context against speed.

import { $, drawn, element, table } from "./dom.js";
import { ask } from "./asking.js";
import { rate, thousands, ticks } from "./words.js";

const TYPES = ["f16", "q8_0", "q4_0"];      // of the cache

/** Draws it, type by type. @param {number} mine @param {object} question */
export async function drawCurve(mine, question) {
  $("curve").textContent = "Computing…";
  const points = [];
  for (const type of TYPES) {
    const answer = await ask(mine, "curve", { ...question, types: [type] });
    if (!answer) return;
    if (answer.error) return $("curve").replaceChildren(element("p", {}, answer.error));
    points.push(...answer.points);
    $("curve").replaceChildren(curve(points));
  }
}

// points: of the curve's answer; one line for each cache type, context (log) against tokens per second.
function curve(points) {
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
  const body = contexts.map((n) => element("tr", {}, element("th", { scope: "row" }, thousands(n)),
    ...types.map((type) => element("td", {}, wordsOf(points.find((one) => one.cache_type === type && one.n_ctx === n))))));
  const cells = element("table", { class: "words" }, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", {}, picture, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Speed by context" }, cells));
}

function wordsOf(point) {
  if (!point || point.refused) return "refused";
  return point.fits ? `${rateOf(point)}; ${point.placement}` : "does not fit";
}

function speedAt(point) {
  return point.speed.generation_tokens_per_second_full_context;
}

function rateOf(point) {
  return `${rate(speedAt(point))} tokens/s`;
}

