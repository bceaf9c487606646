// The points of a plot, and the comparison of two calls, of a report: it has no server to ask.

import { fieldNames } from "./fields.js";
import { labelIn, queryCalls, rowsOf, valueIn } from "./query.js";

const NUMBERS = ["order", "took", "cpu", "memory", "began", "tries"];
const GROUPS = ["task", "state", "worker", "host"];
const isFiniteNumber = (value) => typeof value === "number" && Number.isFinite(value);

// A report has at most 20,000 calls, so all of them are points.
export function queryPlot(report, { x = "", y = "", colour = "", q = "", state = "", task = "" }) {
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

// The comparison of two calls of a report, which has no server.
export function compareInReport(report, { call_a: a, call_b: b }) {
  const rows = rowsOf(report);
  const [first, second] = [a, b].map((id) => rows.find((row) => row.id === id));
  if (!first || !second) throw new Error("this report does not hold that");
  const [one, other] = [first, second].map((row) => row.fields ?? {});
  const results = Object.keys({ ...one, ...other }).filter((name) => one[name] !== other[name])
    .map((name) => ({ name, a: one[name] ?? null, b: other[name] ?? null }));
  const recordOf = (row) => ({ ...row, text: row.text || row.name });
  return { a: recordOf(first), b: recordOf(second), arguments: null, results };
}
