// @ts-check
// Figures in words, without a page.

/** @param {number} bytes */
export function size(bytes) {
  const gib = bytes / 2 ** 30;
  return Math.abs(gib) >= 1 ? `${gib.toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

/** Tokens per second. @param {number} value */
export function rate(value) {
  return value.toFixed(value < 10 ? 1 : 0);
}

/** 16384 as 16k, 17664 as 17k, 9472 as 9.2k, rounded down. @param {number} tokens */
export function thousands(tokens) {
  if (tokens < 1024) return String(tokens);
  const tenths = Math.floor((tokens * 10) / 1024);
  return tenths >= 100 || tenths % 10 === 0 ? `${Math.floor(tenths / 10)}k` : `${(tenths / 10).toFixed(1)}k`;
}

/** Flags as text for a shell and for the field of flags: quoting.posix of printable words. @param {string[]} words */
export function quoted(words) {
  return words.map(quotedWord).join(" ");
}

/** @param {string} word */
function quotedWord(word) {
  if (/^[\w@%+=:,./-]+$/.test(word)) return word;
  const runs = word.match(/(?:[^'\\]|\\(?=[^'\\]))+|['\\]+/g) ?? [];
  return runs.map((run) => (/^['\\]+$/.test(run) ? run.replace(/./g, "\\$&") : `'${run}'`)).join("") || "''";
}

/** @param {string} description of a GPU */
export function withoutMaker(description) {
  return description.replace(/^(NVIDIA GeForce|NVIDIA|AMD Radeon|AMD|Intel|Apple) /, "");
}

/** A card as it is sold: "RTX 4060 Ti 16 GB". @param {{name: string, description: string, gib?: number, ram?: number}} card */
export function soldAs({ name, description, gib = 0, ram = 0 }) {
  const memory = Number(name.match(/-(\d+)g$/)?.[1] ?? (ram || Math.ceil(gib)));
  const plain = withoutMaker(description);
  return memory && !/\d ?GB/.test(plain) ? `${plain} ${memory} GB` : plain;
}

/** The verdict as one line. @param {{title: string, parts: string[]}} verdict */
export function sentence({ title, parts }) {
  if (!parts.length) return `${title}.`;
  return `${title}. ${parts.slice(0, -1).join(", ")}${parts.length > 1 ? ". " : ""}${parts.at(-1)}.`;
}

/** Round steps of an axis from 0 to at least `top`. @param {number} top */
export function ticks(top) {
  const raw = top / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 2.5, 5, 10].find((n) => n * power >= raw) ?? 10);
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, i) => i * step);
}

/** The context of a slider's position 0..100, on a logarithmic scale up to `longest`; "" for 0.
 * @param {number} position @param {number} longest */
export function contextAt(position, longest) {
  if (!position) return "";
  const n = 2048 * (Math.max(longest, 4096) / 2048) ** (position / 100);
  return String(Math.min(longest || n, Math.round(n / 1024) * 1024) || 2048);
}

/** The inverse of contextAt. @param {string} text @param {number} longest */
export function positionOf(text, longest) {
  const n = Number(text.replace(/[ ,_']/g, "").replace(/k$/i, "")) * (/k$/i.test(text) ? 1024 : 1);
  if (!n || n < 0) return 0;
  return Math.max(1, Math.min(100, Math.round((100 * Math.log(n / 2048)) / Math.log(Math.max(longest, 4096) / 2048))));
}
