/* One endpoint of the interface: its fields, its examples, which can be changed and sent, and the answer. */

import { send } from "./api.js";
import { copyButtons } from "./code.js";
import { button, h } from "./dom.js";
import { render } from "./markdown.js";
import { named, rowOf, tableOf, tablesOf } from "./tables.js";
import { milliseconds } from "./text.js";

const LONGEST_ANSWER = 200_000;
const JSON_TYPE = "application/json";

/** Worked examples of a body or a reply, by media type: {label, type, text}. */
function examplesOf(contents = {}) {
  return Object.entries(contents).flatMap(([type, content]) => {
    const given = Object.values(content.examples ?? {}).map((one) => one.value);
    const all = given.length ? given : (named(content.schema).examples ?? []);
    const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
    return all.map((value, k) => ({ label: k ? `${type}, ${k + 1}` : type, type, text: asText(value) }));
  });
}

export class Endpoint {
  constructor(path, method, operation) {
    Object.assign(this, { path, method: method.toUpperCase(), operation });
    this.body = operation.requestBody?.content?.[JSON_TYPE];
    this.parameters = operation.parameters ?? [];
    const head = [h("span", { class: "method" }, this.method), h("code", {}, path), " "];
    const summary = h("summary", {}, head, h("span", { class: "quiet" }, operation.summary ?? ""));
    this.element = h("details", { class: "card endpoint", id: `${method}-${path}` }, summary);
    this.element.addEventListener("toggle", () => this.element.open && this.#open());
  }

  #open() {
    history.replaceState(null, "", `#docs:${this.method.toLowerCase()}-${this.path}`);
    if (this.element.children.length > 1) return;
    const given = this.parameters.map((one) =>
      rowOf(one.name, { ...one.schema, description: one.description }, one.required),
    );
    const tables = [tableOf("In the address", given), this.body ? tablesOf(this.body.schema, "Body") : null];
    const about = h("div", { class: "markdown" }, render(this.operation.description ?? ""));
    this.element.append(h("div", {}, about, tables, this.#trial(), this.#reply()));
  }

  /** What is answered: fields and an example. */
  #reply() {
    const contents = this.operation.responses?.[200]?.content;
    if (!contents?.[JSON_TYPE]) return null;
    const [example] = examplesOf({ [JSON_TYPE]: contents[JSON_TYPE] });
    const shown = example ? h("pre", { class: "answer", tabindex: "0" }, example.text) : null;
    const fields = tablesOf(contents[JSON_TYPE].schema, "Fields");
    return h("details", {}, h("summary", {}, "Answer"), fields, shown);
  }

  /** The examples, to be changed and sent. */
  #trial() {
    this.inputs = this.parameters.filter((one) => one.in !== "header").map((one) => [one, inputOf(one)]);
    this.result = h("pre", { class: "answer", tabindex: "0", hidden: true });
    this.figures = h("p", { class: "quiet", role: "status" });
    this.labels = this.inputs.map(([one, field]) => h("label", { class: "slider" }, h("code", {}, one.name), field));
    const press = button("Send", () => this.#send(), { class: "primary" });
    const copy = copyButtons(() => this.#request());
    return [
      h("h3", {}, "Try it"),
      this.labels,
      this.body ? this.#bodyEditor() : null,
      h("div", { class: "row" }, press, copy, this.figures),
      this.result,
    ];
  }

  #bodyEditor() {
    const examples = examplesOf(this.operation.requestBody.content);
    this.text = h("textarea", { spellcheck: "false", "aria-label": "Body" });
    this.choice = h("select", { "aria-label": "Example" });
    this.choice.append(...examples.map((one, k) => h("option", { value: k }, one.label)));
    const fillIn = () => {
      const { type, text } = examples[this.choice.value] ?? { type: JSON_TYPE, text: "{}" };
      Object.assign(this, { type });
      this.text.value = text;
      this.text.rows = Math.min(22, text.split("\n").length + 1);
      this.inputs.forEach(([one], k) => (this.labels[k].hidden = !this.#counts(one)));
    };
    this.choice.addEventListener("change", fillIn);
    fillIn();
    return [examples.length > 1 ? this.choice : null, this.text];
  }

  /** Whether a parameter counts: beside a body of JSON options stand in that, and those of the address are of lines. */
  #counts(one) {
    return one.in === "path" || !this.body || this.type !== JSON_TYPE;
  }

  /** What is to be sent, as `copyButtons` has it. */
  #request() {
    let path = this.path;
    const query = new URLSearchParams();
    for (const [one, field] of this.inputs) {
      if (one.in === "path") path = path.replace(`{${one.name}}`, encodeURIComponent(field.value));
      else if (field.value && this.#counts(one)) query.set(one.name, field.value);
    }
    const request = { method: this.method, path: query.size ? `${path}?${query}` : path };
    if (!this.text) return request;
    if (this.type !== JSON_TYPE) return { ...request, raw: this.text.value, type: this.type };
    return { ...request, fields: JSON.parse(this.text.value) };
  }

  async #send() {
    const began = performance.now();
    try {
      const { method, path, fields, raw, type } = this.#request();
      const body = raw ?? (fields === undefined ? undefined : JSON.stringify(fields));
      const answer = await send(path, { method, body, type });
      this.result.textContent = await shownAs(answer);
      this.figures.textContent = `${answer.status} · ${milliseconds(performance.now() - began)}`;
    } catch (error) {
      const wrong = error instanceof SyntaxError;
      this.result.textContent = wrong ? `The body is not JSON: ${error.message}` : error.message;
      this.figures.textContent = error.status ? `${error.status} · ${error.code}` : "not sent";
    }
    this.result.hidden = false;
  }
}

/** Where a parameter of the address is typed. */
function inputOf({ name, example, schema }) {
  const value = String(example ?? schema?.examples?.[0] ?? schema?.default ?? "");
  return h("input", { type: "text", "aria-label": name, placeholder: name, value });
}

/** An answer as text: JSON is set out, what is no text only counted. */
async function shownAs(answer) {
  const type = answer.headers.get("content-type") ?? "";
  if (!/json|text/.test(type)) return `${type}: ${(await answer.arrayBuffer()).byteLength} bytes`;
  const text = await answer.text();
  try {
    return JSON.stringify(JSON.parse(text), null, 2).slice(0, LONGEST_ANSWER);
  } catch {
    return text.slice(0, LONGEST_ANSWER);
  }
}
