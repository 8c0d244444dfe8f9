/* Forms for request options, generated from the service's OpenAPI document: types, defaults, limits, descriptions. */

import { openapi } from "./api.js";
import { button, details, div, fill, freshId, h } from "./dom.js";
import { inlineOf } from "./markdown.js";
import { keep, kept } from "./state.js";

/** Options with sliders: minimum, maximum, step. Other numbers have text fields. */
const SLIDERS = {
  temperature: [0, 2, 0.05],
  top_p: [0, 1, 0.01],
  typical_p: [0, 1, 0.01],
  min_p: [0, 0.5, 0.01],
  repetition_penalty: [1, 2, 0.05],
  presence_penalty: [-2, 2, 0.1],
  frequency_penalty: [-2, 2, 0.1],
  length_penalty: [0, 2, 0.1],
  diversity_penalty: [0, 2, 0.1],
  min_probability: [0, 0.5, 0.01],
  user_weight: [0, 1, 0.05],
  length_exponent: [0, 1, 0.05],
  posterior_scale: [0, 2, 0.05],
};

/** Return the JSON schema alternatives of a property, with references resolved and null removed. */
function variantsOf(property, schemas) {
  const one = property.$ref ? { ...schemas[property.$ref.split("/").pop()], ...property } : property;
  const all = one.anyOf ?? one.oneOf ?? [one];
  return all
    .flatMap((part) => (part === one ? [one] : variantsOf(part, schemas)))
    .filter((part) => part.type !== "null");
}

/** Return the control of a property: choice, flag, number, lines, pairs, members of classes, or text. */
function kindOf(variants) {
  const has = (type) => variants.find((one) => one.type === type);
  const choices = variants.flatMap((one) => one.enum ?? (one.const === undefined ? [] : [one.const]));
  if (choices.length) return { kind: "choice", choices };
  if (has("array")) return { kind: "lines" };
  const numeric = has("integer") ?? has("number");
  if (numeric)
    return { kind: "number", whole: numeric.type === "integer", low: numeric.minimum, high: numeric.maximum };
  if (has("boolean")) return { kind: "flag" };
  const object = has("object");
  if (!object) return { kind: "text" };
  return { kind: object.additionalProperties?.type === "number" ? "pairs" : "members" };
}

class Field {
  constructor(name, property, schemas, form) {
    Object.assign(
      this,
      { name, form, otherwise: form.defaults[name] ?? property.default ?? null },
      kindOf(variantsOf(property, schemas)),
    );
    if (form.choices[name]) Object.assign(this, { kind: "choice", choices: form.choices[name] });
    this.id = freshId(name);
    this.slot = `${form.name}.${name}`;
    this.control = this.#control();
    this.control.addEventListener(this.kind === "flag" || this.kind === "choice" ? "change" : "input", () =>
      this.#changed(),
    );
    this.problem = h("p", { class: "problem", id: `${this.id}-problem` });
    const hint = h("p", { class: "hint", id: `${this.id}-hint` }, inlineOf(property.description ?? ""));
    this.control.setAttribute("aria-describedby", `${this.id}-hint ${this.id}-problem`);
    const label = h("label", { for: this.id }, name.replaceAll("_", " "));
    this.shown = h("output", { for: this.id });
    this.element = h(
      "div",
      { class: `field ${this.kind}`, title: property.description },
      label,
      this.shown,
      this.control,
      this.problem,
      hint,
    );
    this.write(kept(this.slot));
  }

  #control() {
    const common = { id: this.id, "data-option": this.name };
    const otherwise = this.otherwise === null ? "" : String(this.otherwise);
    if (this.kind === "flag") return h("input", { type: "checkbox", ...common });
    if (this.kind === "choice") {
      const options = this.choices.map((one) => h("option", { value: one }, String(one)));
      return h("select", common, otherwise ? null : h("option", { value: "" }, "–"), options);
    }
    if (this.kind === "lines") return h("textarea", { rows: 2, placeholder: "one per line", ...common });
    if (this.kind === "members")
      return h("textarea", { rows: 2, placeholder: "city: Ulm, New York", spellcheck: "false", ...common });
    if (this.kind === "pairs")
      return h("input", { type: "text", placeholder: "name=number, …", spellcheck: "false", ...common });
    const slider = SLIDERS[this.name];
    if (slider)
      return h("input", { type: "range", min: slider[0], max: slider[1], step: slider[2], ...common });
    const mode = this.kind === "number" ? (this.whole ? "numeric" : "decimal") : null;
    return h("input", {
      type: "text",
      inputmode: mode,
      placeholder: otherwise || "–",
      autocomplete: "off",
      spellcheck: "false",
      ...common,
    });
  }

  #changed() {
    keep(this.slot, this.raw() === this.#default() ? "" : this.raw());
    this.#show();
    this.form.mark(null);
    this.form.onchange();
  }

  #default() {
    if (this.kind === "flag") return String(Boolean(this.otherwise));
    if (this.kind === "choice") return String(this.otherwise ?? "");
    return this.control.type === "range" ? String(this.otherwise ?? this.control.min) : "";
  }

  #show() {
    this.shown.textContent = this.control.type === "range" ? this.control.value : "";
  }

  /** Return the control's value as text. */
  raw() {
    return this.kind === "flag" ? String(this.control.checked) : this.control.value;
  }

  /** Set the value from text; empty text is the default. */
  write(raw) {
    const value = raw === "" ? this.#default() : raw;
    if (this.kind === "flag") this.control.checked = value === "true";
    else this.control.value = value;
    this.#show();
  }

  /** Return the value for a request; undefined for the default. */
  value() {
    const raw = this.raw();
    if (raw === this.#default() || !raw.trim()) return undefined;
    if (this.kind === "flag") return this.control.checked;
    if (this.kind === "number") return asNumber(raw);
    if (this.kind === "choice") return this.choices.find((one) => String(one) === raw);
    if (this.kind === "lines") return raw.split("\n").filter((line) => line !== "");
    if (this.kind === "members") return Object.fromEntries(raw.trim().split("\n").map(asMembers));
    if (this.kind === "pairs") return Object.fromEntries(raw.split(",").map(asPair));
    return raw;
  }

  /** Show an error message, or clear it. */
  tell(message) {
    this.problem.textContent = message;
    this.element.classList.toggle("wrong", message !== "");
    this.control.toggleAttribute("aria-invalid", message !== "");
  }
}

/** Convert a text to a number; other text stays, and the service rejects it by name. */
export const asNumber = (raw) => (Number.isFinite(Number(raw)) ? Number(raw) : raw);
const asPair = (pair) => {
  const [, name, value] = /^(.*?)=?([^=]*)$/.exec(pair.trim());
  return [name.trim(), asNumber(value)];
};

const asMembers = (line) => {
  const [, name, members] = /^\s*\$?(.*?)(?::(.*))?$/.exec(line);
  const texts = (members ?? "").split(",").map((text) => text.trim());
  return [name.trim(), texts.filter(Boolean)];
};

class Form {
  constructor(name, { choices = {}, defaults = {}, onchange = () => {} }) {
    Object.assign(this, {
      name,
      choices,
      defaults,
      onchange,
      fields: [],
      element: div("options"),
    });
  }

  /** Return the page's own defaults and all changed options, for a request. */
  values() {
    const given = this.fields
      .map((one) => [one.name, one.value()])
      .filter(([, value]) => value !== undefined);
    return { ...this.defaults, ...Object.fromEntries(given) };
  }

  /** Show an error at its field; return true if the form has the field. */
  mark(error) {
    const name = error?.param?.split(/[.[]/)[0];
    for (const one of this.fields) one.tell(error && one.name === name ? error.message : "");
    const found = this.fields.find((one) => error && one.name === name);
    if (found) found.element.closest("details")?.setAttribute("open", "");
    return Boolean(found);
  }

  /** Return a field by name. */
  field(name) {
    return this.fields.find((one) => one.name === name);
  }

  reset() {
    for (const one of this.fields) {
      one.write("");
      keep(one.slot, "");
    }
    this.mark(null);
    this.onchange();
  }
}

/**
 * Create a form for some options of a request.
 *
 * `groups` are [title, names]; a group without a title is always open. `choices` adds choices that the OpenAPI document
 * lacks; `defaults` are the page's own defaults.
 */
export function optionsOf(schema, groups, settings = {}) {
  const form = new Form(schema, settings);
  form.ready = openapi().then((description) => {
    const schemas = description.components.schemas;
    const properties = schemas[schema]?.properties ?? {};
    const parts = groups.map(([title, names]) => {
      const fields = names
        .filter((name) => properties[name])
        .map((name) => new Field(name, properties[name], schemas, form));
      form.fields.push(...fields);
      const grid = div("fields", fields.map((one) => one.element));
      return title ? details("group", title, grid) : grid;
    });
    fill(form.element, parts, button("Reset to defaults", () => form.reset(), { class: "quiet" }));
  });
  form.ready.catch(() => {}); // callers that await it handle the error
  return form;
}
