// Numbers and times for people.

const SECOND = 1e9;
// At most three decimals, and a comma before each three digits. To begin with `Intl`, which writes the
// same, takes a browser a fifth of a visit.
export function count(number) {
  const [whole, decimals] = String(Math.round(number * 1000) / 1000).split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return decimals ? `${grouped}.${decimals}` : grouped;
}

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 0.0005) return "0 ms";
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const whole = Math.round(value);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (h >= 48) return `${Math.floor(h / 24)} d ${h % 24} h`;
  return h ? `${h} h ${m} m` : `${m} m ${s} s`;
}

export function bytes(value) {
  if (!value) return "";
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(value) / 3)));
  return `${(value / 1000 ** power).toFixed(power ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

export function clock(nanoseconds) {
  const at = new Date(nanoseconds / 1e6);
  const two = (number) => String(number).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function moment(nanoseconds) {
  if (!nanoseconds) return "";
  const at = new Date(nanoseconds / 1e6);
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(nanoseconds)}`;
}

export function ago(nanoseconds, now = Date.now()) {
  const past = now / 1000 - nanoseconds / SECOND;
  if (past < 5) return "now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 172_800) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86_400)} days ago`;
}
