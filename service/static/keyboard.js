/* Keyboard to touch: where it is touched is evidence of the letters meant. */

import { details, h } from "./dom.js";

/** Rows of four columns a key. */
const ROWS = ["q   w   e   r   t   y   u   i   o   p", " a   s   d   f   g   h   j   k   l", "   z   x   c   v   b   n   m"];

export class Keyboard {
  #touches = [];
  #keys = h("pre", { class: "touch", role: "img", "aria-label": "Keyboard" }, ROWS.join("\n"));

  /** `type(letter)` is called for each touch. */
  constructor(type) {
    const hint = h("p", { class: "quiet" }, "Touch near the letters of a word: the places tell which may be meant.");
    this.element = details("settings", "Touch keyboard", hint, this.#keys);
    this.#keys.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // keep the focus in the text
      const { left, top, width, height } = this.#keys.getBoundingClientRect();
      const place = [((event.clientX - left) / width) * 10, ((event.clientY - top) / height) * 3];
      const row = ROWS[Math.floor(place[1])];
      const letter = row.trim()[4 * Math.round(place[0] - 0.5 - row.search(/\S/) / 4)];
      if (!letter) return;
      this.#touches.push({ letter, place });
      type(letter);
    });
  }

  /** Return the places of the touches that have typed the last word of a text, or undefined. */
  keysOf(text) {
    const word = text.match(/\S*$/)[0];
    this.#touches.length = Math.min(this.#touches.length, word.length);
    if (word !== this.#touches.map(({ letter }) => letter).join("")) this.#touches = [];
    return this.#touches.length ? this.#touches.map(({ place }) => place) : undefined;
  }
}
