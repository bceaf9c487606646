// The table of calls: only the rows that are seen are drawn, so 100,000 of them are no burden.

import { badge, fill, h, labelOf } from "./dom.js";
import { bytes, clock, count, seconds } from "./format.js";
import { nameOf, ORDER } from "./model.js";

const ROW_HEIGHT = 36;
const SORTS = {
  "worst first": (a, b) => ORDER.indexOf(a.shown) - ORDER.indexOf(b.shown) || b.began - a.began,
  "newest first": (a, b) => b.began - a.began,
  "longest first": (a, b) => (b.seconds ?? Infinity) - (a.seconds ?? Infinity),
  "by name": (a, b) => (nameOf(a) < nameOf(b) ? -1 : 1),
};

export function callsView({ run, linkOf }) {
  let rows = [];
  let found = [];
  const chosen = new Set();
  const label = "Search calls and errors";
  const search = h("input", { type: "search", placeholder: label, "aria-label": label, oninput: () => select() });
  const orders = Object.keys(SORTS).map((name) => h("option", null, name));
  const sort = h("select", { "aria-label": "Order", onchange: () => select() }, orders);
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Show only" });
  const shown = h("div", { class: "rows" });
  const space = h("div", { class: "space" }, shown);
  const heads = ["Call", "State", "Began", "Took", "CPU", "Memory", "Worker", "Error or progress"];
  const head = h("div", { class: "row heads", role: "row" },
    heads.map((name) => h("span", { role: "columnheader" }, name)));
  const viewport = h("div", { class: "window", onscroll: () => requestAnimationFrame(paint), onkeydown: move }, space);
  const table = h("div", { class: "card calls", role: "table", "aria-label": "Calls" }, head, viewport);
  const told = h("p", { class: "empty", role: "status" });
  const element = h("div", null, h("div", { class: "bar" }, search, sort, filters), table, told);
  const sizes = new ResizeObserver(() => paint());
  sizes.observe(viewport);

  function update() {
    rows = run.rows();
    const focused = document.activeElement?.dataset?.state;
    const states = ORDER.filter((state) => run.counts[state] || chosen.has(state));
    fill(filters, states.map((state) => h("button", {
      type: "button", class: `chip ${state}`, "data-state": state, "aria-pressed": String(chosen.has(state)),
      onclick: () => { if (!chosen.delete(state)) chosen.add(state); update(); },
    }, badge(state), h("span", { class: "number" }, count(run.counts[state])))));
    if (focused) filters.querySelector(`[data-state="${CSS.escape(focused)}"]`)?.focus();
    select();
  }

  function select() {
    const wanted = search.value.trim().toLowerCase();
    found = rows.filter((row) => (!chosen.size || chosen.has(row.shown))
      && (!wanted || `${nameOf(row)} ${row.error}`.toLowerCase().includes(wanted)));
    found.sort(SORTS[sort.value]);
    space.style.height = `${found.length * ROW_HEIGHT}px`;
    viewport.style.height = `${Math.min(found.length, 15) * ROW_HEIGHT + 1}px`;
    table.setAttribute("aria-rowcount", String(found.length + 1));
    const { limit, row } = run;
    const missing = limit && limit < row.calls ? ` The report holds ${count(limit)} of ${count(row.calls)} calls.` : "";
    const none = rows.length === 0 ? "No call has left anything yet." : "No call is like that.";
    fill(told, (found.length ? "" : none) + missing);
    paint();
  }

  function paint() {
    const first = Math.max(0, Math.floor(viewport.scrollTop / ROW_HEIGHT) - 5);
    const last = Math.min(found.length, first + Math.ceil(viewport.clientHeight / ROW_HEIGHT) + 10);
    const focused = document.activeElement?.closest?.(".row")?.dataset.id;
    shown.style.transform = `translateY(${first * ROW_HEIGHT}px)`;
    fill(shown, found.slice(first, last).map((row, at) => rowOf(row, first + at)));
    if (focused) shown.querySelector(`[data-id="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
  }

  function rowOf(row, index) {
    const { live } = row;
    const far = live?.done !== null && live?.done !== undefined;
    const total = live?.total ? ` of ${count(live.total)}` : "";
    const progress = far ? `${live.message ?? ""} ${count(live.done)}${total}`.trim() : live?.message;
    const tried = row.attempts > 1 ? `${labelOf(row.shown)}, try ${row.attempts}` : undefined;
    const link = h("a", { class: "mono", href: linkOf(row.id), title: nameOf(row) }, nameOf(row));
    return h("div", { class: "row", role: "row", "aria-rowindex": index + 2, "data-id": row.id, "data-index": index },
      h("span", { role: "rowheader", class: "name" }, link), h("span", { role: "cell" }, badge(row.shown, tried)),
      h("span", { role: "cell", class: "number" }, row.began ? clock(row.began) : ""),
      h("span", { role: "cell", class: "number" }, row.began && row.seconds !== null ? seconds(row.seconds) : ""),
      h("span", { role: "cell", class: "number quiet" }, row.cpu ? seconds(row.cpu) : ""),
      h("span", { role: "cell", class: "number quiet" }, bytes(row.peak)),
      h("span", { role: "cell", class: "number quiet" }, row.pid || ""),
      h("span", { role: "cell", class: "error", title: row.error },
        row.shown === "running" ? progress ?? "" : row.error));
  }

  // The arrow keys go from call to call, also to one that is not drawn yet.
  function move(event) {
    const at = Number(document.activeElement?.closest?.(".row")?.dataset.index);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (!step || Number.isNaN(at)) return;
    event.preventDefault();
    const next = Math.min(found.length - 1, Math.max(0, at + step));
    const top = next * ROW_HEIGHT;
    const lowest = top + ROW_HEIGHT - viewport.clientHeight;
    viewport.scrollTop = Math.max(lowest, Math.min(top, viewport.scrollTop));
    paint();
    shown.querySelector(`[data-index="${next}"] a`)?.focus({ preventScroll: true });
  }

  return { element, update, close: () => sizes.disconnect() };
}
