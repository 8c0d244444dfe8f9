/* Re-rank tab: the service scores a list of candidates once; weight sliders re-order it in the browser. */

import { ask } from "./api.js";
import { copyButtons } from "./code.js";
import { details, div, fill, h, tellFacts } from "./dom.js";
import { optionsOf } from "./fields.js";
import { Latest } from "./live.js";
import { CANDIDATES } from "./samples.js";
import { events, keep, kept, model } from "./state.js";
import { bitsOf, heatOf, milliseconds, number, percent } from "./text.js";

const GROUPS = [
  ["", ["mbr", "confidences", "drop_duplicates", "restore"]],
  ["Proposals", ["phrases", "propose", "forms"]],
  [
    "Scoring",
    ["length_exponent", "posterior_scale", "profile", "score_mode", "form", "bos", "eos", "top", "slots", "timeout_ms"],
  ],
];
const COMPUTED = ["lm", "words", "tokens", "unk", "rank"];

const input = h("textarea", {
  rows: 6,
  spellcheck: "false",
  "aria-label": "Candidates, one per line",
  value: kept("candidates", CANDIDATES),
  "data-option": "lists",
});
const context = h("input", {
  type: "text",
  id: "context",
  placeholder: "preceding text (optional)",
  value: kept("context"),
  "data-option": "context",
});
const sliders = h("div", { class: "sliders", "data-option": "weights" });
const ranking = h("ol", { class: "ranking" });
const words = h("p", { class: "words" });
const problem = h("p", { class: "error", role: "alert" });
const figures = h("p", { class: "quiet status" });
const form = optionsOf("RerankRequest", GROUPS, {
  defaults: { detail: "word" },
  onchange: () => ranking_.ask(),
});
const weights = JSON.parse(kept("weights", '{"lm": 0.5, "am": 1}'));
let last = null;

/** Parse a candidate: `text ||| name=number …`, or `number`, a tab and the text. */
function candidateOf(line) {
  const tabbed = /^\s*(-?[\d.]+(?:e-?\d+)?)\t(.+)$/i.exec(line);
  if (tabbed) return { text: tabbed[2], features: { am: Number(tabbed[1]) } };
  const [text, given = ""] = line.split("|||");
  const features = {};
  for (const [, name, value] of given.matchAll(/([^\s=,]+)\s*=\s*(-?[\d.]+(?:e-?\d+)?)/gi))
    features[name] = Number(value);
  return Object.keys(features).length ? { text: text.trim(), features } : { text: text.trim() };
}

const candidates = () =>
  input.value
    .split("\n")
    .filter((line) => line.trim())
    .map(candidateOf);

function request() {
  const given = candidates();
  const list = context.value ? { context: context.value, candidates: given } : { candidates: given };
  const known = new Set([...COMPUTED, ...featuresOf(given)]);
  const used = Object.fromEntries(
    Object.entries(weights).filter(([name, value]) => known.has(name) && value !== 0),
  );
  const fields = { lists: [list], weights: used, ...form.values() };
  if (fields.phrases) {
    fields.phrases = fields.phrases.map((text) => ({ text }));
    fields.weights = { phrases: 10, ...used };
  }
  if (fields.profile) delete fields.weights;
  if (model()) fields.model = model();
  return fields;
}

/** Return the features that every candidate has. */
const featuresOf = (given) =>
  Object.keys(given[0]?.features ?? {}).filter((name) => given.every((one) => name in (one.features ?? {})));

const ranking_ = new Latest(
  async (signal) => {
    if (candidates().length === 0) {
      last = null;
      return fill(ranking, h("li", { class: "quiet" }, "Paste candidates, one per line."));
    }
    const { reply, ms } = await ask("/v1/rerank", request(), { signal });
    last = { ...reply.lists[0], scale: reply.posterior_scale, used: reply.weights };
    const versions = (reply.tuned_on ?? []).map((version) => `tuned on ${version}`);
    tellFacts(figures, reply.model, ...versions, `${last.ranking.length} candidates`, milliseconds(ms));
    show(last.ranking);
  },
  (error) => (problem.textContent = error && !form.mark(error) ? error.message : ""),
);

/** Re-order the list by the sliders' weights; the service's order follows when a slider is released. */
function weighAnew() {
  if (!last || "expected_utility" in last.ranking[0]) return;
  const totals = last.ranking.map((one) =>
    Object.entries({ ...last.used, ...weights }).reduce((sum, [name, weight]) => sum + weight * (one.features[name] ?? 0), 0),
  );
  const highest = Math.max(...totals);
  const masses = totals.map((total) => Math.exp(last.scale * (total - highest)));
  const all = masses.reduce((sum, mass) => sum + mass, 0);
  const anew = last.ranking.map((one, k) => ({ ...one, total: totals[k], posterior: masses[k] / all }));
  show(anew.sort((a, b) => b.total - a.total || a.index - b.index));
}

function show(order) {
  fill(ranking, order.map(itemOf));
  const sure = (last.confidences ?? []).map(({ text, confidence }) => {
    const css = { "--heat": (1 - confidence).toFixed(3) };
    return h("span", { class: "tok", title: percent(confidence), css }, `${text} `);
  });
  const written = last.restored && ["Best text, restored: ", last.restored, h("br")];
  fill(words, written, sure.length ? ["Word confidences: ", sure] : null);
}

function itemOf(one, place) {
  const climbed = one.index - place;
  const [look, arrow] = climbed > 0 ? ["up", "▲"] : climbed < 0 ? ["down", "▼"] : ["quiet", "–"];
  const head = div(
    "head",
    h("span", { class: "quiet" }, `${place + 1}.`),
    h("span", { class: "text" }, textOf(one)),
    h("span", { class: look }, arrow, climbed ? Math.abs(climbed) : null),
    h("b", {}, percent(one.posterior)),
  );
  const computed = [["total", one.total], ["expected utility", one.expected_utility]];
  const chips = [...computed, ...Object.entries(one.features)].filter(([, value]) => value !== undefined);
  return h(
    "li",
    { class: "card" },
    head,
    h("div", { class: "share", css: { "--share": one.posterior.toFixed(4) } }),
    tellFacts(
      div("chips"),
      ...(one.corrections ?? []).map((span) => `${span.heard} → ${span.written || "nothing"}`),
      ...chips.map(([name, value]) => `${name} ${number(value)}`),
    ),
  );
}

/** Return a candidate's words, coloured by surprisal. */
function textOf(one) {
  const told = (one.words ?? []).filter((word) => word.text !== "</s>");
  const written = one.text.trim().split(/\s+/); // the reply has <unk> for unknown words
  if (told.length !== written.length) return one.text;
  return told.map(({ is_oov: isUnknown, logprob }, place) => {
    const look = { class: isUnknown ? "tok unknown" : "tok", css: { "--heat": heatOf(bitsOf(logprob)) } };
    return [h("span", { ...look, title: `${bitsOf(logprob).toFixed(1)} bits` }, written[place]), " "];
  });
}

function drawSliders() {
  const names = [...new Set(["lm", ...featuresOf(candidates()), ...COMPUTED])];
  const shown = names.join();
  if (sliders.dataset.shown === shown) return;
  sliders.dataset.shown = shown;
  fill(sliders, names.map(sliderOf));
}

function sliderOf(name) {
  const value = h("output", {}, String(weights[name] ?? 0));
  const range = h("input", {
    type: "range",
    min: -3,
    max: 3,
    step: 0.05,
    value: weights[name] ?? 0,
    "aria-label": `weight of ${name}`,
  });
  range.addEventListener("input", () => {
    weights[name] = Number(range.value);
    value.textContent = range.value;
    keep("weights", JSON.stringify(weights));
    weighAnew();
  });
  range.addEventListener("change", () => ranking_.ask());
  return h("label", { class: "slider" }, h("code", {}, name), range, value);
}

/** Build the view. */
export function start(panel) {
  const changed = () => {
    keep("candidates", input.value || null);
    keep("context", context.value || null);
    drawSliders();
    ranking_.ask();
  };
  input.addEventListener("input", changed);
  context.addEventListener("input", changed);
  events.addEventListener("model", () => ranking_.ask());
  const hint = h(
    "p",
    { class: "keys" },
    "One candidate per line; scores after ",
    h("code", {}, "|||"),
    " as ",
    h("code", {}, "name=number"),
    ", or one score before a tab.",
  );
  const given = h(
    "div",
    {},
    h("h2", {}, "Candidates"),
    hint,
    input,
    div("field", h("label", { for: "context" }, "context"), context),
    div("card found", h("h2", {}, "Weights"), sliders),
    details("settings", "Options", form.element),
  );
  const copying = copyButtons(() => ({ path: "/v1/rerank", fields: request() }));
  const head = div("row foot", h("h2", {}, "Ranking"), copying);
  fill(panel, div("columns even", given, h("div", {}, head, figures, problem, ranking, words)));
  drawSliders();
  form.ready.then(changed, (error) => (problem.textContent = error.message));
}
