/* Completions in a text field: grey text after the caret, and a list below it. */

const STYLES = `
lm-layer { position: absolute; left: 0; top: 0; overflow: hidden; box-sizing: border-box; pointer-events: none;
  visibility: hidden; white-space: pre-wrap; overflow-wrap: break-word; }
lm-ghost { visibility: visible; opacity: 0.55; }
lm-list { position: fixed; inset: 0 auto auto 0; margin: 0; padding: 4px; min-width: 10rem; max-width: 95vw;
  color: var(--lm-text, FieldText); background: var(--lm-background, Field); border-radius: 8px;
  border: 1px solid color-mix(in srgb, currentcolor 20%, transparent); box-shadow: 0 6px 24px rgb(0 0 0 / 18%); }
lm-option { display: block; padding: 0.2em 0.6em; border-radius: 5px; cursor: pointer; white-space: pre; }
lm-option[aria-selected=true] { color: var(--lm-background, Field); forced-color-adjust: none;
  background: var(--lm-accent, light-dark(#2260a8, #7ab3f2)); }
lm-status { position: fixed; top: 0; clip-path: inset(50%); }`;
const COPIED = /^(color$|direction|font|letter|line-height|padding|tab|text-[ait]|unicode|word|zoom)/;

/** Complete what is typed into a field; return a function that removes all, with a function `refresh`. */
export function attachAutocomplete(field, options = {}) {
  const { model, user, key, eager, noRepeats, delay = 30, label = "Completions", onError = console.warn } = options;
  if (typeof field?.selectionStart !== "number")
    throw new TypeError(`field is ${field?.type}: it must be a textarea or text input`);
  const service = `${options.url ?? new URL("..", import.meta.url)}`.replace(/\/*$/, "/v1/autocomplete");
  const id = `page-${Math.random().toString(36).slice(2)}`;
  const life = new AbortController();
  const root = field.getRootNode();
  const sheet = new CSSStyleSheet();
  const caret = element("caret");
  const ghost = element("ghost");
  const layer = element("layer", { ariaHidden: true });
  const list = element("list", { id, role: "listbox", ariaLabel: label, popover: "manual" });
  const status = element("status", { role: "status" });
  let [items, place, chosen] = [[], null, -1]; // shown, their place, the selected one
  let request = new AbortController(); // aborted if none is awaited
  let hurried = null; // request whose first one is accepted
  let spaced = -1; // caret after a completion's space

  async function post(path, body, signal) {
    const headers = { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
    const init = { method: "POST", headers, body: JSON.stringify(body), signal };
    const response = await (options.fetch ?? fetch)(service + path, init);
    const reply = await response.json().catch(() => ({}));
    const { ok, status } = response;
    if (ok) return reply;
    throw Object.assign(new Error(`status ${status}`), reply.error, { status });
  }

  /** Request completions once typing pauses; abort an older request. */
  function refresh() {
    request.abort();
    request = new AbortController();
    setTimeout(complete, delay, request);
  }

  async function complete({ signal }) {
    if (signal.aborted) return;
    const asked = placeOf(field);
    if (!asked || !field.matches(":focus")) return close();
    const { line: text, before, rest } = asked;
    const own = { text, before, text_after: rest.slice(0, 200), session: id, no_repeats: noRepeats };
    const body = { ...own, limit: 5, model, user, ...options.fields };
    try {
      const { completions } = await post("", body, signal);
      if (signal.aborted) return;
      const found = completions.filter((item) => item.suffix !== "");
      request.abort();
      show(noRepeats && !found.length ? items : found, asked);
      if (hurried === request && items.length) accept(0);
    } catch (error) {
      if (signal.aborted) return;
      close();
      onError(error);
    }
  }

  function close() {
    request.abort();
    show([], null);
  }

  function show(completions, where) {
    [items, place] = [completions, where];
    status.textContent = items.length ? `${label}: ${items.map(({ text }) => text).join(", ")}` : "";
    draw(-1);
  }

  /** Keep those that begin with the typed letters, until the reply arrives. */
  function follow({ isComposing }) {
    if (isComposing) return;
    const now = placeOf(field);
    const goesOn = now && now.rest === place?.rest && now.line.startsWith(place.line);
    const typed = goesOn ? now.line.slice(place.line.length) : "";
    const kept = items.filter(({ suffix }) => typed && suffix?.startsWith(typed) && suffix !== typed);
    show(kept.map((item) => ({ ...item, suffix: item.suffix.slice(typed.length) })), now);
    refresh();
  }

  function draw(index) {
    chosen = index;
    list.replaceChildren(...items.map(optionOf));
    list.togglePopover(items.length > 0);
    field.setAttribute("aria-expanded", items.length > 0);
    field.setAttribute("aria-activedescendant", list.children[index]?.id ?? "");
    ghost.textContent = (/^(\n|$)/.test(place?.rest) && items[Math.max(index, 0)]?.suffix) || "";
    layer.replaceChildren();
    if (!items.length) return;
    drawLayer();
    placeList(boxOf(caret));
  }

  /** Copy the field's text into the layer over it. */
  function drawLayer() {
    const oneLine = field.nodeName === "INPUT" ? "white-space: pre; align-content: center" : "";
    layer.style.cssText = `width: ${field.clientWidth}px; height: ${field.clientHeight}px; ${oneLine}`;
    const style = getComputedStyle(field);
    for (const name of style) if (COPIED.test(name)) layer.style.setProperty(name, style.getPropertyValue(name));
    const [to, from] = [field, layer].map(boxOf);
    const scale = scaleOf(layer);
    move(layer, to.x - from.x + field.clientLeft * scale, to.y - from.y + field.clientTop * scale);
    // the first zero-width space keeps letters on their line
    layer.replaceChildren(field.value.slice(0, place.caret), caret, "\u200b", place.rest, "\u200b");
    const { x } = boxOf(caret);
    caret.nextSibling.after(ghost);
    if (boxOf(caret).x !== x) ghost.textContent = ""; // would cover letters
    layer.scrollTo(field.scrollLeft, field.scrollTop);
  }

  /** Place the list below the caret, or above it. */
  function placeList({ x, top, bottom }) {
    const { width, height } = boxOf(list);
    const { clientWidth, clientHeight } = document.documentElement;
    const left = Math.min(isRtl() ? x - width : x, clientWidth - width - 4);
    const above = bottom + 4 + height > clientHeight && top > 4 + height;
    move(list, Math.max(4, left), above ? top - 4 - height : bottom + 4);
  }

  const isRtl = () => field.matches(":dir(rtl)");
  const boxOf = (one) => one.getBoundingClientRect();
  const scaleOf = (one) => boxOf(one).width / one.offsetWidth || 1; // in a zoomed page
  const move = (one, x, y) => (one.style.translate = `${x / scaleOf(one)}px ${y / scaleOf(one)}px`);

  function optionOf(item, index) {
    const option = element("option", { id: `${id}-${index}`, role: "option", ariaSelected: index === chosen });
    option.append(options.render?.(item) ?? item.text);
    option.onpointerdown = (event) => {
      event.preventDefault(); // keep the focus in the field
      accept(index);
    };
    return option;
  }

  function accept(index) {
    const [{ start, suffix, text, is_complete_word: isWord }, { line, rest, caret }] = [items[index], place];
    const typed = [...line].slice(start).join(""); // `start` counts code points
    const space = isWord && !/^\s/.test(rest) ? " " : "";
    close();
    field.setSelectionRange(suffix === null ? caret - typed.length : caret, caret);
    document.execCommand("insertText", false, (suffix ?? text) + space); // preserves undo
    spaced = space ? field.selectionStart : -1;
    const accepted = { text, context: line.slice(0, line.length - typed.length) };
    if (suffix === null && /^\S{1,64}$/.test(typed)) accepted.typed = typed;
    if (user && isWord) post(`/users/${encodeURIComponent(user)}/accepted`, accepted).catch(onError);
  }

  function onKey(event) {
    const { key, isComposing, ctrlKey, metaKey, altKey, shiftKey } = event;
    const count = items.length;
    if (isComposing || ctrlKey || metaKey || altKey || shiftKey) return;
    if (key === "Escape") close();
    if (key === "Tab" && !count && eager && !request.signal.aborted) hurried = request;
    else if (!count) return;
    else if (key === "ArrowDown") draw((chosen + 1) % count);
    else if (key === "ArrowUp") draw((Math.max(chosen, 0) + count - 1) % count);
    else if (key === "Enter" && chosen >= 0) accept(chosen);
    else if (key === "Tab" || (ghost.textContent && key === (isRtl() ? "ArrowLeft" : "ArrowRight")))
      accept(Math.max(chosen, 0));
    else if (key !== "Escape") return;
    event.preventDefault();
  }

  /** Replace a completion's space by punctuation that is typed next. */
  function closeUp({ data }) {
    const caret = field.selectionStart;
    if (caret === spaced && /^[.,;:!?)\]}]$/.test(data)) field.setSelectionRange(caret - 1, caret);
    spaced = -1;
  }

  const former = field.cloneNode();
  const attributes = { role: "combobox", autocomplete: "off", "aria-autocomplete": "both", "aria-controls": id };
  for (const name in attributes) field.setAttribute(name, attributes[name]);
  const on = (target, listeners) => {
    for (const name in listeners) target.addEventListener(name, listeners[name], { capture: true, signal: life.signal });
  };
  const redraw = () => items.length && draw(chosen);
  on(field, { input: follow, keydown: onKey, beforeinput: closeUp, blur: close });
  on(field, { compositionstart: close, compositionend: refresh });
  on(document, { selectionchange: () => place && field.selectionEnd !== place.caret && close() });
  on(window, { scroll: redraw, resize: redraw });
  sheet.replaceSync(STYLES);
  root.adoptedStyleSheets.push(sheet);
  field.after(layer, list, status);
  draw(-1);

  const detach = () => {
    life.abort();
    request.abort();
    for (const one of [layer, list, status]) one.remove();
    root.adoptedStyleSheets = root.adoptedStyleSheets.filter((one) => one !== sheet);
    for (const name of [...Object.keys(attributes), "aria-expanded", "aria-activedescendant"])
      if (former.hasAttribute(name)) field.setAttribute(name, former.getAttribute(name));
      else field.removeAttribute(name);
  };
  return Object.assign(detach, { refresh });
}

/** Return the line up to the caret and the text around it; null with a selection, or inside a word. */
function placeOf({ value, selectionStart: caret, selectionEnd }) {
  const rest = value.slice(caret);
  if (caret !== selectionEnd || /^[\p{L}\p{N}\p{M}_]/u.test(rest)) return null;
  const start = value.lastIndexOf("\n", caret - 1) + 1;
  const before = value.slice(Math.max(start - (start % 1000) - 1000, 0), start);
  return { line: value.slice(start, caret), before, rest, caret };
}

const element = (name, properties) => Object.assign(document.createElement(`lm-${name}`), properties);
