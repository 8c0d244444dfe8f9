/* Requests as curl commands or Python programs to copy. */

import { urlOf } from "./api.js";
import { button, div, h, say } from "./dom.js";
import { kept } from "./state.js";

const KEY_VARIABLE = "GRAMOPHONE_API_KEY";
const quoted = (text) => `'${text.replace(/'/g, `'\\''`)}'`;

/** Return a curl command for a POSIX shell; `fields` is the body. */
function asCurl({ method = "POST", path, fields }) {
  const parts = [method === "POST" ? "curl" : `curl -X ${method}`, quoted(urlOf(path))];
  if (kept("key")) parts.push(`-H "authorization: Bearer $${KEY_VARIABLE}"`);
  if (fields === undefined) return parts.join(" ");
  if (fields.stream) parts.splice(1, 0, "-N");
  parts.push("-H 'content-type: application/json'");
  return `${parts.join(" ")} \\\n  --data-binary ${quoted(JSON.stringify(fields))}\n`;
}

/** Return a Python program that uses httpx. */
function asPython({ method = "POST", path, fields }) {
  const lines = kept("key") ? ["import os", ""] : [];
  lines.push("import httpx", "");
  const given = [JSON.stringify(method), JSON.stringify(urlOf(path))];
  if (fields !== undefined) given.push(`json=${literal(fields)}`);
  if (kept("key")) given.push(`headers={"authorization": f"Bearer {os.environ['${KEY_VARIABLE}']}"}`);
  given.push("timeout=60");
  const list = given.map((one) => `    ${one},\n`).join("");
  if (fields?.stream) {
    const read = ["    for line in response.iter_lines():", "        print(line)", ""];
    lines.push(`with httpx.stream(\n${list}) as response:`, ...read);
  } else {
    lines.push(`response = httpx.request(\n${list})`, "response.raise_for_status()", "print(response.text)", "");
  }
  return lines.join("\n");
}

/** Format a JSON value as a Python literal. */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  const fields = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`);
  return `{${fields.join(", ")}}`;
}

/** Create buttons that copy a request; a click calls `request()`. */
export function copyButtons(request) {
  const make = (name, write) => {
    const one = button(`Copy as ${name}`, async () => {
      await copy(write(request()));
      one.textContent = "Copied";
      say(`Copied as ${name}`);
      setTimeout(() => (one.textContent = `Copy as ${name}`), 1500);
    });
    return one;
  };
  return div("copy", make("curl", asCurl), make("Python", asPython));
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { value: text, class: "offscreen" }); // without TLS, pages have no clipboard API
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
