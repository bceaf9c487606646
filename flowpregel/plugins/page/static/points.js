// The points of a plot, and the comparison of two calls, of a report, which has no server.

import { fieldNames, fieldText } from "./fields.js";
import { CALL_NUMBERS } from "./numbers.js";
import { labelIn, queryCalls, rowsOf, valueIn } from "./query.js";

const NUMBERS = ["order", "took", ...CALL_NUMBERS.map(({ name }) => name), "began", "tries"];
const GROUPS = ["task", "state", "worker", "host"];
const isFiniteNumber = (value) => typeof value === "number" && Number.isFinite(value);

const MOST_LINES = 40;

// A report has at most 20,000 calls, so all of them are points.
export function queryPlot(report, { kind = "", x = "", y = "", colour = "", q = "", state = "", task = "" }, answers = {}) {
  const every = rowsOf(report);
  const names = fieldNames(every);
  const own = names.filter((name) => every.some((row) => isFiniteNumber(row.fields[name])));
  const numbers = [...own, ...NUMBERS];
  const axes = { x: x || numbers[0], y: y || (own.length > 1 ? own.at(-1) : "took") };
  const found = rowsOf(queryCalls(report, { q, state, task, count: every.length }));
  const nested = found.filter((row) => row.caller);
  const rows = (nested.length ? nested : found)
    .sort((a, b) => a.step - b.step || (a.path < b.path ? -1 : a.path > b.path ? 1 : 0));
  const first = Math.min(...every.filter((row) => row.began).map((row) => row.began));
  if (kind === "series") return querySeries(rows, answers, { x, y, colour, groups: [...names, ...GROUPS] });
  const valueOf = (row, at, field) => {
    if (field === "order") return at + 1;
    if (field === "began") return row.began ? (row.began - first) / 1e9 : null;
    return valueIn(row, field);
  };
  const points = rows.map((row, at) => [valueOf(row, at, axes.x), valueOf(row, at, axes.y),
    colour ? valueIn(row, colour) ?? null : null, row.id, labelIn(row)])
    .filter(([a, b]) => isFiniteNumber(a) && isFiniteNumber(b))
    .sort((a, b) => a[0] - b[0]);
  return { ...axes, numbers, groups: [...names, ...GROUPS], total: points.length, points, is_behind: false };
}

// The values of a metric over time, a line for each call, as the server returns them.
function querySeries(rows, answers, { x, y, colour, groups }) {
  const withSeries = rows.map((row) => {
    const media = answers[`call:${row.id}`]?.media ?? [];
    return { row, series: Object.fromEntries(media.filter((medium) => medium.series).map((medium) => [medium.title, medium.series])) };
  });
  const numbers = [...new Set(withSeries.flatMap(({ series }) => Object.keys(series)))];
  const metric = numbers.includes(y) ? y : numbers[0] ?? "";
  const lines = withSeries.filter(({ series }) => metric in series).slice(0, MOST_LINES);
  const axis = x !== "seconds" && lines.length && lines.every(({ series }) => series[metric].step.length) ? "step" : "seconds";
  const nameOfLine = lineNames(lines.map(({ row }) => row));
  const points = lines.flatMap(({ row, series }) => series[metric].values.map((value, at) => (
    [series[metric][axis][at], value, colour ? valueIn(row, colour) ?? null : nameOfLine(row), row.id, labelIn(row)])))
    .filter(([a, b]) => isFiniteNumber(a) && isFiniteNumber(b))
    .sort((a, b) => a[0] - b[0]);
  return { x: axis, y: metric, axes: ["seconds", "step"], numbers, groups, lines: lines.length, total: rows.length, points, is_behind: false };
}

// The texts of calls, or if these are not different, the first fields in which the calls differ.
function lineNames(rows) {
  const differing = fieldNames(rows).filter((name) => new Set(rows.map((row) => row.fields[name])).size > 1).slice(0, 3);
  if (new Set(rows.map(labelIn)).size === rows.length || !differing.length) return labelIn;
  return (row) => differing.map((name) => `${name}=${name in row.fields ? fieldText(row.fields[name] ?? "None") : "None"}`).join(", ");
}

const PAIRS_AT_ONCE = 500;

// Some of the compared calls of a report of two runs, or one pair of them.
function compareRunsInReport(answer, { call_a: a, change = "different", offset = 0 }) {
  const pair = a && answer.calls.find((call) => call.a.id === a);
  if (pair) return { a: pair.a, b: pair.b, arguments: null, results: pair.results };
  const calls = answer.calls.filter((call) => call.change === change);
  return { ...answer, calls: calls.slice(Number(offset), Number(offset) + PAIRS_AT_ONCE) };
}

// The comparison of two calls of a report, which has no server.
export function compareInReport(report, query, answers = {}) {
  if (answers["compare:"]) return compareRunsInReport(answers["compare:"], query);
  const { call_a: a, call_b: b } = query;
  const rows = rowsOf(report);
  const [first, second] = [a, b].map((id) => rows.find((row) => row.id === id));
  if (!first || !second) throw new Error("this report does not hold that");
  const [one, other] = [first, second].map((row) => row.fields ?? {});
  const results = Object.keys({ ...one, ...other }).filter((name) => one[name] !== other[name])
    .map((name) => ({ name, a: one[name] ?? null, b: other[name] ?? null }));
  const recordOf = (row) => ({ ...row, text: row.text || row.name });
  return { a: recordOf(first), b: recordOf(second), arguments: null, results };
}
