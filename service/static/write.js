/* Write tab: completions under the caret, next-token predictions, and a heat map of surprisal. */

import { ask, get, send } from "./api.js";
import { attachAutocomplete } from "./autocomplete.js";
import { copyButtons } from "./code.js";
import { button, details, div, fill, h, keysOf } from "./dom.js";
import { Editor } from "./editor.js";
import { optionsOf } from "./fields.js";
import { Heat } from "./heat.js";
import { Keyboard } from "./keyboard.js";
import { Latest } from "./live.js";
import { TEXTS, WRITTEN } from "./samples.js";
import { events, keep, kept, model } from "./state.js";
import { milliseconds, percent } from "./text.js";
import { bars, nextTokens } from "./tokens.js";
import { WordList } from "./word_list.js";

const GROUPS = [
  ["", ["limit", "max_words", "rank", "casing", "fuzzy", "min_probability", "no_repeats"]],
  ["Your own words: a user's lines are learnt on Enter", ["user", "user_weight", "dictionary", "blocklist", "slots"]],
  ["Limits", ["max_steps", "open_vocabulary", "timeout_ms"]],
];
const NEXT = [["", ["unit", "top_k", "entropy", "slots"]]];

const editor = new Editor("write", WRITTEN, {
  "aria-label": "Text to write",
  placeholder: "Type here…",
});
const status = { completions: h("span"), next: h("span") };
const problem = h("p", { class: "error", role: "alert" });
const expected = {
  title: h("h2", {}, "Next tokens"),
  about: h("p", { class: "quiet" }),
  list: h("ol", { class: "bars" }),
  asked: { path: "/v1/next-token", fields: { context: "" } },
};
const form = optionsOf("AutocompleteRequest", GROUPS, {
  defaults: { limit: 6 },
  onchange: () => completions?.refresh(),
});
const nextForm = optionsOf("NextTokenRequest", NEXT, {
  onchange: () => expecting.ask(),
});
const heat = new Heat(editor);
const kinds = new Map();
let caret = -1;
let completions = null;
const list = new WordList(() => completions?.refresh());
const keyboard = new Keyboard((letter) => editor.type(letter));
let asked = { path: "/v1/autocomplete", fields: { text: typed() ?? "", ...options() } };

/** Return the options of completions; the words of a stored list are among those of the dictionary. */
function options() {
  const { dictionary = [], ...values } = form.values();
  const words = list.chosen ? [...dictionary, { wordlist: list.chosen }] : dictionary;
  return words.length ? { ...values, dictionary: words } : values;
}

/** Return the line up to the caret; null with a selection. */
function typed() {
  const { selectionStart: caret, selectionEnd } = editor.area;
  return caret === selectionEnd ? editor.text.slice(editor.text.lastIndexOf("\n", caret - 1) + 1, caret) : null;
}

const tell = (error) => {
  problem.textContent = error && !form.mark(error) ? error.message : "";
};

/** Send a request for completions with the page's key, and show how long it took. */
async function complete(url, { body, signal }) {
  const began = performance.now();
  const fields = JSON.parse(body);
  asked = { path: "/v1/autocomplete", fields: { ...fields, keys: keyboard.keysOf(fields.text) } };
  const response = await send(url, { body: JSON.stringify(asked.fields), signal });
  const { unexplored_mass: mass } = await response.clone().json();
  const unseen = mass > 0.005 ? `, ${percent(mass)} unexplored` : "";
  status.completions.textContent = `completions ${milliseconds(performance.now() - began)}${unseen}`;
  tell(null);
  return response;
}

/** Create the content of an option of the list. */
function render(item) {
  const at = item.text.length - (item.suffix ?? item.text).trimStart().length;
  const typed = h("span", { class: "quiet" }, item.text.slice(0, at));
  const word = [typed, item.text.slice(at), item.is_complete_word ? "" : "…"];
  const notes = [item.edits && "corrected", item.source === "user" && "yours"].filter(Boolean).join(", ");
  return h(
    "span",
    { class: "completion", css: { "--share": item.probability.toFixed(4) } },
    h("span", { class: "word" }, word),
    h("span", { class: "note" }, notes),
    h("span", { class: "value" }, percent(item.probability)),
  );
}

const expecting = new Latest(
  async (signal) => {
    const line = typed();
    if (line === null) return;
    const found = await nextAfter(line, signal).catch((error) => {
      if (!signal.aborted) fill(expected.list);
      throw error;
    });
    const actual = heat.tokenAfter(editor.area.selectionStart);
    fill(expected.list, bars(found.candidates, { actual, onchoose: (text) => insert(text).catch(tell) }));
    fill(expected.about, aboutNext(found), h("span", { class: "model" }, found.model));
    expected.asked = { path: "/v1/next-token", fields: found.fields };
    status.next.textContent = `next ${nextForm.values().unit ?? "token"} ${milliseconds(found.ms)}`;
  },
  (error) => error && fill(expected.about, nextForm.mark(error) ? "" : error.message),
);

/** Predict the next tokens; trailing space is cut, because most tokens include the space before a word. */
async function nextAfter(line, signal) {
  const context = (await kindOfTokens(signal)) === "char" ? line : line.trimEnd();
  return nextTokens(context, nextForm.values(), signal);
}

/** Return the token type of the model: words, pieces or characters. */
async function kindOfTokens(signal) {
  const name = model() ?? "";
  if (!kinds.has(name)) {
    const path = `/tokenizer_info${name && `?model=${encodeURIComponent(name)}`}`;
    kinds.set(name, (await get(path, signal)).tokenizer_class);
  }
  return kinds.get(name);
}

function aboutNext({ entropy_bits: entropy, unexplored_mass: unseen }) {
  if (unseen !== undefined) return `${percent(unseen)} unexplored`;
  return entropy === null ? "" : `${entropy.toFixed(1)} bits of entropy`;
}

/** Insert a token after the caret; add a missing space before words and tokens with a leading space. */
async function insert(token) {
  const before = editor.text.slice(0, editor.area.selectionStart);
  if (token === "</s>") return editor.type("\n");
  const spaced = (await kindOfTokens()) === "word" || nextForm.values().unit === "word" ? ` ${token}` : token;
  return editor.type(/(^|\s)$/.test(before) ? spaced.trimStart() : spaced);
}

const userPath = (rest = "") => `/v1/autocomplete/users/${encodeURIComponent(form.values().user)}${rest}`;

/** Add a finished line to the user's own words, if a user is set; Enter that accepts a completion does not count.
 * The list is updated then: keys typed meanwhile may have been answered without these words. */
function learn(event) {
  const ends = event.key === "Enter" && !event.defaultPrevented && !event.isComposing;
  const line = ends && typed()?.trim();
  if (line && form.values().user) ask(userPath("/accepted"), { text: line }).then(completions.refresh, tell);
}

function forget(path) {
  if (form.values().user) ask(path, undefined, { method: "DELETE" }).then(completions.refresh, tell);
}

function forgetSelected() {
  const { value, selectionStart, selectionEnd } = editor.area;
  forget(userPath(`/words/${encodeURIComponent(value.slice(selectionStart, selectionEnd).trim())}`));
}

function refresh() {
  caret = editor.area.selectionStart;
  completions.refresh();
  expecting.ask();
  heat.ask();
}

/** Build the view. */
export function start(panel) {
  const samples = Object.entries(TEXTS).map(([name, text]) =>
    button(name, () => {
      editor.text = text;
      editor.area.focus();
      editor.area.setSelectionRange(text.length, text.length);
    }),
  );
  const told = ["Tab", " accepts · ", "↑", " ", "↓", " choose · ", "Esc", " hides the list, then Tab moves on"];
  const forgetting = [
    button("Delete the selected word", forgetSelected, { class: "quiet" }),
    button("Delete this user's words", () => forget(userPath()), { class: "quiet" }),
  ];
  const settings = details("settings", "Options", form.element, forgetting);
  const writing = h(
    "div",
    {},
    div("row", h("span", { class: "quiet" }, "Try"), samples, heat.toggle),
    editor.element,
    keysOf(...told),
    heat.summary,
    problem,
  );
  const foot = div(
    "row foot",
    copyButtons(() => asked),
    h("p", { class: "quiet status" }, status.completions, status.next, heat.status),
  );
  const side = h(
    "aside",
    { class: "card", "aria-label": "Next tokens" },
    expected.title,
    expected.about,
    expected.list,
    details("settings", "Options", nextForm.element, copyButtons(() => expected.asked)),
  );
  fill(panel, div("columns", h("div", {}, writing, foot, keyboard.element, settings, list.element), side));
  completions = attachAutocomplete(editor.area, {
    delay: 0,
    eager: true,
    get fields() {
      return { ...options(), model: model() };
    },
    fetch: complete,
    render,
    onError: (error) => {
      if (error.code === "unknown_word_list") list.read(); // another page has deleted it
      else tell(error.away ? null : error);
    },
  });
  editor.area.addEventListener("input", refresh);
  editor.area.addEventListener("keydown", learn);
  editor.area.addEventListener("focus", completions.refresh);
  document.addEventListener("selectionchange", moved);
  events.addEventListener("model", refresh);
  events.addEventListener("back", () => {
    kinds.clear(); // a name may refer to another model now
    completions.refresh();
  });
  Promise.all([form.ready, nextForm.ready]).then(refresh, tell); // with the stored options
  heat.onread = () => expecting.ask();
  expecting.ask();
  heat.ask();
  if (document.activeElement === document.body) editor.area.focus();
}

/** Update after the caret moved without typing. */
function moved() {
  if (document.activeElement !== editor.area || editor.area.selectionStart === caret) return;
  caret = editor.area.selectionStart;
  completions.refresh();
  expecting.ask();
}
