/* Panel of a word list: its entries are stored in the service, and completions use them if wanted. */

import { get, send } from "./api.js";
import { button, details, div, fill, freshId, h } from "./dom.js";
import { asNumber } from "./fields.js";
import { events, keep, kept } from "./state.js";
import { number } from "./text.js";

const PATH = "/v1/wordlists";
const SPACES_BEFORE_NUMBER = / {2,}(?=[\d.]+\s*$)/;

/** Return a text's entries as JSON lines; blank lines stay, so that errors name the lines of the text. */
const linesOf = (text) =>
  text.split("\n").map((line) => {
    const [entry, weight] = line.replace(SPACES_BEFORE_NUMBER, "\t").split("\t", 2).map((part) => part.trim());
    return line.trim() && JSON.stringify(weight ? { text: entry, weight: asNumber(weight) } : entry);
  });

export class WordList {
  #stored = new Map();
  #name = this.#control("name", "input", { type: "text", autocomplete: "off", list: freshId("lists") }, "mine");
  #entries = this.#control("entries", "textarea", { rows: 6, placeholder: "coffee machine\t400\ncorkscrew" });
  #used = this.#control("used", "input", { type: "checkbox" });
  #names = h("datalist", { id: this.#name.getAttribute("list") });
  #told = h("p", { class: "quiet", role: "status" });
  #problem = h("p", { class: "error", role: "alert" });
  #save = button("Save", () => this.#change("PUT", linesOf(this.#entries.value).join("\n")));
  #delete = button("Delete", () => this.#change("DELETE"));
  #onchange;

  /** `onchange()` is called when completions may be others. */
  constructor(onchange) {
    this.#onchange = onchange;
    this.#used.checked = kept("list.used") !== "";
    this.element = details(
      "settings",
      "Word list",
      div(
        "fields",
        this.#field("field", "Name", this.#name, this.#names),
        this.#field("field whole entries", "Entries", this.#entries),
        h("p", { class: "quiet whole", id: "list-hint" }, "One per line; a weight may follow after a tab or two spaces."),
      ),
      div("row", this.#save, this.#delete, this.#told, h("label", { class: "toggle" }, this.#used, "Use in completions")),
      this.#problem,
    );
    this.#entries.setAttribute("aria-describedby", "list-hint");
    this.#name.addEventListener("input", () => this.#show());
    this.#used.addEventListener("change", () => this.#show());
    const follow = () => (this.element.open || this.#used.checked) && this.read();
    this.element.addEventListener("toggle", follow);
    events.addEventListener("back", follow);
    this.#show();
    follow();
  }

  /** Name of the list if it is stored and completions use it, or null. */
  get chosen() {
    return this.#used.checked && this.#stored.has(this.#key) ? this.#key : null;
  }

  /** Read again which lists are stored. */
  read() {
    return this.#attempt(async () => {
      const { wordlists } = await get(PATH);
      this.#stored = new Map(wordlists.map((one) => [one.name, one]));
    });
  }

  get #key() {
    return this.#name.value.trim();
  }

  #control(name, element, attributes, otherwise = "") {
    const slot = `list.${name}`;
    const all = { id: freshId("list"), spellcheck: "false", value: kept(slot, otherwise), ...attributes };
    const control = h(element, all);
    const raw = () => (control.type === "checkbox" ? control.checked && "true" : control.value) || "";
    control.addEventListener("input", () => keep(slot, raw()));
    return control;
  }

  #field(name, title, control, ...more) {
    return div(name, h("label", { for: control.id }, title), control, ...more);
  }

  /** Store or delete the list of the name. */
  #change(method, body) {
    const name = this.#key;
    this.#told.textContent = method === "PUT" ? "saving…" : "deleting…";
    return this.#attempt(async () => {
      const path = `${PATH}/${encodeURIComponent(name)}`;
      const reply = await (await send(path, { method, body, type: "application/x-ndjson" })).json();
      if (method === "PUT") this.#stored.set(name, reply);
      else this.#stored.delete(name);
      if (method === "DELETE") this.#name.focus(); // its button is disabled now
    });
  }

  async #attempt(task) {
    let error = null;
    await task().catch((thrown) => (error = thrown));
    this.#problem.textContent = error && !error.away ? error.message : "";
    this.#show();
  }

  #show() {
    const found = this.#stored.get(this.#key);
    const count = found?.entries;
    this.#told.textContent = found ? `${number(count)} ${count === 1 ? "entry" : "entries"} stored` : "not stored";
    this.#save.disabled = !this.#key;
    this.#delete.disabled = !found;
    fill(this.#names, [...this.#stored.keys()].map((name) => h("option", { value: name })));
    this.#onchange();
  }
}
