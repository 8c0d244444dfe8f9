/* Entry point: fills the model picker and shows the first view. */

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { chooseModel, events, model } from "./state.js";
import { begin } from "./tabs.js";
import { percent } from "./text.js";

const TRAINING_POLL_MS = 3000;
const picker = document.getElementById("model");
const training = document.getElementById("training");
let polling = null;

async function listModels() {
  let models, running;
  try {
    ({ data: models, training: running = [] } = await get("/v1/models"));
  } catch {
    return; // the banner shows the problem; the "back" event retries
  }
  clearTimeout(polling);
  training.hidden = !running.length;
  training.textContent = running.map(statusOf).join(" · ");
  // once more after the last: its model is loaded a little later
  if (running.length || polling) polling = setTimeout(listModels, TRAINING_POLL_MS);
  if (!running.length) polling = null;
  const byDefault = models.find((one) => one.is_default);
  const options = models.map((one) =>
    h("option", { value: one.id, disabled: one.state !== "loaded" }, labelOf(one)),
  );
  fill(picker, h("option", { value: "" }, byDefault ? `${byDefault.id} (default)` : "default"), options);
  if (model() && !models.some((one) => one.id === model())) chooseModel("");
  picker.value = model() ?? "";
}

const labelOf = (one) => (one.state === "loaded" ? `${one.id} · ${one.family}` : `${one.id} · ${one.state}`);

function statusOf(one) {
  const done = one.done === null ? "" : `, ${percent(one.done)}`;
  const left = one.seconds_left === null ? "" : `, ${Math.ceil(one.seconds_left)} s left`;
  return `In training: ${one.name} (${one.stage}${done}${left})`;
}

picker.addEventListener("change", () => chooseModel(picker.value));
events.addEventListener("model", () => (picker.value = model() ?? ""));
events.addEventListener("back", listModels);
listModels();
begin();
