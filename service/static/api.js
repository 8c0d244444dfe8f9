/* Requests to the service, with API key, error handling and timing. */

import { isReady, reconnect } from "./connection.js";
import { askForKey } from "./key.js";
import { kept } from "./state.js";

/** Error of a request; `away` if the service was unreachable, which the banner shows. */
export class ApiError extends Error {
  constructor({ message, param = null, code = null }, status = 0) {
    super(message);
    Object.assign(this, { param, code, status, away: status === 0 });
  }
}

/** Return the absolute URL of a path, relative to the page's own. */
export const urlOf = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href;

/** Return a successful response; retry with an API key after a 401, and once after a 503 of a ready service. */
export async function send(path, options = {}) {
  const { method = "POST", body, type = "application/json", signal, accept, again = true } = options;
  const headers = {};
  const key = kept("key");
  if (body !== undefined) headers["content-type"] = type;
  if (accept) headers.accept = accept;
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(urlOf(path), { method, headers, body, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    reconnect();
    throw new ApiError({ message: "the service cannot be reached" });
  }
  if (response.ok) return response;
  if (response.status === 401 && (kept("key") !== key || (await askForKey()))) return send(path, options);
  const error = new ApiError(await errorOf(response), response.status);
  if (response.status === 503) {
    if (!(await isReady())) {
      reconnect();
      error.away = true;
    } else if (again) return send(path, { ...options, again: false });
  }
  throw error;
}

async function errorOf(response) {
  const otherwise = { message: `the service replied with status ${response.status}` };
  try {
    return (await response.json()).error ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Send JSON; return the JSON reply and the time it took in milliseconds. */
export async function ask(path, fields, { signal, method } = {}) {
  const began = performance.now();
  const response = await send(path, {
    method,
    signal,
    body: fields === undefined ? undefined : JSON.stringify(fields),
  });
  const reply = await response.json();
  return { reply, ms: performance.now() - began };
}

/** GET a JSON reply. */
export const get = async (path, signal) => (await ask(path, undefined, { method: "GET", signal })).reply;

let document_ = null;

/** Return the service's OpenAPI document, fetched once. */
export function openapi() {
  document_ ??= get("/openapi.json").catch((error) => {
    document_ = null;
    throw error;
  });
  return document_;
}
