// The table of calls: only the rows that are seen are loaded and drawn, so a million of them are no burden.

import { badge, h, labelOf, patch, whenReleased } from "./dom.js";
import { count } from "./format.js";
import { stateChips } from "./chips.js";
import { columnText, columnChooser, columnsOf, columnTitle, csvLink, gridOf, isCommon } from "./columns.js";
import { callCounts, nameOf, ORDER } from "./model.js";
import { callLinks, chosenStates, currentPlace, note } from "./place.js";
import { searchTerms } from "./terms.js";

const ROW_HEIGHT = 36;
const MOST_SEEN = 15;
const AROUND = 40; // rows loaded above and below the seen ones
// Browsers draw nothing higher than some 17 million pixels. A longer table is scrolled in steps.
const MOST_HEIGHT = 8_000_000;
const SORTS = { "worst first": "urgency", "newest first": "-began", "longest first": "-took", "by name": "call" };

export function callsView({ run, reload }) {
  let last = null; // the id of the row that had the focus last: it is drawn wherever the order has put it
  let asked = null; // the query that was asked for last
  let wanted = null; // the position of the row that gets the focus once it is loaded
  const label = "Search calls and errors";
  const hint = "Words, or fields: took:>2 depth:12 loss:<0.2 state:failed -error:timeout";
  const oninput = () => { note({ q: search.value }); ask(); };
  const search = h("input", { type: "search", placeholder: label, "aria-label": label, title: hint, oninput });
  const [usual, ...others] = Object.keys(SORTS);
  const sort = h("select", { "aria-label": "Order", onchange: () => setOrder(sort.value) });
  let order = usual; // a name in SORTS, or a field, after a minus for the greatest first
  let columns = []; // the names of the columns that are shown
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Show only" });
  const shown = h("div", { class: "rows", role: "rowgroup" });
  const head = h("div", { class: "row heads", role: "row" });
  // Reading a position makes the browser lay out at once all that was drawn before.
  let top = 0;
  const onscroll = () => { top = viewport.scrollTop; requestAnimationFrame(paint); };
  const viewport = h("div", { class: "window", role: "presentation", onscroll, onkeydown: move, onfocusin: hold }, shown);
  const table = h("div", { class: "card calls", role: "table", "aria-label": "Calls" },
    h("div", { role: "rowgroup" }, head), viewport);
  const told = h("p", { class: "empty", role: "status" });
  const chooser = columnChooser({ run, onChange: update });
  const save = h("span");
  const element = h("div", null,
    h("div", { class: "bar" }, search, sort, filters, searchTerms(addTerm), h("span", { class: "buttons" }, chooser.element, save)), table, told);

  function addTerm(term) {
    search.value = `${search.value.trim()} ${term}`.trim();
    search.focus();
    oninput();
  }

  const total = () => run.table.total;
  const height = () => Math.min(total() * ROW_HEIGHT, MOST_HEIGHT);
  const seen = () => Math.max(1, Math.floor(viewport.clientHeight / ROW_HEIGHT));
  const isScaled = () => total() * ROW_HEIGHT > MOST_HEIGHT;
  // The rows for each pixel of the scroll bar.
  const pace = () => (isScaled() ? (total() - seen()) / Math.max(1, height() - viewport.clientHeight) : 1 / ROW_HEIGHT);
  const firstSeen = () => top * pace();
  const topOf = (index) => (isScaled() ? top + (index - firstSeen()) * ROW_HEIGHT : index * ROW_HEIGHT);

  function queryNow() {
    const text = search.value.trim();
    return { q: text, state: [...chosenStates()].join(), sort: SORTS[order] ?? order };
  }

  function setOrder(name) {
    order = name;
    note({ sort: name === usual ? null : name }, { isStep: true });
    ask();
    update();
  }

  function drawHeads() {
    columns = columnsOf(run).names;
    const names = columns.map((name) => (isCommon(name) ? columnTitle(name)
      : h("button", { type: "button", onclick: () => setOrder(order === name ? `-${name}` : name) },
        `${name}${order === name ? " ▲" : order === `-${name}` ? " ▼" : ""}`)));
    patch(head, ["Call", "State", ...names, "Error or progress"].map((name, at) => (
      h("span", { role: "columnheader", class: at > 1 && at < names.length + 2 ? "number" : "" }, name))));
    table.style.setProperty("--grid", gridOf(columns));
    table.style.setProperty("--least", `${23 + 5 * columns.length}rem`);
    chooser.update();
    patch(save, csvLink(run, queryNow()));
    patch(sort, [...new Set([usual, ...others, order])].map((name) => h("option", { key: name, value: name }, name)));
    sort.value = order;
  }

  // Ask for the calls of the search, the filters and the order, from the first on.
  function ask() {
    asked = JSON.stringify(queryNow());
    scrollTo(0);
    load(0);
  }

  function scrollTo(position) {
    if (position === top) return;
    viewport.scrollTop = position;
    top = viewport.scrollTop;
  }

  const offsetOf = (first) => Math.max(0, Math.floor((first - AROUND) / 20) * 20);

  function load(first) {
    const offset = offsetOf(first);
    run.query = { ...queryNow(), offset, count: MOST_SEEN + 2 * AROUND + 20 };
    reload();
  }

  function update() {
    // All states have a chip, so none moves under a press when a call gets another state.
    patch(filters, stateChips(ORDER, (state) => callCounts(run)[state], () => { update(); ask(); }));
    shown.style.height = `${height()}px`;
    viewport.style.height = `${Math.min(total(), MOST_SEEN) * ROW_HEIGHT + 1}px`;
    table.setAttribute("aria-rowcount", String(total() + 1));
    patch(told, words());
    drawHeads();
    paint();
  }

  function words() {
    const all = ORDER.reduce((sum, state) => sum + run.counts[state], 0);
    if (run.isBehind) return `${count(all)} calls have been read so far …`;
    const { limit } = run;
    if (limit && limit < all) return `The report holds ${count(limit)} of ${count(all)} calls.`;
    if (!all) return "No call has left anything yet.";
    if (!total()) return "No call is like that.";
    // The body of a flow has a row, and is not a call.
    return total() < all ? `${count(total())} of ${count(all)} rows` : "";
  }

  function paint() {
    const begin = Math.floor(firstSeen());
    const first = Math.max(0, begin - 5);
    const end = run.table.numbers.length ? Math.min(total(), begin + MOST_SEEN + 6) : 0;
    const indices = Array.from({ length: Math.max(0, end - first) }, (_, at) => first + at);
    const isLoaded = indices.every((index) => run.table.at(index));
    const at = last === null ? -1 : run.table.positionOf(last);
    if (at >= 0 && at < first) indices.unshift(at);
    if (at >= end) indices.push(at);
    // Tab reaches one row, the arrow keys lead to the others.
    const stop = at >= 0 ? at : indices[0];
    const linkOf = callLinks();
    patch(shown, indices.map((index) => {
      const row = index === at ? run.table.get(last) : run.table.at(index);
      return row ? rowOf(row, index, { href: linkOf(row.id), tabindex: index === stop ? 0 : -1 }) : unknownRow(index);
    }));
    if (!isLoaded && run.row && run.query.offset !== offsetOf(begin)) load(begin);
    if (wanted !== null && run.table.at(wanted)) {
      const link = shown.querySelector(`[data-index="${wanted}"] a`);
      wanted = null;
      link?.focus({ preventScroll: true });
    }
  }

  const placeOfRow = (index) => ({ "aria-rowindex": index + 2, "data-index": index, style: { top: `${topOf(index)}px` } });

  function unknownRow(index) {
    return h("div", { key: `unknown ${index}`, class: "row", role: "row", ...placeOfRow(index) },
      h("span", { role: "rowheader", class: "quiet" }, "…"));
  }

  function rowOf(row, index, { href, tabindex }) {
    const live = run.running.get(row.id);
    const far = live?.done !== null && live?.done !== undefined;
    const all = live?.total ? ` of ${count(live.total)}` : "";
    const progress = far ? `${live.message ?? ""} ${count(live.done)}${all}`.trim() : live?.message;
    const { state } = row;
    const tried = row.attempts > 1 ? `${labelOf(state)}, try ${row.attempts}` : undefined;
    const link = h("a", { class: "mono", href, title: nameOf(row), tabindex }, nameOf(row));
    return h("div", { key: row.id, class: "row", role: "row", "data-id": row.id, ...placeOfRow(index) },
      h("span", { role: "rowheader", class: "name" }, link), h("span", { role: "cell" }, badge(state, tried)),
      cellsOf(row),
      h("span", { role: "cell", class: "error", title: row.error },
        state === "running" ? progress ?? "" : row.error));
  }

  function cellsOf(row) {
    return columns.map((name) => {
      const text = columnText(row, name);
      return h("span", { role: "cell", class: "number", title: isCommon(name) ? null : text }, text);
    });
  }

  function hold(event) {
    const row = event.target.closest(".row");
    if (!row?.dataset.id || row.dataset.id === last) return;
    run.finds.delete(last);
    last = row.dataset.id;
    run.finds.add(last);
    whenReleased(paint);
  }

  // The arrow keys go from call to call, also to one that is not loaded yet.
  function move(event) {
    const at = Number(document.activeElement?.closest?.(".row")?.dataset.index);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (!step || Number.isNaN(at)) return;
    event.preventDefault();
    wanted = Math.min(total() - 1, Math.max(0, at + step));
    const lowest = (wanted + 1) / pace() - viewport.clientHeight;
    const scaledLowest = (wanted - seen() + 1) / pace();
    scrollTo(Math.max(isScaled() ? scaledLowest : lowest, Math.min(wanted / pace(), top)));
    paint();
  }

  function go({ query }) {
    search.value = query.get("q") ?? "";
    order = query.get("sort") || usual;
    if (run.row) update();
    if (asked !== JSON.stringify(queryNow())) ask();
  }

  function close() {
    run.finds.delete(last);
    run.query = { count: 0 };
  }

  go(currentPlace());
  return { element, update, go, close };
}
