/* Check tab: underlines probable errors; a click replaces a word by a suggestion. */

import { ask } from "./api.js";
import { copyButtons } from "./code.js";
import { button, details, div, fill, h, say, tellFacts } from "./dom.js";
import { Editor } from "./editor.js";
import { optionsOf } from "./fields.js";
import { Latest } from "./live.js";
import { WITH_ERRORS } from "./samples.js";
import { events, keep, kept, model } from "./state.js";
import { bits, milliseconds, percent, unitsOf } from "./text.js";
import { Popover } from "./tokens.js";

const GROUPS = [
  ["", ["max_suggestions", "max_edits", "error_rate", "precision"]],
  ["Words", ["dictionary", "dictionaries", "slots", "timeout_ms"]],
];
const KINDS = { unknown_word: "unknown word", real_word: "unlikely word in this context" };

const editor = new Editor("check", WITH_ERRORS, {
  "aria-label": "Text to check",
  placeholder: "Type or paste text…",
  "data-option": "text",
});
const threshold = h("input", {
  type: "range",
  id: "threshold",
  min: 0.05,
  max: 0.95,
  step: 0.05,
  value: kept("threshold", "0.5"),
  "data-option": "threshold",
});
const shown = h("output", { for: "threshold" });
const list = h("ol", { "aria-label": "Issues" });
const title = h("h2", {}, "Issues");
const problem = h("p", { class: "error", role: "alert" });
const figures = h("p", { class: "quiet status" });
let typing = false;
let last = null;
const popover = new Popover(editor.element);
const form = optionsOf("CheckRequest", GROUPS, { onchange: () => checking.ask() });

function request() {
  const fields = { text: editor.text, ...form.values() };
  if (fields.precision === undefined) fields.threshold = Number(threshold.value);
  if (model()) fields.model = model();
  return fields;
}

const checking = new Latest(
  async (signal) => {
    const text = editor.text;
    if (!text.trim()) return show([], text, []);
    const { reply, ms } = await ask("/v1/check", request(), { signal });
    const average = reply.bits_per_word === null ? "" : `${reply.bits_per_word.toFixed(1)} bits per word`;
    const expected = reply.precision === null ? "" : `measured precision ${percent(reply.precision)}`;
    tellFacts(figures, reply.model, average, expected, milliseconds(ms));
    show(reply.issues, text, reply.words);
  },
  (error) => (problem.textContent = error && !form.mark(error) ? error.message : ""),
);

/** Show the issues, except for the word that is being typed. */
function show(issues, text, words) {
  last = [issues, text, words];
  const surprise = new Map(words.map((word) => [word.start, word.surprisal_bits]));
  const marks = issues
    .map((issue, place) => ({
      issue,
      place,
      class: "issue",
      start: unitsOf(text, issue.start),
      end: unitsOf(text, issue.end),
    }))
    .filter((mark) => !typing || mark.end !== editor.area.selectionStart);
  editor.mark(marks);
  title.textContent = marks.length === 1 ? "1 issue" : `${marks.length} issues`;
  fill(
    list,
    marks.length
      ? marks.map((mark) => itemOf(mark, surprise.get(mark.issue.start)))
      : h("li", { class: "quiet found" }, "No issues found."),
  );
}

/** Show all issues after typing has paused. */
function pause() {
  if (!typing) return;
  typing = false;
  if (last && last[1] === editor.text) show(...last);
}

function itemOf(mark, surprise) {
  const { issue } = mark;
  const about = (KINDS[issue.type] ?? issue.type) + (surprise === undefined ? "" : ` · ${bits(surprise)}`);
  const head = div(
    "row",
    h("b", {}, issue.text),
    h("span", { class: "value" }, `${percent(issue.probability)} likely to be wrong`),
  );
  const foot = div(
    "row",
    h("span", { class: "value" }, about),
    button("Add to dictionary", () => addWord(issue.text), { class: "quiet" }),
  );
  return h(
    "li",
    { class: "card found", onpointerenter: () => light(mark.place), onpointerleave: () => light(-1) },
    head,
    foot,
    suggestionsOf(mark),
  );
}

/** Create buttons that replace a word by a suggestion. */
function suggestionsOf(mark) {
  const all = mark.issue.suggestions.map(({ text, probability }) => {
    const press = () => {
      const now = editor.marks.find((other) => other.issue === mark.issue) ?? mark; // an edit may have moved it
      editor.type(text, now.start, now.end);
      say(`${mark.issue.text} replaced by ${text}`);
    };
    const share = probability < 0.001 ? null : h("small", {}, ` ${percent(probability)}`);
    return button([text, share], press, { class: "suggestion" });
  });
  return div("row", all.length ? all : h("span", { class: "quiet" }, "no suggestions"));
}

/** Restore capitals and punctuation of the text. */
async function restore() {
  try {
    const { reply } = await ask("/v1/restore", { texts: [editor.text], ...(model() && { model: model() }) });
    editor.type(reply.results[0].text, 0, editor.text.length);
    say("capitals and punctuation restored");
  } catch (error) {
    problem.textContent = error.message;
  }
}

function addWord(word) {
  const field = form.field("dictionary");
  if (!field) return;
  field.write([field.raw(), word].filter(Boolean).join("\n"));
  keep(field.slot, field.raw());
  checking.ask();
}

/** Highlight the word of a list item. */
function light(place) {
  for (const element of editor.mirror.querySelectorAll(".issue"))
    element.classList.toggle("here", element.mark.place === place);
}

/** Show suggestions beside the clicked word. */
function onClick() {
  pause();
  const mark = editor.markOf(editor.area.selectionStart);
  if (!mark) return popover.hide();
  const about = h("p", { class: "quiet about" }, KINDS[mark.issue.type]);
  popover.show(editor.elementOf(mark), about, suggestionsOf(mark));
}

function onThreshold() {
  shown.textContent = threshold.value;
  keep("threshold", threshold.value);
  checking.ask();
}

/** Build the view. */
export function start(panel) {
  shown.textContent = threshold.value;
  threshold.addEventListener("input", onThreshold);
  editor.area.addEventListener("input", () => {
    typing = true;
    popover.hide();
    checking.ask();
  });
  editor.area.addEventListener("click", onClick);
  editor.area.addEventListener("blur", pause);
  list.addEventListener("mousedown", (event) => event.preventDefault()); // keep the focus on the text
  editor.area.addEventListener("keydown", (event) => event.key === "Escape" && popover.hide());
  events.addEventListener("model", () => checking.ask());
  const strictness = h("label", { class: "slider" }, "Threshold", threshold, shown);
  const left = h(
    "div",
    {},
    h("p", { class: "keys" }, "Each line is a sentence. Click an underlined word for suggestions."),
    editor.element,
    problem,
    div(
      "row foot",
      button("Restore capitals and marks", restore, { class: "quiet" }),
      copyButtons(() => ({ path: "/v1/check", fields: request() })),
      figures,
    ),
    details("settings", "Options", form.element),
  );
  const side = h("aside", { "aria-label": "Issues" }, div("card", strictness, title), list);
  fill(panel, div("columns", left, side));
  form.ready.then(
    () => checking.ask(),
    (error) => (problem.textContent = error.message),
  );
}
