/* Heat map marks of tokens, bars of predicted tokens, and the popover that shows them. */

import { ask } from "./api.js";
import { fill, h } from "./dom.js";
import { model } from "./state.js";
import { bits, bitsOf, heatOf, percent, visible } from "./text.js";

/** Return the position of each scored token in its line: {start, end, bits, place, known, text}; none for `</s>`. */
export function align(line, tokens) {
  const marks = [];
  const lower = line.toLowerCase();
  let at = 0;
  tokens.forEach((token, place) => {
    const text = token.text.trim();
    if (token.text === "</s>" && place === tokens.length - 1) return;
    while (at < line.length && /\s/.test(line[at]) && text !== "") at++;
    const known = token.text !== "<unk>";
    const end = known ? at + text.length : endOfUnknown(line, lower, at, tokens[place + 1]);
    const start = at;
    at = lower.startsWith(text.toLowerCase(), at) || !known ? Math.min(end, line.length) : at;
    if (at > start)
      marks.push({ start, end: at, place, known, bits: bitsOf(token.logprob), text: line.slice(start, at) });
  });
  return marks;
}

/** Return the end of an unknown token: the start of the next token, or the end of the word. */
function endOfUnknown(line, lower, at, next) {
  const space = line.slice(at + 1).search(/\s/);
  const word = space < 0 ? line.length : at + 1 + space;
  const text = next?.text.trim().toLowerCase();
  const found = text && !["<unk>", "</s>"].includes(text) ? lower.indexOf(text, at + 1) : -1;
  return found < 0 ? word : Math.min(found, word);
}

/** Add the editor's class and heat to a mark of `align`. */
export const heated = (mark) => ({
  ...mark,
  class: mark.known ? "tok" : "tok unknown",
  css: { "--heat": heatOf(mark.bits) },
});

/** Create bars of candidates {text, logprob}; `actual` is the token in the text. */
export function bars(candidates, { onchoose, actual } = {}) {
  const widest = Math.exp(candidates[0]?.logprob ?? 0);
  return candidates.map(({ text, logprob }) => {
    const p = Math.exp(logprob);
    const parts = [h("span", { class: "word" }, visible(text)), h("span", { class: "value" }, percent(p))];
    const look = {
      class: text === actual ? "bar actual" : "bar",
      css: { "--share": (p / widest).toFixed(4) },
    };
    const press = onchoose && { type: "button", onclick: () => onchoose(text) };
    return h("li", {}, h(press ? "button" : "div", { ...look, ...press }, parts));
  });
}

/** Predict the next tokens, most probable first; `options` are fields of /v1/next-token. */
export async function nextTokens(context, options, signal) {
  const fields = { context, ...options };
  if (model()) fields.model = model();
  const { reply, ms } = await ask("/v1/next-token", fields, { signal });
  return { fields, ms, model: reply.model, ...reply.results[0] };
}

/** Small window beside a token. */
export class Popover {
  constructor(container) {
    this.element = h("div", { class: "popover", hidden: true });
    container.append(this.element);
  }

  /** Show children beside an element of the container. */
  show(beside, ...children) {
    fill(this.element, ...children);
    this.element.hidden = false;
    const frame = this.element.offsetParent.getBoundingClientRect();
    const box = beside.getBoundingClientRect();
    const left = Math.min(box.left - frame.left, frame.width - this.element.offsetWidth);
    this.element.style.left = `${Math.max(0, left)}px`;
    this.element.style.top = `${box.bottom - frame.top + 4}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

/** Create the popover's title: the token and its surprisal. */
export const surpriseOf = (mark) =>
  h(
    "p",
    { class: "about" },
    h("b", {}, visible(mark.text.trim())),
    ` ${bits(mark.bits)}`,
    mark.known ? null : " · unknown token",
  );

/** Make an element's tokens reachable by pointer and arrow keys; call `show(span)` and `hide()` on changes. */
export function explore(element, { show, hide }) {
  let here = null;
  const go = (span) => {
    if (span === here) return;
    here?.classList.remove("here");
    here = span;
    span?.classList.add("here");
    if (span) show(span);
    else hide();
  };
  element.tabIndex = 0;
  element.addEventListener("pointerover", (event) => go(event.target.closest(".tok")));
  element.addEventListener("pointerleave", () => go(null));
  element.addEventListener("blur", () => go(null));
  element.addEventListener("keydown", (event) => {
    const spans = [...element.querySelectorAll(".tok")];
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") return go(null);
    if (!step || !spans.length) return;
    event.preventDefault();
    go(spans[Math.max(0, Math.min(spans.length - 1, spans.indexOf(here) + step))]);
  });
}
