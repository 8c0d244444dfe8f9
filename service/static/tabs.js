/* Tabs: the URL fragment names the shown view; arrow keys move between tabs. */

import { fill, h } from "./dom.js";
import { kept, keep } from "./state.js";

const NAMES = ["write", "generate", "rerank", "check", "models"];
const list = document.getElementById("tabs");
const tabs = NAMES.map((name) => document.getElementById(`tab-${name}`));
const shown = new Map();

/** Return the view of the URL fragment, or else the last one shown. */
function named() {
  const names = [location.hash.slice(1), kept("tab"), "write"];
  return names.find((name) => NAMES.includes(name));
}

async function show(name) {
  for (const tab of tabs) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    panelOf(tab).hidden = !chosen;
    if (chosen) list.scrollTo({ left: tab.offsetLeft - 40 });
  }
  keep("tab", name);
  document.title = `${document.getElementById(`tab-${name}`).textContent} – Gramophone`;
  const panel = document.getElementById(`view-${name}`);
  try {
    if (!shown.has(name))
      shown.set(
        name,
        import(`./${name}.js`).then((module) => module.start(panel)),
      );
    (await shown.get(name))?.();
  } catch (error) {
    shown.delete(name);
    fill(panel, h("p", { class: "error", role: "alert" }, error.message));
    if (!error.status && !error.away) throw error;
  }
}

const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

list.addEventListener("keydown", (event) => {
  const place = tabs.indexOf(document.activeElement);
  const next = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (place < 0 || next === undefined) return;
  event.preventDefault();
  const tab = tabs.at(next % tabs.length);
  tab.focus();
  location.hash = tab.id.replace("tab-", "");
});
for (const tab of tabs) tab.addEventListener("click", () => (location.hash = tab.id.replace("tab-", "")));
addEventListener("hashchange", () => show(named()));

/** Show the first view, and set the URL fragment to it. */
export function begin() {
  const name = named();
  if (!location.hash) history.replaceState(null, "", `#${name}`);
  return show(name);
}
