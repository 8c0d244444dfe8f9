/* Elements from names, attributes and children. Strings become text nodes, never markup. */

/** Create an element; "on…" attributes are listeners, `css` sets custom properties, null and false are omitted. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "css")
      for (const [property, number] of Object.entries(value)) element.style.setProperty(property, number);
    else if (key === "value" || key === "checked") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...kept(children));
  return element;
}

/** Create a block of a class. */
export const div = (name, ...children) => h("div", { class: name }, ...children);

/** Replace an element's children. */
export function fill(element, ...children) {
  element.replaceChildren(...kept(children));
  return element;
}

const kept = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

let numbers = 0;

/** Return an id that is unique on the page. */
export const freshId = (name) => `${name}-${++numbers}`;

/** Create a part of the page that opens on a click. */
export const details = (name, title, ...children) =>
  h("details", { class: name }, h("summary", {}, title), ...children);

/** Create a line about keys, from names of keys and texts in turn. */
export const keysOf = (...parts) =>
  h("p", { class: "keys" }, parts.map((part, k) => (k % 2 ? part : h("kbd", {}, part))));

/** Show facts side by side. */
export const tellFacts = (element, ...facts) => fill(element, facts.map((fact) => h("span", {}, fact)));

/** Create a button. */
export const button = (text, onclick, attributes = {}) =>
  h("button", { type: "button", onclick, ...attributes }, text);

const voice = document.getElementById("voice");

/** Announce a text to screen readers. */
export function say(text) {
  voice.textContent = text;
}
