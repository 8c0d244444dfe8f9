/* What the views share and the browser keeps for this tab: the model, the key, and what was typed. */

const PREFIX = "gramophone.";

/** A value that was kept, or another; a browser may refuse to keep anything. */
export function kept(name, otherwise = "") {
  try {
    return sessionStorage.getItem(PREFIX + name) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function keep(name, value) {
  try {
    if (value === "" || value === null) sessionStorage.removeItem(PREFIX + name);
    else sessionStorage.setItem(PREFIX + name, value);
  } catch {
    /* nothing is kept then */
  }
}

/** Events that views listen to: "model" another is asked; "back" the service answers again. */
export const events = new EventTarget();

export const tell = (name) => events.dispatchEvent(new Event(name));

/** The model's address as requests name it; undefined for the service's default. */
export const model = () => kept("model") || undefined;

export function chooseModel(address) {
  keep("model", address);
  tell("model");
}
