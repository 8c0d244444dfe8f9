/* List of completions under the caret; the first one also appears as grey text after the caret. */

import { fill, freshId, h } from "./dom.js";
import { percent, unitsOf } from "./text.js";

export class Completions {
  #list = h("ul", {
    role: "listbox",
    id: freshId("completions"),
    class: "completions",
    "aria-label": "Completions",
    hidden: true,
  });
  #items = [];
  #chosen = -1;
  #places = null;
  #prefix = "";
  #spaced = -1;
  #length = 0;
  #awaited = false;
  #eager = false;

  /** `ondismiss` is called when Escape closes the list. */
  constructor(editor, ondismiss) {
    Object.assign(this, { editor, ondismiss });
    const roles = {
      role: "combobox",
      "aria-autocomplete": "list",
      "aria-haspopup": "listbox",
      "aria-controls": this.#list.id,
      "aria-expanded": "false",
    };
    for (const [name, value] of Object.entries(roles)) editor.area.setAttribute(name, value);
    editor.element.append(this.#list);
    editor.area.addEventListener("keydown", (event) => this.#onKey(event));
    editor.area.addEventListener("beforeinput", (event) => this.#closeUp(event));
    editor.area.addEventListener("blur", () => this.hide());
  }

  /** Show a reply for the line that begins at an offset. */
  show(reply, lineStart, line) {
    this.#items = reply.completions.filter((item) => item.suffix !== ""); // an empty suffix changes nothing
    this.#prefix = reply.prefix;
    this.#places = { from: lineStart + unitsOf(line, reply.start), to: lineStart + line.length };
    this.#awaited = false;
    this.#draw();
    if (this.#eager && this.#items.length) return this.#accept(0);
    this.#eager = false;
  }

  /** Handle typing: drop completions that no longer match, and await the next reply. */
  follow() {
    const { selectionStart: caret } = this.editor.area;
    const typed = this.#places && this.editor.text.slice(this.#places.to, caret);
    const goesOn =
      this.#items.length > 0 &&
      caret > this.#places.to &&
      this.editor.text.length === this.#length + typed.length;
    const fits = (item) => goesOn && item.suffix?.startsWith(typed) && item.suffix !== typed;
    this.#items = this.#items
      .filter(fits)
      .map((item) => ({ ...item, suffix: item.suffix.slice(typed.length) }));
    this.#awaited = true;
    if (!this.#items.length) return this.#close();
    this.#prefix = `${this.#prefix}${typed}`.trimStart();
    this.#places = { ...this.#places, to: caret };
    this.#draw();
  }

  /** Stop awaiting a reply. */
  settle() {
    this.#awaited = this.#eager = false;
  }

  #draw() {
    this.#length = this.editor.text.length;
    this.#chosen = -1;
    fill(
      this.#list,
      this.#items.map((item, place) => this.#option(item, place)),
    );
    const any = this.#items.length > 0;
    this.#list.hidden = !any;
    this.editor.area.setAttribute("aria-expanded", any);
    this.editor.area.removeAttribute("aria-activedescendant");
    if (!any) return void this.editor.ghost("");
    const atEnd = this.#places.to === this.editor.text.length;
    this.editor.ghost(atEnd ? (this.#items[0].suffix ?? "") : "");
    const { left, top, height } = this.editor.caretPlace();
    const room = this.editor.element.clientWidth - this.#list.offsetWidth;
    this.#list.style.left = `${Math.max(0, Math.min(left, room))}px`;
    this.#list.style.top = `${top + height + 4}px`;
  }

  hide() {
    this.settle();
    this.#close();
  }

  #close() {
    this.#items = [];
    this.#list.hidden = true;
    this.editor.area.setAttribute("aria-expanded", "false");
    this.editor.area.removeAttribute("aria-activedescendant");
    this.editor.ghost("");
  }

  #option(item, place) {
    const typed = item.suffix !== null && item.text.startsWith(this.#prefix) ? this.#prefix : "";
    const word = [
      h("span", { class: "typed" }, typed),
      item.text.slice(typed.length),
      item.is_complete_word ? null : "…",
    ];
    const notes = [item.edits ? "corrected" : null, item.source === "user" ? "yours" : null]
      .filter(Boolean)
      .join(", ");
    return h(
      "li",
      {
        role: "option",
        id: `${this.#list.id}-${place}`,
        "aria-selected": "false",
        css: { "--share": item.probability.toFixed(4) },
        onpointerdown: (event) => {
          event.preventDefault(); // keep the focus on the text area
          this.#accept(place);
        },
      },
      h("span", { class: "word" }, word),
      h("span", { class: "note" }, notes),
      h("span", { class: "value" }, percent(item.probability)),
    );
  }

  #onKey(event) {
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.#list.hidden) return this.#onEarlyKey(event);
    const last = this.#items.length - 1;
    if (event.key === "ArrowDown") this.#choose(this.#chosen === last ? 0 : this.#chosen + 1);
    else if (event.key === "ArrowUp") this.#choose(this.#chosen <= 0 ? last : this.#chosen - 1);
    else if (event.key === "Escape") this.#dismiss();
    else if (event.key === "Tab" && !event.shiftKey) this.#accept(Math.max(this.#chosen, 0));
    else if (event.key === "Enter" && this.#chosen >= 0) this.#accept(this.#chosen);
    else return;
    event.preventDefault();
  }

  /** Handle a key before the reply: Tab accepts the first completion on arrival, Escape cancels. */
  #onEarlyKey(event) {
    if (!this.#awaited) return;
    if (event.key === "Escape") this.#dismiss();
    else if (event.key === "Tab" && !event.shiftKey) this.#eager = true;
    else return;
    event.preventDefault();
  }

  #dismiss() {
    this.hide();
    this.ondismiss();
  }

  #choose(place) {
    this.#chosen = place;
    [...this.#list.children].forEach((option, k) => option.setAttribute("aria-selected", k === place));
    this.editor.area.setAttribute("aria-activedescendant", `${this.#list.id}-${place}`);
    if (this.#places.to === this.editor.text.length) this.editor.ghost(this.#items[place].suffix ?? "");
  }

  #accept(place) {
    const item = this.#items[place];
    const { from, to } = this.#places;
    this.hide();
    if (this.editor.area.selectionStart !== to) return; // the caret has moved
    const space = item.is_complete_word && !/^\s/.test(this.editor.text.slice(to)) ? " " : "";
    if (item.suffix === null) this.editor.type(item.text + space, from, to);
    else this.editor.type(item.suffix + space, to, to);
    this.#spaced = space ? this.editor.area.selectionStart : -1;
  }

  /** Replace the space after an accepted completion by punctuation that is typed next. */
  #closeUp(event) {
    const here = this.editor.area.selectionStart;
    if (here === this.#spaced && /^[.,;:!?)\]}]$/.test(event.data ?? ""))
      this.editor.area.setSelectionRange(here - 1, here);
    this.#spaced = -1;
  }
}
