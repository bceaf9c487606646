// The columns of the table of calls: those that a reader has chosen, or the usual ones; and the
// table as a CSV file.

import { fill, h } from "./dom.js";
import { fieldNames, fieldText } from "./fields.js";
import { clock, seconds } from "./format.js";
import { CALL_NUMBERS, numberText } from "./numbers.js";
import { currentPlace, note } from "./place.js";
import { queryCalls, rowsOf, valueIn } from "./query.js";
import { isReport, reportCalls } from "./source.js";
import { saveText } from "./values.js";

const MOST_FIELDS = 6;
const COMMON = {
  began: ["Began", (row) => (row.began ? clock(row.began) : "")],
  took: ["Took", (row) => (row.began && row.state !== "running" ? seconds(row.seconds) : "")],
  ...Object.fromEntries(CALL_NUMBERS.map((number) => [number.name, [number.heading, (row) => numberText(number, row)]])),
  worker: ["Worker", (row) => row.pid || ""],
  tries: ["Tries", (row) => row.attempts || ""],
};
const IN_EACH_FILE = ["task", "call", "state", "error", "took", "memory", "tries"];

export const isCommon = (name) => Object.hasOwn(COMMON, name);
export const columnTitle = (name) => (isCommon(name) ? COMMON[name][0] : name);
export const columnText = (row, name) => (isCommon(name) ? String(COMMON[name][1](row)) : fieldText(row.fields?.[name]));

// In the address, a comma stands between the names; alone, it means no column.
const readNames = (words) => words.split(",").filter(Boolean).map(decodeURIComponent);
const writeNames = (names) => names.map(encodeURIComponent).join(",") || ",";

// The names of the columns that are shown, and of all that can be.
export function columnsOf(run) {
  const own = fieldNames(run.table.rows());
  const usual = ["began", "took", ...(own.length ? own.slice(0, MOST_FIELDS) : [...CALL_NUMBERS.map(({ name }) => name), "worker"])];
  const chosen = currentPlace().query.get("columns");
  const names = chosen === null ? usual : readNames(chosen);
  const all = [...new Set([...Object.keys(COMMON), ...own, ...run.fields, ...names])];
  return { names, all, usual, isChosen: chosen !== null };
}

// The widths of the columns, as a grid has them.
export function gridOf(names) {
  const widths = names.map((name) => (isCommon(name) ? "5.2rem" : "minmax(4rem, 1fr)"));
  return ["minmax(9rem, 1.6fr)", "7.5rem", ...widths, "minmax(5rem, 1.4fr)"].join(" ");
}

export function columnChooser({ run, onChange }) {
  const choices = h("div", { class: "choices", role: "group", "aria-label": "Columns" });
  const usual = h("button", { type: "button", class: "button small", onclick: () => choose(null) }, "Usual columns");
  const summary = h("summary", { class: "button" }, "Columns");
  const element = h("details", { class: "columns", onkeydown: close }, summary, h("div", { class: "card" }, choices, usual));
  const boxes = new Map();
  let known = "";

  function close(event) {
    if (event.key !== "Escape") return;
    element.open = false;
    summary.focus();
  }

  function choose(names) {
    note({ columns: names && writeNames(names) }, { isStep: true });
    onChange();
  }

  function toggle() {
    const { names, all } = columnsOf(run);
    const kept = names.filter((name) => boxes.get(name)?.checked ?? true);
    const added = all.filter((name) => boxes.get(name)?.checked && !names.includes(name));
    choose([...kept, ...added]);
  }

  function update() {
    const { names, all } = columnsOf(run);
    if (known !== JSON.stringify(all)) {
      known = JSON.stringify(all);
      for (const name of all) if (!boxes.has(name)) boxes.set(name, h("input", { type: "checkbox", onchange: toggle }));
      fill(choices, all.map((name) => h("label", null, boxes.get(name), ` ${columnTitle(name)}`)));
    }
    for (const [name, box] of boxes) box.checked = names.includes(name);
  }

  return { element, update };
}

// ---------------------------------------------------------------- CSV

const csvCell = (value) => {
  if (value === null || value === undefined || value === Infinity) return "";
  const text = value === true ? "True" : value === false ? "False" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

// The lines of the server's CSV file, from the calls of a report.
export function csvOf(report, query, names) {
  const rows = rowsOf(queryCalls(report, { ...query, offset: 0, count: report.rows.length }));
  const all = names.length ? names : [...IN_EACH_FILE, ...fieldNames(rows)];
  return [all, ...rows.map((row) => all.map((name) => valueIn(row, name)))]
    .map((cells) => `${cells.map(csvCell).join(",")}\r\n`).join("");
}

// What saves the calls of a query as a file.
export function csvLink(run, query) {
  const { names, isChosen } = columnsOf(run);
  const columns = isChosen ? ["call", "state", ...names, "error"] : [];
  const title = "The calls that match, as CSV";
  if (isReport) {
    const save = () => saveText("calls.csv", csvOf(reportCalls, query, columns));
    return h("button", { type: "button", class: "button csv", title, onclick: save }, "CSV");
  }
  const words = { thread: run.thread, ...query, columns: columns.length ? writeNames(columns) : "" };
  const asked = Object.entries(words).filter(([, value]) => value !== "");
  return h("a", { class: "button csv", title, download: "", href: `api/calls/file?${new URLSearchParams(asked)}` }, "CSV");
}
