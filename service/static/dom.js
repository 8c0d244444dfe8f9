/* Elements from names, attributes and children. Text is only ever put in as text, never as markup. */

/** An element; attributes that begin with "on" are listeners, `css` are custom properties, null and false leave out. */
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

/** Put children in the place of those that an element has. */
export function fill(element, ...children) {
  element.replaceChildren(...kept(children));
  return element;
}

const kept = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

let numbers = 0;

/** An id that no other element has. */
export const freshId = (name) => `${name}-${++numbers}`;

/** A small button. */
export const button = (text, onclick, attributes = {}) =>
  h("button", { type: "button", onclick, ...attributes }, text);

const voice = document.getElementById("voice");

/** Tell those who listen to the page, and do not look. */
export function say(text) {
  voice.textContent = text;
}
