// Markdown as elements. What a text holds is only ever shown: no markup, no image, and an address is
// text beside its words, not a link.

import { h } from "./dom.js";

const FENCE = /^\s*(?:```|~~~)/;
const HEADING = /^\s{0,3}#{1,6}\s+(.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;
const BULLET = /^\s*[-*+]\s+(.*)$/;
const NUMBERED = /^\s*\d{1,9}[.)]\s+(.*)$/;
const STARTS = [FENCE, HEADING, QUOTE, BULLET, NUMBERED];
const INLINE = /(`[^`]{1,500}`|\*\*[^*]{1,500}\*\*|\*[^*\s][^*]{0,500}\*|\[[^\]]{1,500}\]\([^)\s]{1,500}\))/;
const LINK = /^\[([^\]]*)\]\(([^)]*)\)$/;

export function markdown(text) {
  const lines = text.split("\n");
  const blocks = [];
  while (lines.length) blocks.push(takeBlock(lines));
  return h("div", { class: "markdown" }, blocks);
}

function takeBlock(lines) {
  if (!lines[0].trim()) return lines.shift() && null;
  if (FENCE.test(lines[0])) return takeCode(lines);
  const heading = HEADING.exec(lines[0]);
  if (heading) return lines.shift() && h("p", null, h("strong", null, inline(heading[1])));
  const quoted = takeWhile(lines, QUOTE);
  if (quoted.length) return h("blockquote", null, inline(quoted.join("\n")));
  for (const [pattern, name] of [[BULLET, "ul"], [NUMBERED, "ol"]]) {
    const items = takeWhile(lines, pattern);
    if (items.length) return h(name, null, items.map((item) => h("li", null, inline(item))));
  }
  const words = [lines.shift()];
  while (lines.length && lines[0].trim() && !STARTS.some((start) => start.test(lines[0]))) words.push(lines.shift());
  return h("p", null, inline(words.join("\n")));
}

function takeCode(lines) {
  lines.shift();
  const code = [];
  while (lines.length && !FENCE.test(lines[0])) code.push(lines.shift());
  lines.shift();
  return h("pre", { tabindex: 0 }, code.join("\n"));
}

function takeWhile(lines, pattern) {
  const taken = [];
  while (lines.length && pattern.test(lines[0])) taken.push(pattern.exec(lines.shift())[1]);
  return taken;
}

function inline(text) {
  // Each second part is one that the pattern has matched.
  return text.split(INLINE).map((part, at) => (at % 2 ? marked(part) : part));
}

function marked(part) {
  const link = LINK.exec(part);
  if (link) return h("span", null, link[1], " (", h("code", null, link[2]), ")");
  if (part.startsWith("`")) return h("code", null, part.slice(1, -1));
  if (part.startsWith("**")) return h("strong", null, part.slice(2, -2));
  return h("em", null, part.slice(1, -1));
}
