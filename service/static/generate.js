/* Generate tab: continues a text token by token, with every decoding option. */

import { ask, send } from "./api.js";
import { copyButtons } from "./code.js";
import { button, div, fill, h, keysOf, say, tellFacts } from "./dom.js";
import { optionsOf } from "./fields.js";
import { PROMPT } from "./samples.js";
import { eventsOf } from "./sse.js";
import { keep, kept, model } from "./state.js";
import { bitsOf, heatOf, milliseconds, number } from "./text.js";
import { bars, explore, Popover, surpriseOf } from "./tokens.js";

const GROUPS = [
  ["", ["strategy", "max_tokens", "temperature", "top_p", "top_k", "n", "seed"]],
  [
    "Sampling",
    ["min_p", "typical_p", "best_of", "repetition_penalty", "presence_penalty", "frequency_penalty"],
  ],
  ["Beam search", ["num_beams", "length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty"]],
  ["Constraints", ["stop", "min_tokens", "ignore_eos", "token_healing", "bad_words", "logit_bias", "slots"]],
  ["Reply", ["logprobs", "timeout_ms"]],
];

const prompt = h("textarea", {
  class: "prompt",
  rows: 4,
  "aria-label": "Prompt",
  placeholder: "Empty for the start of a sentence",
  value: kept("prompt", PROMPT),
  "data-option": "prompt",
});
const streams = h("input", {
  type: "checkbox",
  checked: kept("stream", "on") === "on",
  "data-option": "stream",
});
const problem = h("p", { class: "error", role: "alert" });
const figures = h("p", { class: "quiet status" });
const output = div("output");
const go = button("Generate", run, { class: "primary" });
const stop = button("Stop", () => controller?.abort(), { disabled: true });
const form = optionsOf("GenerateRequest", GROUPS, {
  choices: { strategy: ["sample", "greedy", "beam"] },
  defaults: { logprobs: 5 },
});
const tokens = (count) => (count === 1 ? "1 token" : `${count} tokens`);
let controller = null;
let popover;

function request() {
  const fields = { prompt: prompt.value, ...form.values() };
  if (streams.checked) fields.stream = true;
  if (model()) fields.model = model();
  return fields;
}

async function run() {
  controller?.abort();
  const mine = (controller = new AbortController());
  const told = new Telling(request());
  setRunning(true);
  form.mark(null);
  fill(problem);
  try {
    if (streams.checked) await stream(told, mine.signal);
    else told.whole((await ask("/v1/generate", told.fields, { signal: mine.signal })).reply);
    say("The text is complete");
  } catch (error) {
    if (error.name !== "AbortError") problem.textContent = form.mark(error) ? "" : error.message;
    told.cut();
  }
  if (controller === mine) setRunning(false);
}

async function stream(told, signal) {
  const response = await send("/v1/generate", { body: JSON.stringify(told.fields), signal });
  for await (const event of eventsOf(response)) told.take(event);
}

function setRunning(running) {
  output.classList.toggle("running", running);
  stop.disabled = !running;
  if (!running) controller = null;
}

/** Output of one request. */
class Telling {
  #choices = new Map();
  #began = performance.now();
  #first = 0;
  #tokens = 0;

  constructor(fields) {
    this.fields = fields;
    fill(output);
    fill(figures);
  }

  /** Show an event of a stream. */
  take({ choices, usage, model: address }) {
    for (const choice of choices) {
      const { story } = this.#choice(choice.index);
      this.#tokens += choice.token_ids.length;
      this.#first ||= performance.now() - this.#began;
      if (choice.text) story.append(...this.#piece(choice));
      if (choice.finish_reason) this.#end(choice);
    }
    const seconds = (performance.now() - this.#began) / 1000;
    const count = tokens(usage?.completion_tokens ?? this.#tokens);
    const rate = `${number(Math.round(this.#tokens / seconds))} tokens/s`;
    tellFacts(figures, address, count, `first token after ${milliseconds(this.#first)}`, rate);
  }

  /** Show an unstreamed reply. */
  whole({ choices, usage, model: address }) {
    for (const choice of choices) {
      this.#choice(choice.index).story.append(choice.text);
      this.#end(choice);
    }
    const took = milliseconds(performance.now() - this.#began);
    tellFacts(figures, address, tokens(usage.completion_tokens), took);
  }

  /** Mark unfinished continuations as stopped. */
  cut() {
    for (const { reason } of this.#choices.values()) if (!reason.textContent) reason.textContent = "stopped";
  }

  #choice(index) {
    if (!this.#choices.has(index)) this.#choices.set(index, this.#make(index));
    return this.#choices.get(index);
  }

  #make(index) {
    const given = h("span", { class: "given" }, this.fields.prompt);
    const story = h("p", { class: "story", "aria-label": `Continuation ${index + 1}` }, given);
    const reason = h("span", { class: "quiet" });
    const onward = button("Continue from here", () => {
      prompt.value = story.textContent;
      keep("prompt", prompt.value);
      prompt.focus();
    });
    explore(story, {
      show: (span) => {
        const { others, text: actual } = span.token;
        popover.show(span, surpriseOf(span.token), h("ol", { class: "bars" }, bars(others, { actual })));
      },
      hide: () => popover.hide(),
    });
    output.append(h("article", { class: "card continuation" }, story, h("footer", {}, reason, onward)));
    return { story, reason };
  }

  #piece({ text, logprobs, top_logprobs: tops }) {
    if (!logprobs?.length) return [text];
    const bits = bitsOf(logprobs[0]);
    const space = /^\s*/.exec(text)[0];
    const span = h("span", { class: "tok", css: { "--heat": heatOf(bits) } }, text.slice(space.length));
    span.token = { text, bits, known: true, others: tops?.[0] ?? [] };
    return [space, span];
  }

  #end({ index, finish_reason: why, score }) {
    const reasons = { stop: "finished", length: "stopped at max_tokens" };
    this.#choices.get(index).reason.textContent =
      `${reasons[why] ?? why}${score === null ? "" : ` · score ${number(score)}`}`;
  }
}

/** Build the view. */
export function start(panel) {
  prompt.addEventListener("input", () => keep("prompt", prompt.value || null));
  streams.addEventListener("change", () => keep("stream", streams.checked ? "on" : "off"));
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
    else if (event.key === "Escape" && controller) controller.abort();
    else return;
    event.preventDefault();
  });
  const keys = keysOf("Ctrl", " ", "Enter", " generates · ", "Esc", " stops");
  const buttons = div(
    "row foot",
    div("row", go, stop, h("label", { class: "row" }, streams, "Stream")),
    copyButtons(() => ({ path: "/v1/generate", fields: request() })),
  );
  const stage = div("editor", output);
  const left = h("div", {}, prompt, buttons, keys, problem, figures, stage);
  fill(panel, div("columns", left, h("aside", { class: "card", "aria-label": "Settings" }, form.element)));
  popover = new Popover(stage);
  form.ready.catch((error) => (problem.textContent = error.message));
}
