// The queries of calls, answered by the page itself: a report has no server.
//
// The server's answers (`_inspection/call_query.py`, `call_order.py`, `call_timeline.py`) are the
// specification. A test gives both the same calls and queries, and compares.

import { CALL_NUMBERS } from "./numbers.js";

const CALL_STATES = ["failed", "waiting", "running", "unfinished", "done"];
const CALL_FIELDS = {
  task: "name", call: "text", state: "state", error: "error", began: "began", took: "seconds",
  ...Object.fromEntries(CALL_NUMBERS.map(({ name, field }) => [name, field])), worker: "pid", host: "host", tries: "attempts", step: "step", path: "path",
};
const TERM = /(-?)(?:([\p{L}\p{N}_][\p{L}\p{N}_.]*):(<=|>=|<|>|=|))?("[^"]*"|\S+)/gu;
const UNITS = { ms: 0.001, s: 1, m: 60, h: 3600, kb: 1e3, mb: 1e6, gb: 1e9 };
const COMPARISONS = {
  "": (a, b) => a === b, "=": (a, b) => a === b, "<": (a, b) => a < b, "<=": (a, b) => a <= b,
  ">": (a, b) => a > b, ">=": (a, b) => a >= b,
};
const stripQuotes = (text) => text.replace(/^"+|"+$/g, "").toLowerCase();

export function parseTerms(text, own = []) {
  return [...text.matchAll(TERM)].map(([whole, minus, field, comparison, value]) => {
    const isNegated = minus === "-";
    if (Object.hasOwn(CALL_FIELDS, field ?? "") || own.includes(field)) return { value: stripQuotes(value), field, comparison, isNegated };
    return { value: stripQuotes(isNegated ? whole.slice(1) : whole), field: "", comparison: "", isNegated };
  });
}

function parseNumber(text) {
  const [, digits, unit] = /^([0-9.]+)(ms|s|m|h|kb|mb|gb)$/.exec(text) ?? [];
  const number = digits ? digits : text;
  return number.trim() === "" || Number.isNaN(Number(number)) ? null : Number(number) * (UNITS[unit] ?? 1);
}

function isMatch({ value: wanted, comparison, isNegated }, value) {
  const number = parseNumber(wanted);
  let matches = false;
  if (typeof value === "number" && (number === null || !Number.isFinite(value))) matches = wanted === String(value).toLowerCase();
  else if (typeof value === "number") matches = COMPARISONS[comparison](value, number);
  else if (value !== null && value !== undefined) {
    const text = String(value).toLowerCase();
    matches = comparison ? COMPARISONS[comparison](text, wanted) : text.includes(wanted);
  }
  return matches !== isNegated;
}

export const labelIn = (row) => row.text || row.name;

export function valueIn(row, field) {
  if (!field) return `${labelIn(row)} ${row.error}`;
  if (field === "took" && row.state === "running") return Infinity;
  return field in CALL_FIELDS ? row[CALL_FIELDS[field]] : row.fields?.[field];
}

// Numbers before texts; what has no value comes last, in both directions.
function rankOf(value, isDescending) {
  if (value === null || value === undefined || value === "" || Number.isNaN(value)) return [isDescending ? -1 : 2, 0];
  return typeof value === "string" ? [1, value] : [0, Number(value)];
}

const compareKeys = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

function inOrder(rows, order) {
  const isDescending = order.startsWith("-");
  const field = isDescending ? order.slice(1) : order;
  const isByState = field === "urgency" || field === "state";
  const keyOf = (row) => (isByState ? [0, CALL_STATES.indexOf(row.state)]
    : field === "call" ? [0, labelIn(row)] : rankOf(valueIn(row, field), isDescending));
  const keyed = rows.map((row) => [keyOf(row), row]);
  const sign = isDescending ? -1 : 1;
  keyed.sort(([a, one], [b, other]) => sign * (compareKeys(a[0], b[0]) || compareKeys(a[1], b[1]))
    || other.began - one.began || sign * (one.number - other.number));
  return keyed.map(([, row]) => row);
}

// The rows of an answer of the server, as objects.
export function rowsOf({ columns, rows }) {
  return rows.map(([number, ...cells]) => {
    const row = { number };
    columns.forEach((column, at) => { row[column] = cells[at]; });
    return row;
  });
}

let reportMemory = null; // the rows of the report, and the last selection

// The answer of `GET api/calls`, from the calls of a report.
export function queryCalls(report, { q = "", state = "", task = "", sort = "", offset = 0, count = 100, find = "" }) {
  if (reportMemory?.report !== report) reportMemory = { report, rows: rowsOf(report), key: null };
  const key = JSON.stringify([q, state, task, sort]);
  if (reportMemory.key !== key) {
    const terms = parseTerms(q, report.fields ?? []);
    const states = new Set((state || CALL_STATES.join()).split(","));
    const found = reportMemory.rows.filter((row) => states.has(row.state) && (!task || row.name === task)
      && terms.every((term) => isMatch(term, valueIn(row, term.field))));
    Object.assign(reportMemory, { key, found: inOrder(found, sort || "urgency") });
  }
  const { found, rows } = reportMemory;
  const cells = (row) => report.columns.map((column) => row[column]);
  const page = found.slice(Number(offset), Number(offset) + Number(count));
  return {
    ...report, epoch: 1, version: 1, total: found.length, is_behind: false,
    numbers: page.map((row) => row.number), rows: page.map((row) => [row.number, ...cells(row)]),
    found: find.split(",").filter(Boolean).map((id) => {
      const row = rows.find((each) => each.id === id);
      const at = found.indexOf(row);
      return [id, at < 0 ? null : at, row ? cells(row) : null];
    }),
  };
}

// ---------------------------------------------------------------- the timeline

const MOST_QUERY_LANES = 200;
const SHORTEST = 1e6;

function firstNotBefore(bars, time, from = 0) {
  let [low, high] = [from, bars.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bars[middle].begin < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function barsIn(bars, urgency, view) {
  const drawn = [];
  let at = Math.max(0, firstNotBefore(bars, view.begin) - 1);
  while (at < bars.length && bars[at].begin <= view.end) {
    const [begin, end] = [view.column(bars[at].begin), view.column(bars[at].end)];
    if (end - begin >= 2) {
      drawn.push([begin, end, urgency, bars[at].row.number]);
      at += 1;
      continue;
    }
    const next = firstNotBefore(bars, view.time(begin + 1), at + 1);
    const last = drawn.at(-1);
    const count = next - at;
    if (bars[next - 1].end >= view.begin) {
      if (count > 1 && last?.[3] < 0 && last[1] >= begin) {
        last[1] = begin + 1;
        last[3] -= count;
      } else drawn.push([begin, begin + 1, urgency, count === 1 ? bars[at].row.number : -count]);
    }
    at = next;
  }
  return drawn;
}

// The answer of `GET api/timeline`, from the calls of a report.
export function queryTimeline(report, { width = 1000, begin = 0, end = 0 }) {
  const ofPid = new Map();
  const rows = inOrder(rowsOf(report), "began").filter((row) => row.began);
  let [first, last] = [rows[0]?.began ?? 0, 0];
  for (const row of rows) {
    const bar = { row, begin: row.began, end: row.began + Math.trunc(row.seconds * 1e9) };
    if (!ofPid.has(row.pid)) ofPid.set(row.pid, []);
    const own = ofPid.get(row.pid);
    let lane = own.find((each) => each.end <= bar.begin);
    if (!lane && own.length < 16) own.push(lane = { end: 0, states: CALL_STATES.map(() => []) });
    lane ??= own.at(-1);
    lane.states[CALL_STATES.indexOf(row.state)].push(bar);
    lane.end = Math.max(lane.end, bar.end);
    last = Math.max(last, bar.end);
  }
  last = Math.max(last, first + SHORTEST);
  const lanes = [...ofPid].sort((a, b) => a[0] - b[0]).flatMap(([pid, own]) => own.map((lane) => ({ pid, lane }))).slice(0, MOST_QUERY_LANES);
  const columns = Math.min(Number(width), Math.max(40, Math.floor(6000 / Math.max(1, lanes.length))));
  const isPart = Number(end) > Number(begin);
  const [from, to] = isPart ? [first + Number(begin), first + Number(end)] : [first, last];
  const view = {
    begin: from, end: to,
    column: (time) => Math.min(columns, Math.max(0, Math.floor(((time - from) * columns) / (to - from)))),
    time: (column) => from + Math.ceil((column * (to - from)) / columns),
  };
  const pictures = lanes.map(({ pid, lane }) => [pid, CALL_STATES.flatMap((_, at) => {
    const urgency = CALL_STATES.length - 1 - at;
    return barsIn(lane.states[urgency], urgency, view);
  })]);
  const byNumber = new Map(rows.map((row) => [row.number, row]));
  const single = pictures.flatMap(([, bars]) => bars).filter((bar) => bar[3] >= 0)
    .sort((a, b) => a[0] - a[1] - (b[0] - b[1])).slice(0, 500);
  const labels = Object.fromEntries(single.map(([, , , number]) => [number, [byNumber.get(number).id, labelIn(byNumber.get(number))]]));
  return { first, last, total: rows.length, begin: from, end: to, columns, lanes: pictures, labels, is_behind: false };
}
