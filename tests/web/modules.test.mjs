// The page's modules that need no page: node --test tests/web/modules.test.mjs

import assert from "node:assert/strict";
import test from "node:test";

import { amount, between, PARTS, rows } from "../../autolayers/web/static/bars.js";
import { shared } from "../../autolayers/web/static/copying.js";
import { matching } from "../../autolayers/web/static/form.js";
import { inOrder, isBest } from "../../autolayers/web/static/known.js";
import { canonical, nearestList } from "../../autolayers/web/static/machines.js";
import { addAddress, addFiles } from "../../autolayers/web/static/models.js";
import { fromHash, opensMore, pinnedOf, toHash } from "../../autolayers/web/static/state.js";
import { contextAt, positionOf, quoted, rate, sentence, size, thousands, ticks } from "../../autolayers/web/static/words.js";

test("figures in words", () => {
  assert.equal(size(18550716416), "17.28 GiB");
  assert.equal(size(534773760), "510.0 MiB");
  assert.deepEqual([512, 4096, 9472, 17664, 131072, 1048576].map(thousands), ["512", "4k", "9.2k", "17k", "128k", "1024k"]);
  assert.deepEqual([1.06, 9.96, 38.1].map(rate), ["1.1", "10.0", "38"]);
  assert.equal(sentence({ title: "Fits", parts: ["About 38 tokens/s", "17k context", "Experts of 24 layers in RAM"] }),
               "Fits. About 38 tokens/s, 17k context. Experts of 24 layers in RAM.");
  assert.equal(sentence({ title: "Does not fit: 2 GiB missing", parts: [] }), "Does not fit: 2 GiB missing.");
  assert.equal(sentence({ title: "Fits", parts: ["8k context", "All of it on the GPU"] }), "Fits. 8k context. All of it on the GPU.");
});

test("flags are quoted as in a shell", () => {
  assert.equal(quoted(["-ngl", "33", "-ts", "1,2"]), "-ngl 33 -ts 1,2");
  assert.equal(quoted(["-ot", String.raw`blk\.(1|2)\.ffn=CPU`, "", "it's \\"]),
               String.raw`-ot 'blk\.(1|2)\.ffn=CPU' '' 'it'\''s '\\`);
});

test("an axis has round steps and holds its values", () => {
  for (const top of [0.7, 3.9, 46, 99, 100, 1234]) {
    const steps = ticks(top);
    assert.ok(steps.at(-1) >= top && steps.length <= 6 && steps.length >= 3, `${top}: ${steps}`);
  }
  assert.deepEqual(ticks(46), [0, 20, 40, 60]);
});

test("the slider ends at the trained context", () => {
  assert.equal(contextAt(0, 40960), "");
  assert.equal(contextAt(100, 40960), "40960");
  for (const longest of [8192, 40960, 131072, 1048576]) {
    for (const position of [20, 55, 100]) assert.ok(Math.abs(positionOf(contextAt(position, longest), longest) - position) <= 12);
  }
  assert.equal(positionOf("", 8192), 0);
  assert.equal(positionOf("16k", 131072), positionOf("16384", 131072));
  assert.equal(positionOf("16,384", 131072), positionOf("16384", 131072));
});

test("a link is the question, without keys", () => {
  const state = fromHash("#model=bundled:qwen3-8b-q4_k_m&gpu=rtx-3060,12&flags=--api-key+'my secret'+-ncmoe+12");
  assert.equal(state.model, "qwen3-8b-q4_k_m");
  assert.equal(toHash(state), "#model=qwen3-8b-q4_k_m&gpu=rtx-3060%2C12&flags=-ncmoe+12");
  assert.ok(!toHash({ flags: "--api-key=abc -hft def --swa-full" }).match(/abc|def/));
  const beside = pinnedOf(toHash(state, { ...state, gpu: "24" }));
  assert.deepEqual([beside.gpu, beside.model, pinnedOf("#model=x")?.gpu], ["24", "qwen3-8b-q4_k_m", undefined]);
});

test("the page of this computer shares its answer, and no address that leads nowhere", () => {
  assert.equal(shared(true, "Qwen3 8B on RTX 3060", "Fits.", "llama-server -ngl 37"), "Qwen3 8B on RTX 3060: Fits.\nllama-server -ngl 37");
});

test("words find options", () => {
  const options = ["llama-3.1-8b-q4_k_m", "qwen3-8b-q4_k_m", "qwen3-30b-a3b-q4_k_m"].map((value) => ({ value }));
  assert.deepEqual(matching(options, "qwen3 8b").map(({ value }) => value), ["qwen3-8b-q4_k_m"]);
  assert.deepEqual(matching(options, "Llama3.1:8B").map(({ value }) => value), ["llama-3.1-8b-q4_k_m"]);
  assert.equal(matching(options, "").length, 3);
  assert.equal(matching([{ value: "rtx-3060", note: "NVIDIA GeForce RTX 3060" }], "nvidia 3060").length, 1);
});

test("the bar of the RAM holds what is needed and what is free", () => {
  const host = { model: 9 << 20, context: 0, compute: 1 << 20, extra: 0, resident: 8 << 20, growing: 4 << 20, shared: 0,
                 needed: 14 << 20, margin: 2 << 20, free: 32 << 20, remaining: 18 << 20 };
  const parts = ["model", "context", "compute", "extra", "growing", "margin", "remaining"];
  const [ram] = rows({ devices: [], host });
  assert.equal(parts.reduce((sum, part) => sum + ram.parts[part], 0), host.free);
  assert.equal(amount(ram), "8.0 MiB of 32.0 MiB, may grow by 4.0 MiB");      // resident, as in the terminal
  const [unknown] = rows({ devices: [], host: { ...host, free: null, remaining: null } });
  assert.deepEqual([unknown.free, unknown.parts.growing, unknown.short], [null, 0, 0]);
});

test("what a GPU takes of the RAM is a part of its own, not of other programs", () => {
  const host = { model: 1 << 20, context: 0, compute: 0, extra: 2 << 20, resident: 3 << 20, growing: 0, shared: 20 << 20,
                 needed: 24 << 20, margin: 1 << 20, free: 30 << 20, remaining: 6 << 20 };
  const [ram] = rows({ devices: [], host });
  assert.deepEqual([ram.parts.extra, ram.parts.shared], [2 << 20, 20 << 20]);
  assert.equal(PARTS.reduce((sum, [part]) => sum + ram.parts[part], 0), host.free);
});

test("several files are a model, its draft and its projector", async () => {
  const file = (name, bytes) => ({ name, size: bytes, slice: () => new Blob([new Uint8Array(8)]) });
  const engine = { add: async (name, bytes) => (name.startsWith("mmproj") ? { projector: name }
    : name.includes("-of-") ? { missing: [2], of: 2 } : { model: { name, size: bytes } }) };
  const found = await addFiles(engine, [file("draft.gguf", 5), file("mmproj.gguf", 3), file("big.gguf", 90)], 4);
  assert.deepEqual([found.model.name, found.draft, found.projector], ["big.gguf", "draft.gguf", "mmproj.gguf"]);
  assert.deepEqual((await addFiles(engine, [file("a-1-of-2.gguf", 5)], 4)).missing, [2]);
  assert.ok((await addFiles(engine, [], 4)).error);
});

test("an address that cannot be read says so", async () => {
  const engine = { call: async () => ({ urls: ["http://127.0.0.1:9/x.gguf"] }) };
  const found = await addAddress(engine, "http://127.0.0.1:9/x.gguf", 4);
  assert.match(found.error, /^http:\/\/127\.0\.0\.1:9\/x\.gguf: it cannot be reached/);
});

const CARDS = [["rtx-3060", "NVIDIA GeForce RTX 3060", 11.8], ["rtx-3090", "NVIDIA GeForce RTX 3090", 23.6],
               ["rtx-4070-laptop", "NVIDIA GeForce RTX 4070 Laptop GPU", 7.6],
               ["m4-pro-24g", "Apple M4 Pro", 17.8, 24], ["m4-max-64g", "Apple M4 Max", 48, 64],
               ["radeon-780m-32g", "AMD Radeon 780M", 16, 32]]
  .map(([name, description, gib, ram]) => ({ name, description, gib, ram }));

test("cards are found as people write them", () => {
  assert.deepEqual(canonical("RTX 3060", CARDS), ["rtx-3060"]);
  assert.deepEqual(canonical("2x 3090, 24 GB", CARDS), ["rtx-3090", "rtx-3090", "24"]);
  assert.deepEqual(canonical("RTX 3060 12 GB,24GiB", CARDS), ["rtx-3060", "24"]);
  assert.deepEqual(canonical("", CARDS), []);
});

test("a machine without a list of its own gets that of the nearest smaller one", () => {
  const lists = ["rtx-3060", "rtx-3090,rtx-3090", "6", "12", "24", "m4-pro-24g", "none"];
  const found = (gpu) => nearestList(lists, gpu, CARDS);
  assert.deepEqual(found("rtx 3060"), { name: "rtx-3060", same: true });
  assert.deepEqual(found("2x3090"), { name: "rtx-3090,rtx-3090", same: true });
  assert.deepEqual(found("24GiB"), { name: "24", same: true });
  assert.deepEqual(found(""), { name: "none", same: true });
  assert.deepEqual(found("rtx-3090"), { name: "24", same: false });
  assert.deepEqual(found("rtx-4070-laptop"), { name: "6", same: false });
  assert.deepEqual(found("rtx-3060,rtx-3060"), { name: "24", same: false });
  assert.deepEqual(found("m4-max-64g"), { name: "m4-pro-24g", same: false });
  assert.equal(found("radeon-780m-32g"), null);      // no list of its maker
  assert.equal(found("rtx 9999"), null);
  const of = (ram) => nearestList([...lists, "rtx-3060@16"], "rtx 3060", CARDS, ram, "32");
  assert.deepEqual(of("32"), { name: "rtx-3060", same: true });
  assert.deepEqual(of("16"), { name: "rtx-3060@16", same: true });
  assert.deepEqual(of("64"), { name: "rtx-3060", same: false });
});

test("a list has the ranker's order: what runs well, by quality, then speed", () => {
  const rows = [["slow", [2, -72, -5]], ["small", [0, -60, -86]], ["best", [0, -67, -28]], ["as good", [0, -67, -33]]]
    .map(([model, order]) => ({ model, order }));
  assert.deepEqual(inOrder(rows).map(({ model }) => model), ["as good", "best", "small", "slow"]);
});

test("the answer is the first only where no later model can come before it", () => {
  const row = (place, worth) => ({ order: [place, -worth, -9] });
  assert.equal(isBest(row(0, 66.8), 63.5), true);
  assert.equal(isBest(row(0, 62), 62), false);            // the next one may be faster
  assert.equal(isBest(row(0, 64.8), 68.3), false);        // 71.8 in three bits: it was the answer, after the terminal's
  assert.equal(isBest(row(2, 71.8), 60), false);          // slow
  assert.equal(isBest(undefined, 60), false);
  assert.equal(isBest(row(0, 52.8), 0), true);            // the last
});

test("bars between two contexts are on the line between them", () => {
  const point = (n_ctx, context) => ({ n_ctx, devices: [{ name: "CUDA0", context, used: context + 10 }], host: { needed: 5, free: null } });
  const points = [point(4096, 100), point(8192, 200), point(40960, 1000)];
  assert.equal(between(points, 6144).devices[0].context, 150);
  assert.equal(between(points, 8192).devices[0].used, 210);
  assert.deepEqual([between(points, 1024), between(points, 1 << 20)].map(({ devices }) => devices[0].context), [100, 1000]);
  assert.equal(between(points, 6144).host.free, null);
});

test("a link that opens anything but the page's own models is not asked by itself", () => {
  const models = ["qwen3-8b-q4_k_m"];
  for (const more of ["model=http%3A%2F%2F127.0.0.1%3A1%2Fx&gpu=24", "model=%2Fetc%2Fpasswd", "model=qwen3-8b-q4_k_m&mmproj=%5C%5Chost%5Cx",
                      "model=qwen3-8b-q4_k_m&flags=--rpc+10.0.0.1%3A1", "draft=http%3A%2F%2F10.0.0.1"]) {
    assert.ok(opensMore(fromHash("#" + more), models), more);
  }
  for (const own of ["", "model=qwen3-8b-q4_k_m&gpu=24&ctx=4096", "model=bundled%3Aqwen3-8b-q4_k_m"]) {
    assert.ok(!opensMore(fromHash("#" + own), models), own);
  }
});

// A page at this address, whose server takes one token.
async function tokens(address, kept, good) {
  const stored = new Map(kept ? [["token", kept]] : []);
  const sent = [];
  Object.assign(globalThis, {
    location: { href: address },
    history: { replaceState() {} },
    localStorage: { getItem: (name) => stored.get(name) ?? null, setItem: (name, value) => stored.set(name, value) },
    fetch: async (path, { headers } = {}) => {
      if (!headers) return { ok: true, json: async () => ({ server: true }) };
      const token = headers["X-Autolayers-Token"];
      sent.push(token);
      return { status: token === good ? 200 : 403, json: async () => ({ error: token === good ? undefined : "no" }) };
    },
  });
  const { readConfig, Server } = await import("../../autolayers/web/static/engine.js");
  await readConfig();
  const answer = await new Server().call("start", {});
  return { kept: stored.get("token"), error: answer.error, sent };
}

test("a token that the server refuses does not replace the kept one", async () => {
  assert.deepEqual(await tokens("http://127.0.0.1:1/?token=bad", "good", "good"), { kept: "good", error: undefined, sent: ["bad", "good"] });
  assert.deepEqual(await tokens("http://127.0.0.1:1/?token=new", "old", "new"), { kept: "new", error: undefined, sent: ["new"] });
  assert.deepEqual(await tokens("http://127.0.0.1:1/?token=bad", "", "good"), { kept: undefined, error: "no", sent: ["bad"] });
});
