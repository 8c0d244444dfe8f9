/* Models tab: the loaded models, each with its figures, card, curves and reports. */

import { get, send, urlOf } from "./api.js";
import { copyButtons } from "./code.js";
import { button, details, div, fill, h } from "./dom.js";
import { render } from "./markdown.js";
import { chooseModel, events, kept, model } from "./state.js";
import { compact, number } from "./text.js";

const list = h("div", { class: "models", role: "group", "aria-label": "Models" });
const detail = div("detail");
const problem = h("p", { class: "error", role: "alert" });
let shown = null;

async function load() {
  try {
    const { data } = await get("/v1/models");
    fill(problem);
    const wanted =
      data.find((one) => one.id === (shown ?? model())) ?? data.find((one) => one.is_default) ?? data[0];
    fill(list, data.map(entryOf));
    if (wanted) await show(wanted);
  } catch (error) {
    problem.textContent = error.away ? "" : error.message;
  }
}

function entryOf(one) {
  const badges = [
    one.is_default ? "default" : null,
    ...one.aliases,
    one.state === "loaded" ? null : one.state,
  ].filter(Boolean);
  const line = [one.family, one.parameters && `${compact(one.parameters)} parameters`, one.precision]
    .filter(Boolean)
    .join(" · ");
  const press = { "data-id": one.id, "aria-pressed": "false" };
  return fill(
    button("", () => show(one), press),
    h("b", {}, one.id),
    badges.map((text) => h("span", { class: "badge" }, text)),
    div("quiet", line),
  );
}

async function show(one) {
  shown = one.id;
  for (const entry of list.children) entry.setAttribute("aria-pressed", entry.dataset.id === one.id);
  const head = div(
    "row foot",
    div("row", h("h2", {}, one.id), use(one)),
    copyButtons(() => ({ method: "GET", path: `/v1/models/${one.id}` })),
  );
  fill(detail, head, one.reason ? h("p", { class: "error" }, one.reason) : null, factsOf(one));
  if (one.state !== "loaded") return;
  const base = `/v1/models/${encodeURIComponent(one.id)}`;
  const [card, files] = await Promise.all([
    send(`${base}/card`, { method: "GET" })
      .then((answer) => answer.text())
      .catch(() => ""),
    get(`${base}/files`),
  ]);
  if (shown !== one.id) return;
  const inside = {
    image: (name, alt) => imageOf(`${base}/files/${name}`, alt),
    link: (target, text) => linkOf(base, files.data, target, text),
  };
  detail.append(
    reportsOf(base, files.data) ?? "",
    h("article", { class: "card markdown", "aria-label": "Model card" }, render(card, inside)),
    picturesOf(base, files.data, card) ?? "",
  );
}

const use = (one) =>
  button(one.id === model() ? "In use" : "Use this model", () => (chooseModel(one.id), load()), {
    disabled: one.state !== "loaded" || one.id === model(),
  });

function factsOf(one) {
  const facts = {
    vocabulary: number(one.vocab_size),
    created: one.created ? new Date(1000 * one.created).toISOString().slice(0, 10) : "–",
    ...Object.fromEntries(
      Object.entries(one.metrics).map(([name, value]) => [name.replaceAll("_", " "), number(value)]),
    ),
  };
  const cells = Object.entries(facts).map(([name, value]) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value)),
  );
  return h(
    "details",
    {},
    h("summary", {}, "Figures"),
    h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("tbody", {}, cells))),
  );
}

/** Links to training reports of the model and its parts. */
function reportsOf(base, files) {
  const reports = files.filter((file) => file.name.endsWith(".html"));
  if (!reports.length) return null;
  const titleOf = (name) => name.replace(/\/?report\.html$/, "") || "report";
  const links = reports.map(({ name }) => linkOf(base, files, name, titleOf(name)));
  return h("p", { class: "row" }, "Training reports: ", links);
}

/** Images of the parts that the model card does not show. */
function picturesOf(base, files, card) {
  const isShown = (name) => [name, name.split("/").pop()].some((one) => card.includes(`(${one})`));
  const more = files.filter(({ name }) => name.endsWith(".png") && !isShown(name));
  if (!more.length) return null;
  const figures = more.map(({ name }) => {
    const caption = h("figcaption", { class: "quiet" }, name);
    return h("figure", { class: "markdown" }, imageOf(`${base}/files/${name}`, name), caption);
  });
  return details("card", "Images of its parts", figures);
}

/** Create an image; with an API key it is fetched by script, because an <img> request cannot send the key. */
function imageOf(path, alt) {
  const image = h("img", { alt, loading: "lazy", src: kept("key") ? null : urlOf(path) });
  if (kept("key"))
    fetched(path).then(
      (address) => (image.src = address),
      () => image.replaceWith(alt),
    );
  return image;
}

async function fetched(path) {
  return URL.createObjectURL(await (await send(path, { method: "GET" })).blob());
}

/** Create a link to a published file or to the web; return other targets as text. */
function linkOf(base, files, target, text) {
  if (/^https?:\/\//.test(target)) return h("a", { href: target, rel: "noreferrer" }, text);
  if (!files.some((file) => file.name === target)) return text;
  const path = `${base}/files/${target}`;
  const save = async (event) => {
    event.preventDefault();
    h("a", { href: await fetched(path), download: target.split("/").pop() }).click();
  };
  const onclick = kept("key") ? save : null;
  return h("a", { href: urlOf(path), target: "_blank", rel: "noreferrer", onclick }, text);
}

/** Build the view; return the function that updates it whenever it is shown. */
export function start(panel) {
  fill(panel, problem, div("columns side", list, detail));
  events.addEventListener("back", load);
  return load;
}
