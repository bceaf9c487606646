// The table of calls: only the rows that are seen are drawn, so 100,000 of them are no burden.

import { badge, h, labelOf, patch, whenReleased } from "./dom.js";
import { bytes, clock, count, seconds } from "./format.js";
import { stateChips } from "./chips.js";
import { nameOf, ORDER } from "./model.js";
import { chosenStates, currentPlace, note } from "./place.js";

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
  let last = null; // the id of the row that had the focus last: it is drawn wherever the order has put it
  const label = "Search calls and errors";
  const oninput = () => { note({ q: search.value }); select(); };
  const search = h("input", { type: "search", placeholder: label, "aria-label": label, oninput });
  const [usual, ...others] = Object.keys(SORTS);
  const onchange = () => { note({ sort: sort.value === usual ? null : sort.value }, { isStep: true }); select(); };
  const sort = h("select", { "aria-label": "Order", onchange }, [usual, ...others].map((name) => h("option", null, name)));
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Show only" });
  const shown = h("div", { class: "rows", role: "rowgroup" });
  const heads = ["Call", "State", "Began", "Took", "CPU", "Memory", "Worker", "Error or progress"];
  const head = h("div", { class: "row heads", role: "row" },
    heads.map((name) => h("span", { role: "columnheader" }, name)));
  const onscroll = () => requestAnimationFrame(paint);
  const viewport = h("div", { class: "window", role: "presentation", onscroll, onkeydown: move, onfocusin: hold }, shown);
  const table = h("div", { class: "card calls", role: "table", "aria-label": "Calls" },
    h("div", { role: "rowgroup" }, head), viewport);
  const told = h("p", { class: "empty", role: "status" });
  const element = h("div", null, h("div", { class: "bar" }, search, sort, filters), table, told);
  const sizes = new ResizeObserver(() => paint());
  sizes.observe(viewport);

  function update() {
    rows = run.rows();
    const chosen = chosenStates();
    const states = ORDER.filter((state) => run.counts[state] || chosen.has(state));
    patch(filters, stateChips(states, (state) => run.counts[state], update));
    select();
  }

  function select() {
    const words = search.value.trim().toLowerCase();
    const chosen = chosenStates();
    found = rows.filter((row) => (!chosen.size || chosen.has(row.shown))
      && (!words || `${nameOf(row)} ${row.error}`.toLowerCase().includes(words)));
    found.sort(SORTS[sort.value]);
    shown.style.height = `${found.length * ROW_HEIGHT}px`;
    viewport.style.height = `${Math.min(found.length, 15) * ROW_HEIGHT + 1}px`;
    table.setAttribute("aria-rowcount", String(found.length + 1));
    const { limit, row } = run;
    const missing = limit && limit < row.calls ? ` The report holds ${count(limit)} of ${count(row.calls)} calls.` : "";
    const none = rows.length === 0 ? "No call has left anything yet." : "No call is like that.";
    patch(told, (found.length ? "" : none) + missing);
    paint();
  }

  function paint() {
    const first = Math.max(0, Math.floor(viewport.scrollTop / ROW_HEIGHT) - 5);
    const end = Math.min(found.length, first + Math.ceil(viewport.clientHeight / ROW_HEIGHT) + 10);
    const indices = Array.from({ length: Math.max(0, end - first) }, (_, at) => first + at);
    const at = last === null ? -1 : found.findIndex((row) => row.id === last);
    if (at >= 0 && at < first) indices.unshift(at);
    if (at >= end) indices.push(at);
    // Tab reaches one row, the arrow keys lead to the others.
    const stop = at >= 0 ? at : indices[0];
    patch(shown, indices.map((index) => rowOf(found[index], index, index === stop ? 0 : -1)));
  }

  function rowOf(row, index, tabindex) {
    const { live } = row;
    const far = live?.done !== null && live?.done !== undefined;
    const total = live?.total ? ` of ${count(live.total)}` : "";
    const progress = far ? `${live.message ?? ""} ${count(live.done)}${total}`.trim() : live?.message;
    const tried = row.attempts > 1 ? `${labelOf(row.shown)}, try ${row.attempts}` : undefined;
    const link = h("a", { class: "mono", href: linkOf(row.id), title: nameOf(row), tabindex }, nameOf(row));
    return h("div", {
      key: row.id, class: "row", role: "row", "aria-rowindex": index + 2, "data-id": row.id, "data-index": index,
      style: { top: `${index * ROW_HEIGHT}px` },
    },
      h("span", { role: "rowheader", class: "name" }, link), h("span", { role: "cell" }, badge(row.shown, tried)),
      h("span", { role: "cell", class: "number" }, row.began ? clock(row.began) : ""),
      h("span", { role: "cell", class: "number" }, row.began && row.seconds !== null ? seconds(row.seconds) : ""),
      h("span", { role: "cell", class: "number quiet" }, row.cpu ? seconds(row.cpu) : ""),
      h("span", { role: "cell", class: "number quiet" }, bytes(row.peak)),
      h("span", { role: "cell", class: "number quiet" }, row.pid || ""),
      h("span", { role: "cell", class: "error", title: row.error },
        row.shown === "running" ? progress ?? "" : row.error));
  }

  function hold(event) {
    const row = event.target.closest(".row");
    if (!row || row.dataset.id === last) return;
    last = row.dataset.id;
    whenReleased(paint);
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

  function go({ query }) {
    search.value = query.get("q") ?? "";
    sort.value = query.get("sort") in SORTS ? query.get("sort") : usual;
    if (run.row) update();
  }

  go(currentPlace());
  return { element, update, go, close: () => sizes.disconnect() };
}
