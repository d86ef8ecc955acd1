// Drawings of an answer: stacked bars of memory, the layers as a strip, the curve of context against speed.
// Text is set as text, never as HTML: names come from files.

const PARTS = [["model", "weights"], ["context", "KV cache"], ["compute", "compute"], ["extra", "others"],
               ["margin", "margin"], ["remaining", "free"]];
const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function size(bytes) {
  const gib = bytes / 2 ** 30;
  return Math.abs(gib) >= 1 ? `${gib.toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

// The rows of devices and host, each [name, free or null, {part: bytes}].
export function rows(plan) {
  const devices = plan.devices.map((d) => [`${d.name} ${d.description}`.trim(), d.free, d]);
  return [...devices, ["System memory", plan.host.free, plan.host]];
}

export function bars(plan) {
  const found = rows(plan);
  const box = element("div", { class: "bars" });
  for (const [name, free, use] of found) {
    const bar = element("div", { class: "bar" });
    const whole = Math.max(free ?? 0, use.used + (use.margin ?? 0));
    for (const [part, title] of PARTS) {
      const bytes = use[part] ?? 0;
      if (bytes <= 0) continue;
      const piece = element("span", { class: `part ${part}`, title: `${title}: ${size(bytes)}` });
      piece.style.width = `${(100 * bytes) / whole}%`;
      bar.append(piece);
    }
    const short = use.remaining !== null && use.remaining < 0;
    const text = free === null ? `${size(use.used)} used`
      : short ? `${size(-use.remaining)} missing of ${size(free)}` : `${size(use.used)} of ${size(free)}`;
    box.append(element("div", { class: short ? "row short" : "row" }, element("span", { class: "name" }, name), bar,
                       element("span", { class: "amount" }, text)));
  }
  const legend = element("p", { class: "legend" });
  for (const [part, title] of PARTS) legend.append(element("span", { class: `key ${part}` }), title + " ");
  box.append(legend);
  return box;
}

export function byteTable(plan) {
  const head = element("tr", {}, element("th", { scope: "col" }, "Bytes"),
                       ...PARTS.map(([, title]) => element("th", { scope: "col" }, title)));
  const body = rows(plan).map(([name, , use]) => element("tr", {}, element("th", { scope: "row" }, name),
    ...PARTS.map(([part]) => element("td", {}, use[part] === null || use[part] === undefined ? "–"
      : use[part].toLocaleString("en")))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

// One cell for each layer: its device as the colour, a mark where weights lie elsewhere.
export function strip(layers) {
  const devices = [...new Set(layers.map((layer) => layer.device))];
  const box = element("ol", { class: "strip" });
  for (const layer of layers) {
    const moved = Object.entries(layer.buffers).filter(([buffer]) => buffer !== layer.device);
    const onGpu = layer.device !== "CPU";
    const colour = onGpu ? `device${devices.filter((name) => name !== "CPU").indexOf(layer.device) % 6}` : "cpu";
    const words = `layer ${layer.name}: ${layer.device}` + Object.entries(layer.buffers)
      .map(([buffer, bytes]) => `, ${size(bytes)} in ${buffer}`).join("");
    const cell = element("li", { class: `${colour}${onGpu && moved.length ? " moved" : ""}`, title: words });
    cell.append(element("span", { class: "hidden" }, words));
    box.append(cell);
  }
  const legend = element("p", { class: "legend" });
  devices.forEach((name) => {
    const colour = name === "CPU" ? "cpu" : `device${devices.filter((d) => d !== "CPU").indexOf(name) % 6}`;
    legend.append(element("span", { class: `key ${colour}` }), name === "CPU" ? "processor " : name + " ");
  });
  if (box.querySelector(".moved")) legend.append(element("span", { class: "key moved" }), "some weights in RAM");
  return [box, legend];
}

// points: of the curve's answer; one line for each cache type, context (log) against tokens per second.
export function curve(points, nLayer) {
  const planned = points.filter((point) => point.speed);
  if (!planned.length) return element("p", {}, "No context could be planned.");
  const types = [...new Set(planned.map((point) => point.cache_type))];
  const contexts = [...new Set(planned.map((point) => point.n_ctx))].sort((a, b) => a - b);
  const top = Math.max(...planned.map(speedAt)) * 1.1;
  const [width, height, left, bottom] = [640, 260, 48, 32];
  const x = (n) => left + ((Math.log2(n) - Math.log2(contexts[0])) * (width - left - 16))
    / Math.max(1e-9, Math.log2(contexts.at(-1)) - Math.log2(contexts[0]));
  const y = (rate) => height - bottom - (rate / top) * (height - bottom - 12);
  const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "curve",
                                 "aria-label": "Tokens per second over context; the table below has the figures" });
  for (let i = 0; i <= 4; i++) {
    const rate = (top * i) / 4;
    picture.append(drawn("line", { class: "grid", x1: left, x2: width - 16, y1: y(rate), y2: y(rate) }),
                   drawn("text", { x: left - 6, y: y(rate) + 4, "text-anchor": "end" }, rate.toFixed(rate < 10 ? 1 : 0)));
  }
  for (const n of contexts) {
    picture.append(drawn("text", { x: x(n), y: height - 12, "text-anchor": "middle" },
                         n >= 1024 ? `${Math.round(n / 1024)}k` : String(n)));
  }
  types.forEach((type, i) => {
    const line = planned.filter((point) => point.cache_type === type);
    const path = line.map((point, at) => `${at ? "L" : "M"}${x(point.n_ctx)},${y(speedAt(point))}`);
    picture.append(drawn("path", { class: `line type${i}`, d: path.join("") }));
    for (const point of line) {
      picture.append(drawn("circle", {
        class: `dot type${i}${point.fits ? "" : " hollow"}`, r: 4, cx: x(point.n_ctx),
        cy: y(speedAt(point)),
      }, drawn("title", {}, `${type}, context ${point.n_ctx}: ${rateOf(point)}, ${point.placement}`)));
    }
  });
  const head = element("tr", {}, element("th", { scope: "col" }, "Context"),
    ...types.map((type, i) => element("th", { scope: "col" }, element("span", { class: `key type${i}` }), type)));
  const body = contexts.map((n) => element("tr", {}, element("th", { scope: "row" }, String(n)), ...types.map((type) => {
    const point = points.find((found) => found.cache_type === type && found.n_ctx === n);
    if (!point || point.refused) return element("td", {}, "refused");
    return element("td", {}, point.fits ? `${rateOf(point)}, ${point.n_gpu_layers} of ${nLayer + 1} layers` : "does not fit");
  })));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  const box = element("div", {});
  box.append(picture, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Speed by context" }, table));
  return box;
}

function speedAt(point) {
  return point.speed.generation_tokens_per_second_full_context;
}

function rateOf(point) {
  return `${speedAt(point).toFixed(1)} t/s`;
}

const HOW = { wholly: "wholly on the GPU", experts: "part of the weights in RAM", partly: "some layers on the GPU",
              processor: "processor only", no: "does not fit" };

export function matrix(answer) {
  const head = element("tr", {}, element("th", { scope: "col" }, "Model"),
                       ...answer.gpus.map((gpu) => element("th", { scope: "col" }, gpu)));
  const body = answer.rows.map((row) => element("tr", {},
    element("th", { scope: "row" }, row.model.replace(/^bundled:/, "")), ...row.cells.map((cell) => {
      const rate = cell.speed && cell.how !== "no" ? `${cell.speed.generation_tokens_per_second.toFixed(0)} t/s` : "";
      return element("td", { class: `how ${cell.how}`, title: `${cell.placement}, context ${cell.n_ctx}` },
                     element("span", {}, HOW[cell.how]), element("small", {}, rate));
    })));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}
