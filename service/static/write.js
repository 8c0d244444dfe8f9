/* Write tab: completions under the caret, next-token predictions, and a heat map of surprisal. */

import { ask, get } from "./api.js";
import { Completions } from "./complete.js";
import { copyButtons } from "./code.js";
import { button, fill, h } from "./dom.js";
import { Editor } from "./editor.js";
import { optionsOf } from "./fields.js";
import { Heat } from "./heat.js";
import { Latest } from "./live.js";
import { TEXTS, WRITTEN } from "./samples.js";
import { events, keep, kept, model } from "./state.js";
import { milliseconds, percent } from "./text.js";
import { bars, nextTokens } from "./tokens.js";

const GROUPS = [
  ["", ["limit", "max_words", "rank", "casing", "fuzzy", "min_probability"]],
  ["Your own words: a user's lines are learnt on Enter", ["user", "user_weight", "dictionary", "blocklist"]],
  ["Limits", ["max_steps", "timeout_ms"]],
];
const NEXT = [["", ["unit", "top_k", "entropy"]]];
const INSIDE_WORD = /^[\p{L}\p{N}\p{M}_]/u;

const editor = new Editor("write", WRITTEN, {
  "aria-label": "Text to write",
  placeholder: "Type here…",
});
const session = kept("session") || crypto.getRandomValues(new Uint32Array(2)).join("-");
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
  onchange: () => completing.ask(),
});
const nextForm = optionsOf("NextTokenRequest", NEXT, {
  defaults: { top_k: 12 },
  onchange: () => expecting.ask(),
});
const heat = new Heat(editor);
const completions = new Completions(editor, () => completing.cancel());
const kinds = new Map();
let caret = -1;
let asked = { path: "/v1/autocomplete", fields: request() };

/** Return the line up to the caret, its start, and whether the caret is inside a word; null with a selection. */
function typed() {
  const { selectionStart: caret, selectionEnd } = editor.area;
  if (caret !== selectionEnd) return null;
  const start = editor.text.lastIndexOf("\n", caret - 1) + 1;
  return { line: editor.text.slice(start, caret), start, inside: INSIDE_WORD.test(editor.text.slice(caret)) };
}

function request() {
  const fields = { text: typed()?.line ?? "", session, ...form.values() };
  if (model()) fields.model = model();
  return fields;
}

const tell = (error) => {
  problem.textContent = error && !form.mark(error) ? error.message : "";
};

const completing = new Latest(async (signal) => {
  const place = typed();
  if (!place || place.inside || document.activeElement !== editor.area) return completions.hide();
  const fields = request();
  asked = { path: "/v1/autocomplete", fields };
  const { reply, ms } = await ask("/v1/autocomplete", fields, { signal }).catch((error) => {
    if (!signal.aborted) completions.hide();
    throw error;
  });
  completions.show(reply, place.start, place.line);
  const unseen = reply.unexplored_mass > 0.005 ? `, ${percent(reply.unexplored_mass)} unexplored` : "";
  status.completions.textContent = `completions ${milliseconds(ms)}${unseen}`;
}, tell);

const expecting = new Latest(
  async (signal) => {
    const place = typed();
    if (!place) return;
    const found = await nextAfter(place.line, signal).catch((error) => {
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

/** Add a finished line to the user's own words, if a user is set; Enter that accepts a completion does not count. */
function learn(event) {
  const ends = event.key === "Enter" && !event.defaultPrevented && !event.isComposing;
  const line = ends && typed()?.line.trim();
  if (line && form.values().user) ask(userPath("/accepted"), { text: line }).catch(tell);
}

async function forget() {
  if (form.values().user) await ask(userPath(), undefined, { method: "DELETE" }).catch(tell);
  completing.ask();
}

function refresh() {
  caret = editor.area.selectionStart;
  completing.ask();
  expecting.ask();
  heat.ask();
}

/** Build the view. */
export function start(panel) {
  keep("session", session);
  const samples = Object.entries(TEXTS).map(([name, text]) =>
    button(name, () => {
      editor.text = text;
      editor.area.focus();
      editor.area.setSelectionRange(text.length, text.length);
    }),
  );
  const keys = h(
    "p",
    { class: "keys" },
    ["Tab", " accepts · ", "↑", " ", "↓", " choose · ", "Esc", " hides the list, then Tab moves on"].map((part, k) =>
      k % 2 ? part : h("kbd", {}, part),
    ),
  );
  const options = h(
    "details",
    { class: "settings" },
    h("summary", {}, "Options"),
    form.element,
    button("Delete this user's words", forget, { class: "quiet" }),
  );
  const writing = h(
    "div",
    {},
    h("div", { class: "row" }, h("span", { class: "quiet" }, "Try"), samples, heat.toggle),
    editor.element,
    keys,
    heat.summary,
    problem,
  );
  const foot = h(
    "div",
    { class: "row foot" },
    copyButtons(() => asked),
    h("p", { class: "quiet status" }, status.completions, status.next, heat.status),
  );
  const side = h(
    "aside",
    { class: "card", "aria-label": "Next tokens" },
    expected.title,
    expected.about,
    expected.list,
    h(
      "details",
      { class: "settings" },
      h("summary", {}, "Options"),
      nextForm.element,
      copyButtons(() => expected.asked),
    ),
  );
  fill(panel, h("div", { class: "columns" }, h("div", {}, writing, foot, options), side));
  editor.area.addEventListener("input", () => {
    completions.follow();
    refresh();
  });
  editor.area.addEventListener("keydown", learn);
  editor.area.addEventListener("focus", () => completing.ask());
  document.addEventListener("selectionchange", moved);
  events.addEventListener("model", refresh);
  events.addEventListener("back", () => kinds.clear()); // a name may refer to another model now
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
  completing.ask();
  expecting.ask();
}
