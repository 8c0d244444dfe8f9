/* Heat map of the surprisal of each token; pointing at a token shows its alternatives. */

import { ask } from "./api.js";
import { fill, h } from "./dom.js";
import { Latest } from "./live.js";
import { keep, kept, model } from "./state.js";
import { milliseconds } from "./text.js";
import { align, bars, heated, nextTokens, Popover, surpriseOf } from "./tokens.js";

const LONGEST_LINE = 2000;
const LINES = 64;
const ALTERNATIVES = 6;
const KEPT = 2000; // cached lines, in addition to the text's own

export class Heat {
  #box = h("input", { type: "checkbox", id: "heat", checked: kept("heat", "on") === "on" });
  #read = new Map();
  #reading = new Latest(
    (signal) => this.#run(signal),
    (error) => error && (this.status.textContent = error.message),
  );
  #pointed = null;
  #pointing = new Latest(
    (signal) => this.#showAlternatives(signal),
    (error) => error && this.#popover.hide(),
  );
  #popover;

  /** `onread` is called when the complete text has been scored. */
  constructor(editor) {
    this.editor = editor;
    this.onread = () => {};
    this.status = h("span");
    this.summary = h("p", { class: "summary", hidden: true });
    const scale = h("span", { class: "scale", title: "surprisal from 0 to 16 bits" });
    this.toggle = h("label", { class: "toggle" }, this.#box, "Surprise", scale);
    this.#popover = new Popover(editor.element);
    this.#box.addEventListener("change", () => {
      keep("heat", this.#box.checked ? "on" : "off");
      this.ask();
    });
    editor.area.addEventListener("pointermove", (event) =>
      this.#point(editor.markAt(event.clientX, event.clientY)),
    );
    editor.area.addEventListener("pointerleave", () => this.#point(null));
    editor.area.addEventListener("input", () => this.#point(null));
  }

  /** Score the changed lines. */
  ask() {
    if (this.#box.checked) return this.#reading.ask();
    this.editor.mark([]);
    this.summary.hidden = true;
    this.status.textContent = "";
  }

  /** Return the text of the next token after an offset; undefined inside a token. */
  tokenAfter(offset) {
    const next = this.editor.marks.find((mark) => mark.end > offset);
    return next && next.start >= offset ? next.tokens[next.place].text : undefined;
  }

  async #run(signal) {
    const text = this.editor.text;
    const lines = text.split("\n");
    const key = (line) => `${model() ?? ""}\n${line}`;
    const wanted = new Set(lines.map(key));
    if (this.#read.size > KEPT) for (const old of this.#read.keys()) if (!wanted.has(old)) this.#read.delete(old);
    const unread = [
      ...new Set(
        lines.filter((line) => line.trim() && line.length <= LONGEST_LINE && !this.#read.has(key(line))),
      ),
    ];
    for (let k = 0; k < unread.length; k += LINES) {
      const texts = unread.slice(k, k + LINES);
      const fields = { texts, detail: "token", eos: false, ...(model() ? { model: model() } : {}) };
      const { reply, ms } = await ask("/v1/score", fields, { signal });
      texts.forEach((line, place) => this.#read.set(key(line), reply.results[place].tokens));
      this.status.textContent = `surprise ${milliseconds(ms)}`;
    }
    this.#show(
      lines,
      lines.map((line) => this.#read.get(key(line)) ?? []),
    );
    this.onread();
  }

  #show(lines, tokens) {
    let start = 0;
    const marks = lines.flatMap((line, place) => {
      const first = start;
      start += line.length + 1;
      const moved = (mark) => ({
        ...heated(mark),
        start: mark.start + first,
        end: mark.end + first,
        tokens: tokens[place],
      });
      return align(line, tokens[place]).map(moved);
    });
    this.editor.mark(marks);
    const words = this.editor.text.split(/\s+/).filter(Boolean).length;
    const total = marks.reduce((sum, mark) => sum + mark.bits, 0);
    const hottest = [...marks].sort((a, b) => b.bits - a.bits).slice(0, 3);
    this.summary.hidden = marks.length === 0;
    const most = hottest.map((mark, k) => [
      k ? ", " : "",
      h("b", { dir: "auto" }, mark.text),
      ` (${mark.bits.toFixed(0)})`,
    ]);
    fill(this.summary, `${(total / Math.max(words, 1)).toFixed(1)} bits per word; most surprising: `, most);
  }

  #point(found) {
    if (found?.element === this.#pointed?.element) return;
    this.#pointed = found;
    if (found) this.#pointing.ask();
    else {
      this.#pointing.cancel();
      this.#popover.hide();
    }
  }

  async #showAlternatives(signal) {
    const { mark } = this.#pointed;
    const before = mark.tokens.slice(0, mark.place).map((token) => token.id);
    const found = await nextTokens(before, {}, signal);
    const list = h("ol", { class: "bars" }, bars(found.candidates.slice(0, ALTERNATIVES), { actual: mark.tokens[mark.place].text }));
    if (this.#pointed?.element.isConnected) this.#popover.show(this.#pointed.element, surpriseOf(mark), list);
  }
}
