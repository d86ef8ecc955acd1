// @ts-check
// Files: models, machines and logs that are dropped, and launchers' files that are saved.

import { $, element, save, status } from "./dom.js";
import { fail } from "./answer.js";
import { ask, begun, busy, isNewest, newest } from "./asking.js";
import { addFiles } from "./models.js";
import { opened, page } from "./page.js";

const PRIVATE = new Set(["uuid", "pci_id", "notes", "sure"]);      // of a machine file, not for the address
const LONGEST_LOG = 64 << 20;

/** Saves the launch as a file of the chosen kind. */
export async function download() {
  if (!page.latest) return;
  const answer = await ask(newest(), "file", { ...page.latest.question, format: $("format").value });
  if (!answer) return;
  const notes = [answer.error, ...(answer.notes ?? [])].filter(Boolean);
  $("file-notes").replaceChildren(...notes.map((note) => element("li", {}, note)));
  $("file-text").hidden = !answer.text;
  $("file-text").textContent = answer.text ?? "";
  if (answer.text) save(answer.file, answer.text);
}

/** Opens what was dropped or chosen: models with their projector and draft, a machine file, or a log.
 * @param {FileList | File[]} files */
export async function dropped(files) {
  const all = [...files];
  const models = all.filter((file) => /\.gguf$/i.test(file.name));
  const machine = all.find((file) => /\.json$/i.test(file.name));
  const log = all.find((file) => /\.(log|txt)$/i.test(file.name));
  if (machine && !models.length) return openMachine(machine);
  if (log && !models.length) return explainFile(log);
  await openModels(models);
}

async function openModels(files) {
  const mine = begun(), { engine, form, offer } = page;
  busy("plan");
  status("Reading the header…");
  const answer = await addFiles(engine, files, offer.first_slice);
  if (!isNewest(mine)) return;
  busy("");
  if (answer.error) return fail({ field: "model", error: answer.error });
  if (answer.missing) return fail({ field: "model", error: `parts ${answer.missing.join(", ")} of ${answer.of} are missing: drop them too` });
  const state = { ...form.read(), draft: answer.draft, mmproj: answer.projector };
  if (answer.model) {
    opened.set(answer.model.name, answer);
    state.model = answer.model.name;
  }
  form.fill(state);
  form.changed(true);
}

/** @param {File} file */
export async function openMachine(file) {
  const { form } = page;
  try {
    const text = JSON.parse(await file.slice(0, 1 << 20).text(), (key, value) =>
      PRIVATE.has(key) || value === null || value === "" ? undefined : value);
    form.fill({ ...form.read(), machine: JSON.stringify(text), gpu: "", ram: "" });
    form.changed(true);
  } catch {
    fail({ error: `${file.name}: not a machine file, as autolayers devices --json writes it` });
  }
}

export async function saveMachine() {
  const answer = await ask(newest(), "machine", page.form.read());
  if (answer?.error) fail(answer);
  else if (answer) save("machine.json", answer.text);
}

async function explainFile(file) {
  $("log").value = await file.slice(0, LONGEST_LOG).text();
  $("explain-box").querySelector("details").open = true;
  await explain();
}

/** Why the launch of the pasted log failed, or is slow. */
export async function explain() {
  const { latest, form, engine } = page;
  const { model, gpu, ram, machine } = latest?.question ?? form.read();
  $("explained").hidden = false;
  $("explained").textContent = "Reading the log…";
  const answer = await engine.call("explain", { log: $("log").value, ...(latest ? { model } : {}), gpu, ram, machine });
  $("explained").textContent = answer.error ?? answer.text;
  $("explained").scrollIntoView({ block: "nearest" });
}
