// A value as a tree. It comes as `tagged` of values.py made it: nothing of the user's was run for it.
//
// What a preview has left out is read from the server in pages. An *origin* says which value it is (the
// parameters of api/value), and a *path* of positions leads to the part of it.

import { fill, h, patch } from "./dom.js";
import { count } from "./format.js";
import { isReport, load } from "./source.js";

const SHORT = 80;

function leaf(value) {
  if (value === null) return h("span", { class: "v-null" }, "None");
  if (value === true) return h("span", { class: "v-null" }, "True");
  if (value === false) return h("span", { class: "v-null" }, "False");
  if (typeof value === "number") return h("span", { class: "v-number" }, String(value));
  if (typeof value === "string") return h("span", { class: "v-text" }, JSON.stringify(value));
  return h("span", { class: value.is_text ? "v-text" : "v-other" }, value.written);
}

const isLeaf = (value) => value === null || typeof value !== "object" || "written" in value;

// A value as JSON has it.
export function plainOf(value) {
  if (isLeaf(value)) return value?.written ?? value;
  if (Array.isArray(value)) return value.map(plainOf);
  return Object.fromEntries(value.items.map(([key, each]) => [key, plainOf(each)]));
}

// A short text of a value, for one line.
export function brief(value, room = SHORT) {
  if (value === null || value === undefined) return "None";
  if (value === true || value === false) return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value).slice(0, room);
  if ("written" in value) return value.written.slice(0, room);
  const isList = Array.isArray(value);
  const parts = [];
  let left = room;
  for (const each of isList ? value : value.items) {
    const text = isList ? brief(each, left) : `${each[0]}: ${brief(each[1], left)}`;
    if (left <= 0) { parts.push("…"); break; }
    parts.push(text);
    left -= text.length + 2;
  }
  const [open, close] = isList ? ["[", "]"] : [`${value.name ?? ""}{`, "}"];
  return open + parts.join(", ") + close;
}

// The items of a value that a preview has, and the number of those that it has left out.
function partsOf(value) {
  const items = Array.isArray(value) ? value.map((each, at) => [String(at), each]) : value.items;
  const more = items.at(-1)?.[1]?.more ?? 0;
  return { items: more ? items.slice(0, -1) : items, more };
}

const itemOf = (key, each, origin, path, depth) => h("div", { class: "item" }, h("span", { class: "key" }, key),
  isLeaf(each) ? leafOf(each, origin, path) : tree(each, origin, path, depth + 1));

export function itemsOf(value, origin = null, path = [], depth = 0) {
  const { items, more } = partsOf(value);
  return h("div", { class: "items value" }, items.map(([key, each], at) => itemOf(key, each, origin, [...path, at], depth)),
    more > 0 && restOf(more, items.length, origin, path, depth));
}

function readButton(text, onclick) {
  const button = h("button", { type: "button", class: "sort", onclick: async () => {
    try {
      await onclick(button);
    } catch (error) {
      fill(button, String(error.message));
    }
  } }, text);
  return button;
}

const readPart = (origin, path, start) => load("value", { ...origin, path: path.join("."), start });

// The items that a preview has left out: a press reads the next of them.
function restOf(more, known, origin, path, depth) {
  const text = (left) => `… ${count(left)} more`;
  if (origin === null || isReport) return h("p", { class: "quiet" }, text(more));
  let start = known;
  return h("div", { lazy: true, key: "rest" }, readButton(text(more), async (button) => {
    const { items, total } = await readPart(origin, path, start);
    button.before(...items.map(([key, each], at) => itemOf(key, each, origin, [...path, start + at], depth)));
    start += items.length;
    if (start < total && items.length) fill(button, text(total - start));
    else button.remove();
  }));
}

// A leaf; of a text, or of an object that is too deep for the preview, a press reads the rest.
function leafOf(value, origin, path) {
  if (!value?.is_cut || origin === null || isReport) return leaf(value);
  const place = h("div", { lazy: true, key: value.written });
  const open = async (button) => {
    const page = await readPart(origin, path, 0);
    if (page.kind !== "text") {
      const rest = page.total - page.items.length;
      const items = rest ? [...page.items, ["…", { written: "", more: rest }]] : page.items;
      button.replaceWith(itemsOf({ items }, origin, path));
      return;
    }
    const text = h("pre", { tabindex: 0 }, page.text);
    place.replaceChildren(text);
    const next = readButton("Show more", async () => {
      const { text: more, total } = await readPart(origin, path, text.textContent.length);
      text.append(more);
      if (!more || text.textContent.length >= total) next.remove();
    });
    if (page.text.length < page.total) place.append(next);
  };
  return fill(place, leaf(value), " ", readButton("Show all", open));
}

// Another value is another element; the same value keeps what was opened in it.
export function tree(value, origin = null, path = [], depth = 0) {
  if (isLeaf(value)) return h("div", { class: "value" }, leafOf(value, origin, path));
  const isList = Array.isArray(value);
  const { items, more } = partsOf(value);
  const number = count(items.length + more);
  const head = isList ? `list of ${number}` : `${value.name ?? "dict"} of ${number}`;
  if (items.length + more === 0) return h("div", { class: "value v-other" }, isList ? "[]" : `${value.name ?? ""}{}`);
  const show = (body) => { if (!body.childElementCount) fill(body, itemsOf(value, origin, path, depth)); };
  const isOpen = depth < 1 || items.length + more <= 4;
  const body = h("div", { lazy: true });
  if (isOpen) show(body);
  const ontoggle = (event) => show(event.currentTarget.lastElementChild);
  return h("details", { key: JSON.stringify(value), class: "value", open: isOpen, ontoggle },
    h("summary", null, h("span", { class: "v-other" }, head), h("span", { class: "v-brief" }, brief(value))), body);
}

// Have the browser save a text as a file.
export function saveText(name, text) {
  const href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  h("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

// The buttons that copy and download a whole value. A report has the preview only.
export function valueButtons(value, origin) {
  const address = `api/value/file?${new URLSearchParams(origin)}`;
  const textOf = async () => (isReport ? JSON.stringify(plainOf(value), null, 1) : (await fetch(address)).text());
  const copy = async ({ currentTarget: button }) => {
    const done = (text) => patch(button, text);
    try {
      await navigator.clipboard.writeText(await textOf());
      done("Copied");
    } catch {
      done("Not copied");
    }
  };
  const name = `${origin.channel ?? origin.part}.json`;
  return h("span", { class: "buttons" },
    navigator.clipboard && h("button", { type: "button", class: "button small", onclick: copy }, "Copy"),
    isReport ? h("button", { type: "button", class: "button small", onclick: async () => saveText(name, await textOf()) }, "Download")
      : h("a", { class: "button small", href: address, download: "" }, "Download"));
}
