/* The interface: every endpoint of /openapi.json, by group. */

import { openapi } from "./api.js";
import { fill, h } from "./dom.js";
import { Endpoint } from "./endpoint.js";
import { useSchemas } from "./tables.js";

/** Build the view. */
export async function start(panel) {
  const description = await openapi();
  useSchemas(description.components.schemas);
  const groups = new Map((description.tags ?? []).map((tag) => [tag.name, []]));
  for (const [path, operations] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const tag = operation.tags?.[0] ?? "Endpoints";
      groups.set(tag, [...(groups.get(tag) ?? []), new Endpoint(path, method, operation)]);
    }
  }
  const about = h(
    "p",
    { class: "quiet" },
    `${description.info.title} ${description.info.version}. The whole contract: `,
    h("a", { href: "openapi.json" }, "openapi.json"),
    ".",
  );
  const parts = [...groups]
    .filter(([, all]) => all.length)
    .map(([tag, all]) =>
      h(
        "section",
        { class: "group" },
        h("h2", {}, tag),
        all.map((one) => one.element),
      ),
    );
  fill(panel, about, parts);
  const wanted = document.getElementById(decodeURIComponent(location.hash.replace(/^#docs:/, "")));
  if (wanted?.matches(".endpoint")) {
    wanted.open = true;
    wanted.scrollIntoView();
  }
}
