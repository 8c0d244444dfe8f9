/* Shared state of the views, stored by the browser for this tab: model, API key and typed text. */

const PREFIX = "gramophone.";

/** Return a stored value, or the fallback; browsers may block storage. */
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
    /* storage is blocked or full: continue without it */
  }
}

/** Events for the views: "model" after a change of model; "back" when the service is reachable again. */
export const events = new EventTarget();

export const tell = (name) => events.dispatchEvent(new Event(name));

/** Address of the chosen model; undefined for the service's default. */
export const model = () => kept("model") || undefined;

export function chooseModel(address) {
  keep("model", address);
  tell("model");
}
