// When each call ran, and on which worker: a canvas. The server sends a picture of the part that is
// seen: a bar for each call, or for the calls of a column.

import { fill, h, labelOf, patch } from "./dom.js";
import { clock, count, seconds } from "./format.js";
import { ORDER } from "./model.js";
import { currentPlace, note } from "./place.js";
import { load } from "./source.js";

const LANE = 18;
const GAP = 4;
const LEFT = 76;
const TOP = 24;
const STEPS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200,
  21_600, 86_400,
];

export function timelineView({ run, linkOf }) {
  const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline" });
  const paper = canvas.getContext("2d");
  const tip = h("div", { class: "tip", hidden: true });
  const told = h("p", { class: "quiet" });
  const tool = (text, label, act) => h("button", { type: "button", class: "button", "aria-label": label, onclick: act }, text);
  const element = h("div", null,
    h("div", { class: "bar" }, told, h("span", { class: "buttons" },
      tool("−", "Zoom out", () => zoom(2)), tool("+", "Zoom in", () => zoom(0.5)),
      tool("All", "Show the whole run", whole))),
    h("div", { class: "card timeline" }, canvas, tip));
  let picture = null; // the last one that came; until the next comes, it is stretched
  let [first, last] = [0, 1]; // the whole run, in nanoseconds
  let [from, to] = [0, 0]; // what is seen, in nanoseconds after the first; 0: all of it
  let colours = {};
  let key = "";
  let isBusy = false;
  let rest = 0;

  const span = () => (to ? [first + from, first + to] : [first, last]);
  const width = () => Math.max(1, canvas.clientWidth - LEFT - 8);
  const atX = (x) => { const [a, b] = span(); return a + ((x - LEFT) / width()) * (b - a); };
  const xOf = (time) => { const [a, b] = span(); return LEFT + ((time - a) / (b - a)) * width(); };
  const timeOf = (column) => picture.begin + (column / picture.columns) * (picture.end - picture.begin);
  const nameOfLane = (at) => {
    const [pid] = picture.lanes[at];
    return at && picture.lanes[at - 1][0] === pid ? "" : String(pid || "?");
  };

  async function update() {
    const part = { width: width(), begin: Math.round(from), end: Math.round(to) };
    const wanted = JSON.stringify([run.version, run.live?.at, part]);
    if (wanted === key || isBusy || !canvas.isConnected) return;
    isBusy = true;
    key = wanted;
    const begin = performance.now();
    try {
      picture = await load("timeline", { thread: run.thread, ...part });
      tell();
      paint();
    } catch (error) {
      patch(told, String(error.message ?? error));
    }
    // A picture of very many calls takes the server some time: it draws for a tenth of the time.
    rest = Math.min(5000, 9 * (performance.now() - begin));
    setTimeout(() => { isBusy = false; if (run.row) update(); }, rest);
  }

  function tell() {
    const { lanes, total } = picture;
    [first, last] = total ? [picture.first, picture.last] : [0, 1e9];
    const processes = new Set(lanes.map(([pid]) => pid)).size;
    const extent = `${count(total)} calls in ${seconds((last - first) / 1e9)}, processes: ${count(processes)}.`;
    patch(told, total ? `${extent} Wheel or + and − zoom, dragging moves.` : "No call has run yet.");
    canvas.setAttribute("aria-label", `Timeline: ${told.textContent} The table of calls has the same in words.`);
  }

  function paint() {
    const lanes = picture?.lanes ?? [];
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
      const label = tick ? seconds(tick / 1e9) : clock(first);
      if (x + 3 + paper.measureText(label).width > canvas.clientWidth) continue;
      paper.fillStyle = colours.quiet;
      paper.fillText(label, x + 3, TOP - 10);
    }
  }

  function paintLane([, bars], at) {
    const y = TOP + at * (LANE + GAP);
    paper.fillStyle = colours.quiet;
    paper.textAlign = "right";
    paper.fillText(nameOfLane(at), LEFT - 10, y + 13);
    for (const bar of bars) {
      const [begin, end, urgency, number] = bar;
      const [x, right] = [Math.max(LEFT, xOf(timeOf(begin))), Math.min(LEFT + width(), xOf(timeOf(end)))];
      if (right <= LEFT || x >= LEFT + width()) continue;
      paper.fillStyle = colours[ORDER[urgency]];
      paper.fillRect(x, y, Math.max(1, right - x - (number < 0 ? 0 : 0.5)), LANE);
      const name = picture.labels[number]?.[1];
      if (name && right - x > 60) paintName(name, x, y, right - x);
    }
  }

  function paintName(name, x, y, room) {
    paper.save();
    paper.beginPath();
    paper.rect(x, y, room - 4, LANE);
    paper.clip();
    paper.fillStyle = colours.card;
    paper.textAlign = "left";
    paper.fillText(name, x + 5, y + 13);
    paper.restore();
  }

  // The bar at the pointer, the most urgent of several: those are drawn last.
  function barAt(event) {
    const [, bars] = picture?.lanes[Math.floor((event.offsetY - TOP) / (LANE + GAP))] ?? [];
    if (!bars || event.offsetX < LEFT) return null;
    const isThere = ([begin, end]) => event.offsetX >= xOf(timeOf(begin)) - 2 && event.offsetX <= xOf(timeOf(end)) + 2;
    const found = bars.findLast(isThere);
    if (!found) return null;
    const [begin, end, urgency, number] = found;
    const [id, name] = picture.labels[number] ?? [null, null];
    return { begin: timeOf(begin), end: timeOf(end), state: ORDER[urgency], id, name, calls: number < 0 ? -number : 1 };
  }

  function show(a, b) {
    const size = Math.min(last - first, Math.max(1e5, b - a));
    from = Math.min(Math.max(first, a), last - size) - first;
    to = from + size;
    if (size >= last - first) [from, to] = [0, 0];
    note({ zoom: to ? `${Math.round(from)}-${Math.round(to)}` : null });
    requestAnimationFrame(paint);
    update();
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
    const when = `${labelOf(bar.state)} · ${seconds((bar.end - bar.begin) / 1e9)} · ${clock(bar.begin)}`;
    const title = bar.name ?? (bar.calls > 1 ? `${count(bar.calls)} calls` : "a call");
    fill(tip, h("strong", { class: "mono" }, title), h("br"), when, !bar.name && h("div", { class: "quiet" }, "Zoom in to see it"));
    tip.style.left = `${Math.min(event.offsetX + 14, canvas.clientWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.offsetY + 16}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const bar = held?.moved ? null : barAt(event);
    held = null;
    if (bar?.id) h("a", { href: linkOf(bar.id) }).click();
    else if (bar) show(bar.begin - (bar.end - bar.begin), bar.end + (bar.end - bar.begin));
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
  const sizes = new ResizeObserver(() => { paint(); if (run.row) update(); });
  sizes.observe(element);
  function go({ query }) {
    const [begin, end] = (query.get("zoom") ?? "").split("-").map(Number);
    [from, to] = begin >= 0 && end > begin ? [begin, end] : [0, 0];
    if (picture) { paint(); update(); }
  }

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", paint);
  go(currentPlace());
  return { element, update, go, close() { sizes.disconnect(); dark.removeEventListener("change", paint); } };
}
