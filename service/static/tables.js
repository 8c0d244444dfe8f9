/* Schemas of the interface as tables of fields: type, default, limits, meaning. */

import { h } from "./dom.js";
import { inlineOf } from "./markdown.js";

let schemas = {};

/** Say what references lead to, before anything else. */
export function useSchemas(all) {
  schemas = all;
}

/** A schema with what its reference leads to. */
export const named = (schema) =>
  schema?.$ref ? { ...schemas[schema.$ref.split("/").pop()], ...schema } : (schema ?? {});

/** A type in words: "integer ≥ 1", "list of string", a name of the description. */
function typeOf(schema) {
  const one = named(schema);
  if (one.anyOf || one.oneOf) return (one.anyOf ?? one.oneOf).map(typeOf).join(" or ");
  if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (one.const !== undefined) return JSON.stringify(one.const);
  if (one.type === "array") return `list of ${one.items ? typeOf(one.items) : "any"}`;
  if (schema?.$ref && one.properties) return schema.$ref.split("/").pop();
  if (one.type === "object" && one.additionalProperties)
    return `object of ${typeOf(one.additionalProperties)}`;
  return one.type ?? "any";
}

const LIMITS = {
  minimum: "≥",
  maximum: "≤",
  exclusiveMinimum: ">",
  exclusiveMaximum: "<",
  minLength: "length ≥",
  maxLength: "length ≤",
  minItems: "items ≥",
  maxItems: "items ≤",
};

function limitsOf(schema) {
  const parts = [named(schema), ...(schema?.anyOf ?? []).map(named)];
  return parts
    .flatMap((part) =>
      Object.entries(LIMITS)
        .filter(([name]) => part[name] !== undefined)
        .map(([name, sign]) => `${sign} ${part[name]}`),
    )
    .join(", ");
}

/** A row of a table of fields. */
export function rowOf(name, schema, needed) {
  const otherwise = needed ? "needed" : schema.default === undefined ? "" : JSON.stringify(schema.default);
  return h(
    "tr",
    {},
    [
      h("code", {}, name),
      typeOf(schema),
      otherwise,
      limitsOf(schema),
      inlineOf(named(schema).description ?? ""),
    ].map((cell) => h("td", {}, cell)),
  );
}

/** A table of fields with its heading; null without rows. */
export function tableOf(caption, rows) {
  if (!rows.length) return null;
  const head = ["field", "type", "default", "limits", "meaning"].map((cell) =>
    h("th", { scope: "col" }, cell),
  );
  return [
    h("h3", {}, caption),
    h(
      "div",
      { class: "scroll", tabindex: "0" },
      h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)),
    ),
  ];
}

/** Tables of a schema's fields, and of those that its fields are made of. */
export function tablesOf(schema, caption, seen = new Set()) {
  const one = named(schema);
  const inner = [];
  const gather = (part) => {
    if (!part || typeof part !== "object") return;
    const name = part.$ref?.split("/").pop();
    if (name && !seen.has(name) && schemas[name]?.properties) {
      seen.add(name);
      inner.push([name, part]);
    }
    for (const value of Object.values(part)) gather(value);
  };
  gather([one.properties, one.anyOf, one.items]);
  const rows = Object.entries(one.properties ?? {}).map(([name, field]) =>
    rowOf(name, field, one.required?.includes(name)),
  );
  return [tableOf(caption, rows), inner.map(([name, part]) => tablesOf(part, name, seen))];
}
