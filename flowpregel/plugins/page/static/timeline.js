// When each call ran, and on which worker: a canvas, with a bar for each call.

import { fill, h, labelOf, patch } from "./dom.js";
import { clock, count, seconds } from "./format.js";
import { nameOf } from "./model.js";
import { currentPlace, note } from "./place.js";

const LANE = 18;
const GAP = 4;
const LEFT = 76;
const TOP = 24;
const MOST_LANES = 200;
const STEPS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200,
  21_600, 86_400,
];

// Bars that overlap in one process (its OS threads) get lanes of their own.
export function lanesOf(rows, now) {
  const of = new Map();
  for (const row of rows) {
    if (!row.began) continue;
    const end = row.shown === "running" || row.seconds === null ? now : row.began + row.seconds * 1e9;
    if (!of.has(row.pid)) of.set(row.pid, []);
    of.get(row.pid).push({ row, begin: row.began, end: Math.max(end, row.began) });
  }
  const lanes = [];
  for (const [pid, bars] of [...of].sort((a, b) => a[0] - b[0])) {
    bars.sort((a, b) => a.begin - b.begin);
    const own = [];
    for (const bar of bars) {
      let lane = own.find((each) => each.end <= bar.begin);
      if (!lane && own.length < 16) {
        lane = { pid, bars: [], end: 0, name: own.length ? "" : String(pid || "?") };
        own.push(lane);
      }
      lane ??= own[own.length - 1];
      lane.bars.push(bar);
      lane.end = Math.max(lane.end, bar.end);
    }
    lanes.push(...own);
  }
  return lanes.slice(0, MOST_LANES);
}

export function timelineView({ run, linkOf }) {
  const canvas = h("canvas", { tabindex: "0", role: "img" });
  const paper = canvas.getContext("2d");
  const tip = h("div", { class: "tip", hidden: true });
  const told = h("p", { class: "quiet" });
  const tool = (text, label, act) => h("button", { type: "button", class: "button", "aria-label": label, onclick: act }, text);
  const element = h("div", null,
    h("div", { class: "bar" }, told, h("span", { class: "buttons" },
      tool("−", "Zoom out", () => zoom(2)), tool("+", "Zoom in", () => zoom(0.5)),
      tool("All", "Show the whole run", whole))),
    h("div", { class: "card timeline" }, canvas, tip));
  let lanes = [];
  let [first, last] = [0, 1]; // the whole run, in nanoseconds
  let [from, to] = [0, 0]; // what is seen, in nanoseconds after the first; 0: all of it
  let colours = {};
  let version = -1;

  const span = () => (to ? [first + from, first + to] : [first, last]);
  const width = () => Math.max(1, canvas.clientWidth - LEFT - 8);
  const atX = (x) => { const [a, b] = span(); return a + ((x - LEFT) / width()) * (b - a); };
  const xOf = (time) => { const [a, b] = span(); return LEFT + ((time - a) / (b - a)) * width(); };

  function update() {
    if (version === run.version && !run.live) return;
    version = run.version;
    const now = run.live?.at ?? run.row.updated;
    lanes = lanesOf(run.rows(), now);
    first = Infinity;
    last = -Infinity;
    let bars = 0;
    for (const lane of lanes) {
      first = Math.min(first, lane.bars[0].begin);
      last = Math.max(last, lane.end);
      bars += lane.bars.length;
    }
    if (!lanes.length) [first, last] = [0, 1e9];
    if (last - first < 1e6) last = first + 1e6;
    const processes = new Set(lanes.map((lane) => lane.pid)).size;
    const extent = `${count(bars)} calls in ${seconds((last - first) / 1e9)}, processes: ${count(processes)}.`;
    patch(told, bars ? `${extent} Wheel or + and − zoom, dragging moves.` : "No call has run yet.");
    canvas.setAttribute("aria-label", `Timeline: ${told.textContent} The table of calls has the same in words.`);
    paint();
  }

  function paint() {
    const height = TOP + Math.max(1, lanes.length) * (LANE + GAP) + 8;
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = height * scale;
    paper.setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(document.documentElement);
    for (const name of ["done", "failed", "running", "waiting", "unfinished", "ink", "quiet", "line", "card"]) colours[name] = style.getPropertyValue(`--${name}`);
    paper.clearRect(0, 0, canvas.clientWidth, height);
    paintAxis(height);
    lanes.forEach(paintLane);
  }

  function paintAxis(height) {
    const [a, b] = span();
    const step = (STEPS.find((each) => ((b - a) / 1e9 / each) * 90 <= width()) ?? 604_800) * 1e9;
    paper.font = "12px system-ui, sans-serif";
    paper.textAlign = "left";
    for (let tick = Math.ceil((a - first) / step) * step; first + tick <= b; tick += step) {
      const x = Math.round(xOf(first + tick)) + 0.5;
      if (x < LEFT) continue;
      paper.strokeStyle = colours.line;
      paper.beginPath();
      paper.moveTo(x, TOP - 6);
      paper.lineTo(x, height);
      paper.stroke();
      paper.fillStyle = colours.quiet;
      paper.fillText(tick ? seconds(tick / 1e9) : clock(first), x + 3, TOP - 10);
    }
  }

  function paintLane(lane, at) {
    const y = TOP + at * (LANE + GAP);
    const [a, b] = span();
    paper.fillStyle = colours.quiet;
    paper.textAlign = "right";
    paper.fillText(lane.name, LEFT - 10, y + 13);
    // Bars thinner than a pixel are one bar; the worst of them gives it its colour.
    let [pixel, state] = [-1, ""];
    const flush = () => { if (pixel >= 0) { paper.fillStyle = colours[state]; paper.fillRect(pixel, y, 1, LANE); } };
    for (let index = firstAfter(lane.bars, a); index < lane.bars.length; index += 1) {
      const { row, begin, end } = lane.bars[index];
      if (begin > b) break;
      const [x, right] = [Math.max(LEFT, xOf(begin)), Math.min(LEFT + width(), xOf(end))];
      if (right <= LEFT) continue;
      if (right - x >= 2) {
        paper.fillStyle = colours[row.shown];
        paper.fillRect(x, y, right - x - 0.5, LANE);
        if (right - x > 60) paintName(row, x, y, right - x);
      } else if (Math.floor(x) !== pixel) {
        flush();
        [pixel, state] = [Math.floor(x), row.shown];
      } else if (row.shown === "failed") {
        state = "failed";
      }
    }
    flush();
  }

  function paintName(row, x, y, room) {
    paper.save();
    paper.beginPath();
    paper.rect(x, y, room - 4, LANE);
    paper.clip();
    paper.fillStyle = colours.card;
    paper.textAlign = "left";
    paper.fillText(nameOf(row), x + 5, y + 13);
    paper.restore();
  }

  // The first bar that may end after a time: the one before the first that begins after it.
  function firstAfter(bars, time) {
    let [low, high] = [0, bars.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (bars[middle].begin < time) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  function barAt(event) {
    const lane = lanes[Math.floor((event.offsetY - TOP) / (LANE + GAP))];
    if (!lane || event.offsetX < LEFT) return null;
    const slack = atX(LEFT + 2) - atX(LEFT);
    const time = atX(event.offsetX);
    for (let at = firstAfter(lane.bars, time + slack); at >= 0 && at < lane.bars.length; at -= 1) {
      const bar = lane.bars[at];
      if (bar.begin <= time + slack && bar.end >= time - slack) return bar;
      if (bar.end < time - slack) break;
    }
    return null;
  }

  function show(a, b) {
    const size = Math.min(last - first, Math.max(1e5, b - a));
    from = Math.min(Math.max(first, a), last - size) - first;
    to = from + size;
    if (size >= last - first) [from, to] = [0, 0];
    note({ zoom: to ? `${Math.round(from)}-${Math.round(to)}` : null });
    requestAnimationFrame(paint);
  }

  function zoom(factor, around = LEFT + width() / 2) {
    const [a, b] = span();
    const time = atX(around);
    show(time - (time - a) * factor, time + (b - time) * factor);
  }

  function pan(share) {
    const [a, b] = span();
    show(a + (b - a) * share, b + (b - a) * share);
  }

  function whole() {
    show(first, last);
  }

  let held = null;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / width());
    else zoom(1.2 ** Math.sign(event.deltaY), event.offsetX);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { held = { x: event.offsetX, moved: false }; });
  canvas.addEventListener("pointermove", (event) => {
    if (held && event.buttons) {
      if (Math.abs(event.offsetX - held.x) > 2) {
        held.moved = true;
        pan((held.x - event.offsetX) / width());
        held.x = event.offsetX;
      }
      return;
    }
    const bar = barAt(event);
    tip.hidden = !bar;
    canvas.style.cursor = bar ? "pointer" : "";
    if (!bar) return;
    const when = `${labelOf(bar.row.shown)} · ${seconds((bar.end - bar.begin) / 1e9)} · ${clock(bar.begin)}`;
    const error = bar.row.error && h("div", { class: "error" }, bar.row.error);
    fill(tip, h("strong", { class: "mono" }, nameOf(bar.row)), h("br"), when, error);
    tip.style.left = `${Math.min(event.offsetX + 14, canvas.clientWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.offsetY + 16}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const bar = held?.moved ? null : barAt(event);
    held = null;
    if (bar) h("a", { href: linkOf(bar.row.id) }).click();
  });
  canvas.addEventListener("keydown", (event) => {
    const closer = () => zoom(0.5);
    const [left, right] = [() => pan(-0.2), () => pan(0.2)];
    const keys = { "+": closer, "=": closer, "-": () => zoom(2), Home: whole, ArrowLeft: left, ArrowRight: right };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  const sizes = new ResizeObserver(paint);
  sizes.observe(element);
  function go({ query }) {
    const [begin, end] = (query.get("zoom") ?? "").split("-").map(Number);
    [from, to] = begin >= 0 && end > begin ? [begin, end] : [0, 0];
    if (version >= 0) paint();
  }

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", paint);
  go(currentPlace());
  return { element, update, go, close() { sizes.disconnect(); dark.removeEventListener("change", paint); } };
}
