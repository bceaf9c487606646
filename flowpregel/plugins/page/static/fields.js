// The fields of calls, by the names that queries use.

export function fieldText(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(Number(value.toPrecision(6)));
  return value === true ? "True" : value === false ? "False" : String(value);
}

// What was asked, then what came out.
export function fieldNames(rows) {
  return [...new Set(rows.flatMap((row) => Object.keys(row.fields ?? {})))];
}
