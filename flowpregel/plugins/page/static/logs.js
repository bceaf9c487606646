// What all calls of a run have printed and logged: searched, by level, followed while the run goes on.

import { h, patch, whenReleased } from "./dom.js";
import { count } from "./format.js";
import { currentPlace, hashOf, note } from "./place.js";
import { isReport, load } from "./source.js";
import { saveText } from "./values.js";

const LEVEL_NAMES = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const ESCAPE = /\x1b\[([\d;]*)m|\x1b\[[\d;?]*[A-Za-z]|\x1b\][^\x07]*\x07/g;
const COLOURS = ["quiet", "failed", "done", "waiting", "accent", "unfinished", "running", "quiet"];
const PAUSE = 1000;

// The colours of a terminal as elements. Nothing else of an escape sequence is obeyed.
export function ansi(text) {
  const parts = [];
  let [bold, colour, at] = [false, "", 0];
  const add = (part) => part && parts.push(bold || colour ? h("span", { class: `${colour && `c-${colour}`}${bold ? " bold" : ""}` }, part) : part);
  for (const found of text.matchAll(ESCAPE)) {
    add(text.slice(at, found.index));
    at = found.index + found[0].length;
    if (found[1] === undefined) continue;
    const codes = found[1].split(";").map(Number);
    for (let index = 0; index < codes.length; index += 1) {
      const code = codes[index];
      if (code === 0) [bold, colour] = [false, ""];
      else if (code === 1) bold = true;
      else if (code === 22) bold = false;
      else if (code === 39) colour = "";
      else if (code === 38 || code === 48) index += codes[index + 1] === 2 ? 4 : 2; // any other colour
      else if ((code >= 30 && code < 38) || (code >= 90 && code < 98)) colour = COLOURS[code % 10];
    }
  }
  add(text.slice(at));
  return parts;
}

// What a server would answer, from the lines that a report holds.
function selected({ lines, total }, { text, level }) {
  const least = LEVEL_NAMES.indexOf(level);
  const words = text.toLowerCase();
  const found = lines.filter(([, name, own, line]) => (least < 0 || LEVEL_NAMES.indexOf(own) >= least) && `${name} ${line}`.toLowerCase().includes(words));
  return { lines: found, first: 0, matched: found.length, total };
}

export function logsView({ run }) {
  const title = "Search the output";
  const again = () => { known = ""; update(); };
  const search = h("input", { type: "search", placeholder: title, "aria-label": title, oninput: () => { note({ log: search.value }); again(); } });
  const levels = h("select", { "aria-label": "Least level", onchange: () => { note({ level: levels.value }, { isStep: true }); again(); } },
    h("option", { value: "" }, "All output"), LEVEL_NAMES.map((name) => h("option", { value: name }, name)));
  const follow = h("input", { type: "checkbox", checked: true, onchange: () => follow.checked && toEnd() });
  const told = h("span", { class: "quiet", role: "status" });
  const save = isReport ? h("button", { type: "button", class: "button", onclick: () => saveText("output.txt", page.lines.map(([, name, , line]) => `${name}: ${line}\n`).join("")) }, "Download")
    : h("a", { class: "button", download: "", href: `api/output/file?${new URLSearchParams({ thread: run.thread })}` }, "Download");
  const list = h("div", { class: "log card", tabindex: 0, role: "region", "aria-label": "Output" });
  const element = h("div", null, h("div", { class: "bar" }, search, levels, !isReport && h("label", null, follow, " Follow"), told, save), list);
  let page = null;
  let earlier = []; // the lines before the page, as far as they were asked for
  let known = "";
  let read = 0;
  let later = 0;

  const toEnd = () => { list.scrollTop = list.scrollHeight; };
  const asked = (more = {}) => ({ thread: run.thread, text: search.value, level: levels.value, ...more });

  async function update() {
    const key = `${run.row?.updated} ${search.value} ${levels.value} ${run.row?.status}`;
    const isRunning = run.row?.status === "running";
    if (key === known && !(isRunning && follow.checked)) return;
    clearTimeout(later);
    const wait = known && key.split(" ")[1] === known.split(" ")[1] ? read + PAUSE - Date.now() : 0;
    if (wait > 0) { later = setTimeout(update, wait); return; }
    known = key;
    read = Date.now();
    try {
      const answer = await load("output", asked());
      if (`${run.row?.updated} ${search.value} ${levels.value} ${run.row?.status}` !== known) { again(); return; }
      page = isReport ? selected(answer, asked()) : answer;
      earlier = [];
      whenReleased(draw);
    } catch (error) {
      patch(told, String(error.message));
    }
  }

  async function showEarlier() {
    const first = page.first - earlier.length;
    const { lines } = await load("output", asked({ end: first }));
    earlier = [...lines, ...earlier];
    draw({ isStill: true });
  }

  function draw({ isStill = false } = {}) {
    const lines = [...earlier, ...page.lines];
    const first = page.first - earlier.length;
    const { total, matched } = page;
    patch(told, `${count(matched)} of ${count(total)} lines`);
    patch(list, first > 0 && h("button", { type: "button", key: "earlier", class: "button", onclick: showEarlier }, `${count(first)} earlier lines`),
      lines.map(([call, name, level, text], at) => h("div", { key: first + at, class: `line ${level}` },
        h("a", { href: hashOf(currentPlace(), { call }), class: "quiet", title: name, tabindex: -1 }, name), h("span", null, ansi(text)))),
      !lines.length && h("p", { class: "empty" }, total ? "No line is like that." : "Nothing was printed or logged. Only calls in worker processes have output."));
    if (follow.checked && !isStill) toEnd();
  }

  function go({ query }) {
    search.value = query.get("log") ?? "";
    levels.value = query.get("level") ?? "";
    again();
  }

  go(currentPlace());
  return { element, update, go, close() { clearTimeout(later); } };
}
