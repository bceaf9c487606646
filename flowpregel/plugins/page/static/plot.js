// The calls of a sweep as a plot: two numbers of each call, coloured by a third field. A point is a
// link to its call, and the same numbers are in a table. The library is loaded with the first plot.

import { fill, h, patch, say, whenReleased } from "./dom.js";
import { fieldText } from "./fields.js";
import { count } from "./format.js";
import { stateChips } from "./chips.js";
import { columnTitle } from "./columns.js";
import { callCounts, ORDER } from "./model.js";
import { axisTitle, CALL_NUMBERS } from "./numbers.js";
import { chosenStates, currentPlace, note } from "./place.js";
import { isReport, load } from "./source.js";

const PLOT_PERIOD = 3000; // milliseconds between two requests, while a run goes on
const MOST_COLOURS = 8;
const MOST_LISTED = 200;
const REACH = 24; // pixels from the pointer to the point that it means
const PLOT_HEIGHT = 380;
const PADDING = 0.04; // of a scale, beside the values at each end
const HOW_TO_ZOOM = " Drag over a part to enlarge it, double-click to go back.";
const PLOT_COLOURS = ["--running", "--failed", "--done", "--waiting", "--unfinished", "--plot-6", "--plot-7", "--quiet"];

let library = null;

// The script of a report has the library in it.
function loadLibrary() {
  if (isReport) return Promise.resolve(uPlot); // eslint-disable-line no-undef
  library ??= import("./vendor/uplot.js").then((loaded) => loaded.default);
  if (!document.getElementById("uplot-style")) {
    document.head.append(h("link", { id: "uplot-style", rel: "stylesheet", href: "static/vendor/uplot.css" }));
  }
  return library;
}

const AXES = { seconds: "Since the call began (s)", step: "Step" }; // of a metric over time
const TITLES = {
  order: "Order of the calls", began: "Began (s after the first)", took: "Took (s)",
  ...Object.fromEntries(CALL_NUMBERS.map((number) => [number.name, axisTitle(number)])),
};
const titleOf = (name) => TITLES[name] ?? columnTitle(name);
const shortNumber = (value) => String(Number(value.toPrecision(5)));

// Points by colour: by value if there are few, numbers in ranges, and the rare values together.
export function colourGroups(points) {
  const counts = new Map();
  for (const [, , value] of points) counts.set(value, (counts.get(value) ?? 0) + 1);
  const values = [...counts.keys()];
  const textOf = (value) => (value === null || value === "" ? "none" : fieldText(value));
  const numbers = points.map(([, , value]) => value).filter((value) => typeof value === "number").sort((a, b) => a - b);
  if (values.length > MOST_COLOURS && numbers.length === points.length) {
    const limits = [...new Set([0, 1, 2, 3, 4, 5].map((part) => numbers[Math.floor((part * numbers.length) / 6)]))];
    const groupOf = (value) => limits.findLastIndex((limit) => limit <= value);
    const labels = limits.map((limit, at) => `${shortNumber(limit)} to ${shortNumber(at + 1 < limits.length ? limits[at + 1] : numbers.at(-1))}`);
    return { labels, of: points.map(([, , value]) => groupOf(value)) };
  }
  const isOrdered = numbers.length === points.length;
  const byNumber = (a, b) => a - b;
  const byCount = (a, b) => counts.get(b) - counts.get(a) || (textOf(a) < textOf(b) ? -1 : 1);
  values.sort(isOrdered ? byNumber : byCount);
  const named = values.slice(0, values.length > MOST_COLOURS ? MOST_COLOURS - 1 : MOST_COLOURS);
  const labels = named.map(textOf);
  if (named.length < values.length) labels.push("other");
  return { labels, of: points.map(([, , value]) => (named.includes(value) ? named.indexOf(value) : named.length)) };
}

// The part of a scale that is drawn: somewhat more than the values, so that no point is cut.
function paddedRange(_, least, most) {
  if (least === null) return [0, 1];
  const rest = (most - least) * PADDING || Math.abs(most) * 0.1 || 1;
  return [least - rest, most + rest];
}

// The values that `paddedRange` widens to this part of a scale.
function unpaddedRange({ min, max }) {
  const rest = ((max - min) * PADDING) / (1 + 2 * PADDING);
  return { min: min + rest, max: max - rest };
}

export function plotView({ run, linkOf, reload }) {
  const asked = () => currentPlace().query;
  const change = (changes) => { note(changes, { isStep: true }); update(); };
  const choice = (name, label) => h("select", { "aria-label": label, onchange: (event) => change({ [name]: event.currentTarget.value }) });
  const search = h("input", { type: "search", placeholder: "Search calls and errors", "aria-label": "Search calls and errors",
    oninput: () => { note({ q: search.value }); update(); } });
  const kind = choice("kind", "Kind of plot");
  const [x, y, colour] = [choice("x", "Horizontal axis"), choice("y", "Vertical axis"), choice("colour", "Colour")];
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Show only" });
  const told = h("p", { class: "quiet", role: "status" });
  const paper = h("div", { class: "chart" });
  const link = h("a", { class: "point", draggable: "false", onkeydown: walk, onfocus: () => show(at, true), onblur: () => hide() });
  const tip = h("div", { class: "tip", hidden: true });
  const figure = h("div", { class: "plot", role: "group", "aria-label": "Plot", onpointermove: follow, onpointerleave: () => hide(), onpointerdown: press, onclick: open, ondblclick: () => { isZoomed = false; } }, paper, link, tip);
  const legend = h("ul", { class: "legend", "aria-label": "Colours" });
  const numbers = h("details", { class: "card", ontoggle: () => drawTable() }, h("summary", null, "The numbers as a table"), h("div", null));
  const element = h("div", null,
    h("div", { class: "bar" }, search, h("label", null, "Plot ", kind), h("label", null, "x ", x), h("label", null, "y ", y), h("label", null, "Colour ", colour), filters),
    h("div", { class: "card" }, told, figure, legend), numbers);
  let answer = null;
  let chart = null;
  let at = 0; // the position of the point that the link is at
  let shownRows = MOST_LISTED;
  let known = "";
  let begun = 0;
  let isBusy = false;
  let isClosed = false;
  let timer = 0;
  let pressed = null;
  let isZoomed = false; // whether a person has enlarged a part
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  const sizes = new ResizeObserver(() => chart?.setSize({ width: paper.clientWidth, height: PLOT_HEIGHT }));
  scheme.addEventListener("change", drawChart);
  sizes.observe(paper);

  const queryNow = () => Object.fromEntries([["q", search.value.trim()], ["state", [...chosenStates()].join()],
    ...["x", "y", "colour", "kind"].map((name) => [name, asked().get(name) ?? ""])].filter(([, value]) => value));

  // Running calls send the values of a metric without a change of the calls.
  const wantedOf = (query) => JSON.stringify([query, run.version, query.kind === "series" && run.live?.at]);

  async function update() {
    if (!run.row || isClosed) return;
    patch(filters, stateChips(ORDER, (state) => callCounts(run)[state], () => update()));
    const query = queryNow();
    const wanted = wantedOf(query);
    if (isBusy || wanted === known) return;
    const isSameQuery = known !== "" && JSON.stringify(JSON.parse(known)[0]) === JSON.stringify(query);
    const rest = isSameQuery ? begun + PLOT_PERIOD - Date.now() : 0;
    if (rest > 0) {
      timer ||= setTimeout(() => { timer = 0; update(); }, rest);
      return;
    }
    isBusy = true;
    begun = Date.now();
    isZoomed &&= isSameQuery;
    try {
      const [drawn] = await Promise.all([load("plot", { thread: run.thread, ...query }), loadLibrary()]);
      known = drawn.is_behind ? "" : wanted;
      if (drawn.is_behind) patch(told, "Reading the calls …");
      else {
        answer = drawn;
        if (!isClosed) await new Promise((done) => whenReleased(() => done(draw())));
      }
    } catch (error) {
      known = wanted;
      patch(told, String(error.message ?? error));
    } finally {
      isBusy = false;
    }
    if (wantedOf(queryNow()) !== known) update();
  }

  async function draw() {
    const isSeries = "axes" in answer;
    options(kind, ["scatter", "line", "series"], asked().get("kind") || "scatter", (name) => ({ scatter: "points", line: "a line", series: "a metric over time" })[name]);
    options(x, answer.axes ?? answer.numbers, answer.x, xTitleOf);
    options(y, answer.numbers, answer.y, titleOf);
    options(colour, ["", ...answer.groups], asked().get("colour") ?? "", (name) => (name ? columnTitle(name) : isSeries ? "the call" : "one colour"));
    const { total, points } = answer;
    patch(told, isSeries ? seriesWords() : !total ? "No call has both numbers." : points.length < total
      ? `${count(points.length)} points, which stand for ${count(total)} calls.${HOW_TO_ZOOM}`
      : `${count(total)} calls.${HOW_TO_ZOOM}`);
    figure.setAttribute("aria-label", `Plot of ${titleOf(answer.y)} against ${xTitleOf(answer.x)}. The arrow keys go from call to call.`);
    at = Math.min(at, Math.max(0, points.length - 1));
    await drawChart();
    drawTable();
  }

  const xTitleOf = (name) => (answer.axes ? AXES[name] : titleOf(name));

  function seriesWords() {
    const { lines, total, y: metric } = answer;
    if (!lines) return "No call has recorded several values of a metric.";
    return `${metric} of ${count(lines)} ${lines === 1 ? "call" : "calls"}${lines < total ? `, of ${count(total)} that match` : ""}.${HOW_TO_ZOOM}`;
  }

  // The lines of the chart: one for each call, or one for each colour.
  function linesOf(points, groups) {
    const keys = points.map((point, at) => (answer.axes ? point[3] : groups.of[at]));
    const lines = new Map();
    keys.forEach((key, at) => { if (!lines.has(key)) lines.set(key, { key, colour: groups.of[at] }); });
    return { keys, lines: [...lines.values()].sort((a, b) => a.colour - b.colour) };
  }

  function options(select, names, chosen, textOf) {
    patch(select, names.map((name) => h("option", { key: name, value: name }, textOf(name))));
    select.value = chosen;
  }

  async function drawChart() {
    if (!answer || isClosed) return;
    const Chart = await loadLibrary();
    const style = getComputedStyle(element);
    const colourOf = (name) => style.getPropertyValue(name).trim();
    const { points } = answer;
    const groups = colourGroups(points);
    const { keys, lines } = linesOf(points, groups);
    const isLine = ["line", "series"].includes(asked().get("kind"));
    const axis = (label) => ({ label, stroke: colourOf("--ink"), grid: { stroke: colourOf("--line"), width: 1 }, ticks: { stroke: colourOf("--line"), width: 1 } });
    const series = lines.map(({ colour: number }) => {
      const stroke = colourOf(PLOT_COLOURS[number % PLOT_COLOURS.length]);
      return { label: groups.labels[number], stroke, width: 1.5, spanGaps: true, paths: isLine ? undefined : () => null,
        points: { show: !isLine || points.length <= 500, size: 7, fill: stroke } };
    });
    const data = [points.map((point) => point[0]),
      ...lines.map(({ key }) => points.map((point, each) => (keys[each] === key ? point[1] : null)))];
    const scales = isZoomed && chart ? ["x", "y"].map((name) => [name, unpaddedRange(chart.scales[name])]) : [];
    chart?.destroy();
    chart = new Chart({
      width: Math.max(200, paper.clientWidth), height: PLOT_HEIGHT, legend: { show: false }, series: [{}, ...series],
      cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: true, uni: 20 } },
      scales: { x: { time: false, range: paddedRange }, y: { range: paddedRange } },
      axes: [axis(xTitleOf(answer.x)), { ...axis(titleOf(answer.y)), size: 70 }],
      hooks: {
        draw: [() => { figure.dataset.drawn = points.length; figure.dataset.lines = lines.length; place(); }],
        setSelect: [({ select }) => { isZoomed ||= select.width > 0 || select.height > 0; }],
      },
    }, data, paper);
    for (const [name, range] of scales) chart.setScale(name, range);
    legend.hidden = !asked().get("colour") && !answer.axes;
    patch(legend, groups.labels.map((label, number) => h("li", { key: label },
      h("span", { class: "swatch", "aria-hidden": "true", style: { background: colourOf(PLOT_COLOURS[number % PLOT_COLOURS.length]) } }), label)));
  }

  // ---------------------------------------------------------------- points

  const textOf = ([a, b, value, , label]) => `${label}: ${xTitleOf(answer.x)} ${fieldText(a)}, ${titleOf(answer.y)} ${fieldText(b)}`
    + (answer.axes && !asked().get("colour") ? `, ${value}` : "") + (asked().get("colour") ? `, ${columnTitle(asked().get("colour"))} ${fieldText(value) || "none"}` : "");

  const positionOf = ([a, b]) => [chart.over.offsetLeft + chart.valToPos(a, "x"), chart.over.offsetTop + chart.valToPos(b, "y")];

  function place() {
    const point = answer?.points[at];
    link.hidden = !point;
    if (!point || !chart) return;
    const [left, top] = positionOf(point);
    Object.assign(link.style, { left: `${left}px`, top: `${top}px` });
    link.setAttribute("href", linkOf(point[3]));
    link.setAttribute("aria-label", textOf(point));
    link.dataset.call = point[3];
  }

  function show(position, isTold) {
    if (!answer?.points.length || !chart) return;
    at = position;
    place();
    link.classList.add("seen");
    const text = textOf(answer.points[at]);
    fill(tip, text);
    tip.hidden = false;
    const [left, top] = positionOf(answer.points[at]);
    Object.assign(tip.style, { left: `${Math.max(0, Math.min(left + 12, paper.clientWidth - tip.offsetWidth))}px`, top: `${top + 14}px` });
    if (isTold) say(text);
  }

  function hide() {
    if (document.activeElement === link) return;
    link.classList.remove("seen");
    tip.hidden = true;
  }

  function nearest(event) {
    if (!chart || !answer) return -1;
    const box = figure.getBoundingClientRect();
    let [best, least] = [-1, REACH ** 2];
    answer.points.forEach((point, position) => {
      const [left, top] = positionOf(point);
      const distance = (left - event.clientX + box.left) ** 2 + (top - event.clientY + box.top) ** 2;
      if (distance < least) [best, least] = [position, distance];
    });
    return best;
  }

  function follow(event) {
    const position = event.buttons ? -1 : nearest(event);
    if (position >= 0) show(position, false);
    else hide();
  }

  function press(event) { pressed = [event.clientX, event.clientY]; }

  // A press beside a point opens the point's call, unless the pointer was dragged.
  function open(event) {
    if (event.target === link || !pressed) return;
    const position = nearest(event);
    if (position < 0 || Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) > 4) return;
    show(position, false);
    link.click();
  }

  function walk(event) {
    const last = answer.points.length - 1;
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(last, next)), true);
  }

  // ---------------------------------------------------------------- the same as a table

  function drawTable() {
    if (!answer || !numbers.open) return;
    const name = asked().get("colour");
    const more = answer.points.length - shownRows;
    patch(numbers.lastElementChild, h("table", { class: "list figures" },
      h("thead", null, h("tr", null, ["Call", xTitleOf(answer.x), titleOf(answer.y), name && columnTitle(name)].filter(Boolean).map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", null, answer.points.slice(0, shownRows).map(([a, b, value, id, label]) => h("tr", { key: answer.axes ? `${id} ${a}` : id },
        h("th", { scope: "row", class: "mono" }, h("a", { href: linkOf(id) }, label)),
        [a, b, ...(name ? [value] : [])].map((cell) => h("td", { class: "number" }, fieldText(cell))))))),
    more > 0 && h("button", { type: "button", class: "button", onclick: () => { shownRows += MOST_LISTED; drawTable(); } }, `${count(more)} more`));
  }

  function go({ query }) {
    search.value = query.get("q") ?? "";
    if (chart) place();
    if (numbers.open) drawTable();
    update();
  }

  function close() {
    isClosed = true;
    clearTimeout(timer);
    sizes.disconnect();
    scheme.removeEventListener("change", drawChart);
    chart?.destroy();
  }

  search.value = asked().get("q") ?? "";
  reload();
  return { element, update, go, close };
}
