/* Text area with a mirror element behind it, for marks in the text. */

import { fill, h } from "./dom.js";
import { keep, kept } from "./state.js";

export class Editor {
  #marks = [];
  #before = "";
  #frame = 0;

  /** `name` is the storage key of the text; `attributes` are set on the text area. */
  constructor(name, text, attributes) {
    this.name = name;
    this.area = h("textarea", {
      rows: 4,
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      ...attributes,
      value: kept(name, text),
    });
    this.mirror = h("div", { class: "mirror", "aria-hidden": "true" });
    this.element = h("div", { class: "editor" }, this.mirror, this.area);
    this.#before = this.area.value;
    this.area.addEventListener("input", () => this.#follow());
    this.#draw();
  }

  get text() {
    return this.area.value;
  }

  set text(text) {
    this.area.value = text;
    this.area.dispatchEvent(new Event("input"));
  }

  /** Mark parts of the text, sorted and disjoint: {start, end, class, css, …}; edits move them. */
  mark(marks) {
    this.#marks = marks;
    this.#draw();
  }

  get marks() {
    return this.#marks;
  }

  /** Replace [start, end) by a text, with undo. */
  type(text, start = this.area.selectionStart, end = this.area.selectionEnd) {
    this.area.focus();
    this.area.setSelectionRange(start, end);
    if (document.execCommand("insertText", false, text)) return; // only this preserves the browser's undo history
    this.area.setRangeText(text, start, end, "end");
    this.area.dispatchEvent(new Event("input"));
  }

  /** Return the mark at a point of the window and its element; null without a mark. */
  markAt(x, y) {
    for (const element of document.elementsFromPoint(x, y)) {
      if (element.mark && this.mirror.contains(element)) return { mark: element.mark, element };
    }
    return null;
  }

  /** Return the current element of a mark. */
  elementOf(mark) {
    this.#paint();
    return [...this.mirror.children].find((element) => element.mark === mark);
  }

  /** Return the mark at an offset, or null. */
  markOf(offset) {
    return this.#marks.find((mark) => mark.start <= offset && offset < mark.end) ?? null;
  }

  #follow() {
    const [before, after] = [this.#before, this.area.value];
    let same = 0;
    while (same < Math.min(before.length, after.length) && before[same] === after[same]) same++;
    let end = 0;
    while (end < Math.min(before.length, after.length) - same && before.at(-1 - end) === after.at(-1 - end))
      end++;
    const moved = after.length - before.length;
    this.#marks = this.#marks
      .filter((mark) => mark.end <= same || mark.start >= before.length - end)
      .map((mark) =>
        mark.end <= same ? mark : { ...mark, start: mark.start + moved, end: mark.end + moved },
      );
    this.#before = after;
    keep(this.name, after);
    this.#draw();
  }

  /** Draw in the next animation frame, once for all changes until then. */
  #draw() {
    this.#frame ||= requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const text = this.area.value;
    const pieces = [];
    let at = 0;
    for (const mark of this.#marks) {
      const span = h("span", { class: mark.class, css: mark.css }, text.slice(mark.start, mark.end));
      span.mark = mark;
      pieces.push(text.slice(at, mark.start), span);
      at = mark.end;
    }
    pieces.push(text.slice(at), "\u200b"); // gives an empty last line its height
    fill(this.mirror, pieces);
  }
}
