// A value as a tree. It comes as `pages.tagged` made it: nothing of the user's was run for it.

import { fill, h } from "./dom.js";

const SHORT = 80;

function leaf(value) {
  if (value === null) return h("span", { class: "v-null" }, "None");
  if (value === true) return h("span", { class: "v-null" }, "True");
  if (value === false) return h("span", { class: "v-null" }, "False");
  if (typeof value === "number") return h("span", { class: "v-number" }, String(value));
  if (typeof value === "string") return h("span", { class: "v-text" }, JSON.stringify(value));
  return h("span", { class: "v-other" }, value.written);
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

export function itemsOf({ items }, depth = 0) {
  const shown = (each) => (isLeaf(each) ? leaf(each) : tree(each, depth + 1));
  return h("div", { class: "items value" }, items.map(([key, each]) => (
    h("div", { class: "item" }, h("span", { class: "key" }, key), shown(each)))));
}

// Another value is another element; the same value keeps what was opened in it.
export function tree(value, depth = 0) {
  if (isLeaf(value)) return h("div", { class: "value" }, leaf(value));
  const isList = Array.isArray(value);
  const items = isList ? value.map((each, at) => [String(at), each]) : value.items;
  const head = isList ? `list of ${items.length}` : `${value.name ?? "dict"} of ${items.length}`;
  if (items.length === 0) return h("div", { class: "value v-other" }, isList ? "[]" : `${value.name ?? ""}{}`);
  const show = (body) => { if (!body.childElementCount) fill(body, itemsOf({ items }, depth)); };
  const isOpen = depth < 1 || items.length <= 4;
  const body = h("div", { lazy: true });
  if (isOpen) show(body);
  const ontoggle = (event) => show(event.currentTarget.lastElementChild);
  return h("details", { key: JSON.stringify(value), class: "value", open: isOpen, ontoggle },
    h("summary", null, h("span", { class: "v-other" }, head), h("span", { class: "v-brief" }, brief(value))), body);
}
