/* Entry point: fills the model picker and shows the first view. */

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { chooseModel, events, model } from "./state.js";
import { begin } from "./tabs.js";

const picker = document.getElementById("model");

async function listModels() {
  let models;
  try {
    models = (await get("/v1/models")).data;
  } catch {
    return; // the banner shows the problem; the "back" event retries
  }
  const byDefault = models.find((one) => one.is_default);
  const options = models.map((one) =>
    h("option", { value: one.id, disabled: one.state !== "loaded" }, labelOf(one)),
  );
  fill(picker, h("option", { value: "" }, byDefault ? `${byDefault.id} (default)` : "default"), options);
  if (model() && !models.some((one) => one.id === model())) chooseModel("");
  picker.value = model() ?? "";
}

const labelOf = (one) => (one.state === "loaded" ? `${one.id} · ${one.family}` : `${one.id} · ${one.state}`);

picker.addEventListener("change", () => chooseModel(picker.value));
events.addEventListener("model", () => (picker.value = model() ?? ""));
events.addEventListener("back", listModels);
listModels();
begin();
