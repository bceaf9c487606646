// The values of a metric over time, in the panel of a call. The view *Plot* draws those of several calls.

import { h, svg } from "./dom.js";
import { fieldText } from "./fields.js";
import { currentPlace, hashOf } from "./place.js";

const [WIDE, HIGH, EDGE] = [320, 90, 3];
const isPresent = (value) => value !== null && value !== undefined;

// The part of the lines, and the numbers at the ends of the axes, as text.
function lineOf(points) {
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const placeIn = (values, size) => {
    const [least, most] = [Math.min(...values), Math.max(...values)];
    return (value) => EDGE + (most > least ? (value - least) / (most - least) : 0.5) * (size - 2 * EDGE);
  };
  const [left, up] = [placeIn(xs, WIDE), placeIn(ys, HIGH)];
  const path = points.map(([x, y], at) => `${at ? "L" : "M"}${left(x).toFixed(1)} ${(HIGH - up(y)).toFixed(1)}`).join("");
  return { path, least: fieldText(Math.min(...ys)), most: fieldText(Math.max(...ys)), from: fieldText(Math.min(...xs)), to: fieldText(Math.max(...xs)) };
}

function chartOf({ title, series }) {
  const axis = series.step.length ? "step" : "seconds";
  const unit = axis === "step" ? "" : " s";
  const rows = series.values.map((value, at) => [series[axis][at], value]);
  const points = rows.filter((row) => row.every(isPresent)).sort((a, b) => a[0] - b[0]);
  const href = hashOf({ ...currentPlace(), tab: "plot" }, { kind: "series", x: axis, y: title, call: null });
  if (!points.length) return null;
  const { path, least, most, from, to } = lineOf(points);
  const label = `${title}: ${points.length} values from ${fieldText(points[0][1])} to ${fieldText(points.at(-1)[1])}, least ${least}, greatest ${most}`;
  return h("figure", { key: `series ${title}`, class: "media series", "data-metric": title },
    h("figcaption", { class: "quiet" }, `${title} by ${axis === "step" ? "step" : "time"} · `, h("a", { href }, "Compare the calls")),
    h("div", { class: "axes" }, h("span", { class: "most number" }, most), h("span", { class: "least number" }, least),
      svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, svg("path", { d: path })),
      h("span", { class: "from number" }, `${from}${unit}`), h("span", { class: "to number" }, `${to}${unit}`)),
    h("details", null, h("summary", null, "The values as a table"), h("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Values" },
      h("table", null, h("thead", null, h("tr", null, [axis === "step" ? "Step" : "Seconds", title].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) => h("td", { class: "number" }, isPresent(cell) ? fieldText(cell) : "not finite")))))))));
}

export const seriesOf = (media) => media.map(chartOf);
