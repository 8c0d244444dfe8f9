/* Requests to the service: keys, errors as one kind, how long it took. */

import { isReady, reconnect } from "./connection.js";
import { askForKey } from "./key.js";
import { kept } from "./state.js";

/** An answer that is not a success; `away` if there was none, and the banner tells so. */
export class ApiError extends Error {
  constructor({ message, param = null, code = null }, status = 0) {
    super(message);
    Object.assign(this, { param, code, status, away: status === 0 });
  }
}

/** A path as an address, wherever the page is served. */
export const urlOf = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href;

/** Send a request, and again with a key if one is asked for, or once if what was being loaded is there; a success. */
export async function send(path, options = {}) {
  const { method = "POST", body, signal, accept, again = true } = options;
  const headers = {};
  const key = kept("key");
  if (body !== undefined) headers["content-type"] = "application/json";
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
  const otherwise = { message: `the service answered ${response.status}` };
  try {
    return (await response.json()).error ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Ask for JSON with JSON: the reply, and the milliseconds that it took. */
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

/** Ask for JSON with nothing but an address. */
export const get = async (path, signal) => (await ask(path, undefined, { method: "GET", signal })).reply;

let document_ = null;

/** The service's own description of its interface, asked for once. */
export function openapi() {
  document_ ??= get("/openapi.json").catch((error) => {
    document_ = null;
    throw error;
  });
  return document_;
}
