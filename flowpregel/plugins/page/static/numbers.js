// The numbers of a call that were measured beside its duration: a row of `_inspection/call_rows.py`
// each, with a short label for columns. A test compares the two tables.

import { bytes, count, seconds } from "./format.js";

export const CALL_NUMBERS = [
  { name: "cpu", field: "cpu", label: "CPU", unit: "seconds", short: "CPU" },
  { name: "memory", field: "peak", label: "Peak memory", unit: "bytes", short: "Memory" },
];

const UNIT_TEXTS = { seconds, bytes, count };
const AXIS_UNITS = { seconds: " (s)", bytes: " (bytes)", count: "" };

// A number is 0 if it is unknown.
export const numberText = (number, row) => (row[number.field] ? UNIT_TEXTS[number.unit](row[number.field]) : "");
export const axisTitle = (number) => number.short + AXIS_UNITS[number.unit];
