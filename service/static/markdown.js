/* Renderer of the Markdown of model cards: headings, paragraphs, lists, tables, code, links, images; no raw HTML. */

import { h } from "./dom.js";

/** Render a text as elements; `leads` has `image(name, alt)` and `link(target, text)`. */
export function render(text, leads) {
  const inline = (line) => inlineOf(line, leads);
  const lines = text.split("\n");
  const blocks = [];
  while (lines.length) {
    const line = lines.shift();
    const take = (test) => {
      const taken = [line];
      while (lines.length && test(lines[0])) taken.push(lines.shift());
      return taken;
    };
    const heading = /^(#{1,4}) (.*)/.exec(line);
    if (!line.trim()) continue;
    if (heading) blocks.push(h(`h${heading[1].length}`, {}, inline(heading[2])));
    else if (line.startsWith("```")) blocks.push(codeOf(lines));
    else if (line.startsWith("|")) blocks.push(tableOf(take((next) => next.startsWith("|")), inline));
    else if (/^[-*] /.test(line)) blocks.push(listOf(take((next) => /^([-*] |\s+\S)/.test(next)), inline));
    else {
      const paragraph = take((next) => next.trim() && !/^(#|\||```|[-*] )/.test(next));
      blocks.push(h("p", {}, inline(paragraph.join(" "))));
    }
  }
  return blocks;
}

function codeOf(lines) {
  const end = lines.findIndex((line) => line.startsWith("```"));
  const code = lines.splice(0, end < 0 ? lines.length : end + 1);
  return h("pre", {}, h("code", {}, (end < 0 ? code : code.slice(0, -1)).join("\n")));
}

function tableOf(rows, inline) {
  const cells = rows.map((row) =>
    row
      .replace(/^\||\|\s*$/g, "")
      .split(/(?<!\\)\|/)
      .map((cell) => cell.trim()),
  );
  const [head, ...body] = cells.filter((row) => !row.every((cell) => /^:?-+:?$/.test(cell)));
  const row = (name, one) => h("tr", {}, one.map((cell) => h(name, {}, inline(cell))));
  const parts = [h("thead", {}, row("th", head)), h("tbody", {}, body.map((one) => row("td", one)))];
  return h("div", { class: "scroll", tabindex: "0" }, h("table", {}, parts));
}

function listOf(lines, inline) {
  const items = [];
  for (const line of lines) {
    if (/^[-*] /.test(line)) items.push(line.slice(2));
    else items[items.length - 1] += ` ${line.trim()}`;
  }
  return h("ul", {}, items.map((item) => h("li", {}, inline(item))));
}

const INLINE = /`([^`]+)`|!\[([^\]]*)\]\(([^)\s]+)\)|\[([^\]]+)\]\(([^)\s]+)\)|\*\*([^*]+)\*\*/g;

/** Render the inline markup of a line; without `image` and `link`, images and links become text. */
export function inlineOf(text, { image = (_, alt) => alt, link = (_, label) => label } = {}) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    const [all, code, alt, source, label, target, strong] = found;
    parts.push(text.slice(at, found.index));
    if (code !== undefined) parts.push(h("code", {}, code));
    else if (source !== undefined) parts.push(image(source, alt));
    else if (target !== undefined) parts.push(link(target, label));
    else parts.push(h("b", {}, strong));
    at = found.index + all.length;
  }
  return [...parts, text.slice(at)];
}
