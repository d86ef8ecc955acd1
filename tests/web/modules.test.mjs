// The page's modules that need no page: node --test tests/web/modules.test.mjs

import assert from "node:assert/strict";
import test from "node:test";

import { PARTS, rows } from "../../autolayers/web/static/charts.js";
import { matching } from "../../autolayers/web/static/form.js";
import { addAddress, addFiles } from "../../autolayers/web/static/models.js";
import { fromHash, pinnedOf, toHash } from "../../autolayers/web/static/state.js";
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
