/* Models tab: the loaded models, each with its figures, card, curves and reports. */

import { get, send, urlOf } from "./api.js";
import { copyButtons } from "./code.js";
import { button, fill, h } from "./dom.js";
import { render } from "./markdown.js";
import { chooseModel, events, kept, model } from "./state.js";
import { compact, number } from "./text.js";

const list = h("div", { class: "models", role: "group", "aria-label": "Models" });
const detail = h("div", { class: "detail" });
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
    h("div", { class: "quiet" }, line),
  );
}

async function show(one) {
  shown = one.id;
  for (const entry of list.children) entry.setAttribute("aria-pressed", entry.dataset.id === one.id);
  const head = h(
    "div",
    { class: "row foot" },
    h("div", { class: "row" }, h("h2", {}, one.id), use(one)),
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
  return h(
    "p",
    { class: "row" },
    "Training reports: ",
    reports.map((file) =>
      linkOf(base, files, file.name, file.name.replace(/\/?report\.html$/, "") || "report"),
    ),
  );
}

/** Images of the parts that the model card does not show. */
function picturesOf(base, files, card) {
  const more = files.filter(
    (file) =>
      file.name.endsWith(".png") &&
      !card.includes(`(${file.name})`) &&
      !card.includes(`(${file.name.split("/").pop()})`),
  );
  if (!more.length) return null;
  return h(
    "details",
    { class: "card" },
    h("summary", {}, "Images of its parts"),
    more.map((file) =>
      h(
        "figure",
        { class: "markdown" },
        imageOf(`${base}/files/${file.name}`, file.name),
        h("figcaption", { class: "quiet" }, file.name),
      ),
    ),
  );
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
  return h(
    "a",
    { href: urlOf(path), target: "_blank", rel: "noreferrer", onclick: kept("key") ? save : null },
    text,
  );
}

/** Build the view; return the function that updates it whenever it is shown. */
export function start(panel) {
  fill(panel, problem, h("div", { class: "columns side" }, list, detail));
  events.addEventListener("back", load);
  return load;
}
