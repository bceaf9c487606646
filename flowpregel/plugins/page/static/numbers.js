// The numbers of a call that were measured beside its duration. `scripts.py` puts Python's table
// (`flowpregel.watching.CALL_NUMBERS`) in place of the empty one.

import { bytes, count, seconds } from "./format.js";

export const CALL_NUMBERS = [];

const UNIT_TEXTS = { seconds, bytes, count };
const AXIS_UNITS = { seconds: " (s)", bytes: " (bytes)", count: "" };

// A number is 0 if it is unknown.
export const numberText = (number, row) => (row[number.field] ? UNIT_TEXTS[number.unit](row[number.field]) : "");
export const axisTitle = (number) => number.heading + AXIS_UNITS[number.unit];
