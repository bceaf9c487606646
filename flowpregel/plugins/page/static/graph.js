// The graph of the run: where the arguments of calls come from, what follows on what, and how the
// tasks of each node stand.
//
//     START ──► load ──► train ──► score ──► END      ──►  results that a later call received
//                  `┄┄┄► plot                          ┄►  called after
//
// A task that calls others is a box around them, which opens in place.

import { h, keepFocus, labelOf, patch, svg, whenReleased } from "./dom.js";
import { count } from "./format.js";
import { layout } from "./layout.js";
import { ORDER } from "./model.js";
import { currentPlace, hashOf, note } from "./place.js";
import { load } from "./source.js";

const [BOX_WIDTH, BOX_HEIGHT, HEAD, PAD, MARKER] = [190, 58, 44, 16, 64];
const [CLOSEST, READABLE, FARTHEST, STEP] = [2, 0.6, 0.2, 1.25];
const [START, END] = ["start", "end"];

// The graph that the server has summed up. Of the outermost graph, if its drawing is known, it has all
// nodes and what may follow on them. The body of a functional flow is not drawn.
export function graphOf(answer, drawing = null) {
  const inside = (id) => (id === answer.body ? "" : id);
  const nodes = new Map();
  for (const node of answer.nodes) {
    if (!answer.body || node.id !== answer.body) nodes.set(node.id, { ...node, parent: inside(node.parent ?? "") });
  }
  const plain = ([source, target]) => ({ source, target, kind: "step" });
  const drawn = !answer.body && drawing ? drawnEdges(drawing, nodes) : null;
  const isOutermost = ([source]) => !nodes.get(source)?.parent;
  const edges = [
    ...(answer.data ?? []).map(([source, target, calls]) => ({ source, target, kind: "data", calls })),
    ...(answer.after ?? []).map(([source, target]) => ({ source, target, kind: "after" })),
    ...answer.steps.filter((ends) => !drawn || !isOutermost(ends)).map(plain), ...(drawn ?? []),
  ];
  if (!drawn && nodes.size) edges.push(...markers(nodes, edges, answer));
  return { nodes, edges: edges.filter(({ source, target }) => nodes.has(source) && nodes.has(target)) };
}

function drawnEdges(drawing, nodes) {
  const ids = new Map(drawing.nodes.map((name) => [name, `|${name}`]));
  for (const name of drawing.nodes) {
    const id = ids.get(name);
    nodes.set(id, nodes.get(id) ?? { id, name, parent: "", states: {} });
  }
  for (const kind of [START, END]) {
    for (const name of drawing[kind] ?? []) {
      ids.set(name, kind);
      nodes.set(kind, { id: kind, name: kind.toUpperCase(), kind, parent: "", states: {} });
    }
  }
  return drawing.edges.map(([source, target], at) => ({
    source: ids.get(source), target: ids.get(target), kind: "step",
    label: drawing.labels?.[at] || "", isConditional: Boolean(drawing.conditional?.[at]),
  }));
}

// Edges from the start to what ran first, or nothing leads to, and to the end from what ran last, or leads to nothing.
function markers(nodes, edges, answer) {
  const [first, last] = [new Set(answer.first), new Set(answer.last)];
  const outermost = [...nodes.values()].filter((node) => !node.parent);
  const others = edges.filter(({ source, target }) => source !== target);
  const [sources, targets] = ["source", "target"].map((side) => new Set(others.map((edge) => edge[side])));
  for (const kind of [START, END]) nodes.set(kind, { id: kind, name: kind.toUpperCase(), kind, parent: "", states: {} });
  return [
    ...outermost.filter(({ id }) => first.has(id) || !targets.has(id)).map(({ id }) => ({ source: START, target: id, kind: "step" })),
    ...outermost.filter(({ id }) => last.has(id) || !sources.has(id)).map(({ id }) => ({ source: id, target: END, kind: "step" })),
  ];
}

const wordsOf = (states) => ORDER.filter((state) => states[state])
  .map((state) => `${count(states[state])} ${labelOf(state)}`).join(", ") || "not run";

export function graphView({ run }) {
  const paper = h("div", { class: "paper", tabindex: 0, role: "region", "aria-label": "Graph of the run", onkeydown: onKey });
  const told = h("p", { class: "quiet" });
  const tool = (text, label, onclick) => h("button", { class: "button small", type: "button", "aria-label": label, title: label, onclick }, text);
  const bar = h("div", { class: "bar" }, told, h("span", { class: "buttons" },
    tool("−", "Zoom out", () => zoom(1 / STEP)), tool("+", "Zoom in", () => zoom(STEP)), tool("Fit", "Show all of the graph", () => fit())));
  const element = h("div", null, bar, h("div", { class: "card graph" }, paper));
  let version = "";
  let isBusy = false;
  let graph = null;
  let size = { width: 1, height: 1 };
  let scale = 0; // 0: as far as it fits
  let current = null; // the id of the node that Tab reaches

  const isOpen = (id) => (currentPlace().query.get("open") ?? "").split(",").includes(encodeURIComponent(id));
  const childrenOf = (id) => [...graph.nodes.values()].filter((node) => node.parent === id);

  async function update() {
    if (version === run.version || isBusy) return;
    isBusy = true;
    version = run.version;
    const begin = performance.now();
    try {
      const answer = await load("graph", { thread: run.thread });
      graph = graphOf(answer, run.drawing ?? answer.drawing);
      whenReleased(draw);
    } catch (error) {
      patch(told, String(error.message ?? error));
    }
    // Of very many calls it takes the server some time: it counts for a tenth of the time.
    setTimeout(() => { isBusy = false; if (element.isConnected) update(); }, Math.min(5000, 9 * (performance.now() - begin)));
  }

  // The nodes in a box with their places, and the size of all.
  function arranged(parent) {
    const nodes = childrenOf(parent).map((node) => {
      const hasCalls = childrenOf(node.id).length > 0;
      const inner = hasCalls && isOpen(node.id) ? arranged(node.id) : null;
      if (!inner) return { ...node, hasCalls, width: node.kind ? MARKER : BOX_WIDTH, height: node.kind ? 30 : BOX_HEIGHT };
      return { ...node, hasCalls, inner, width: Math.max(BOX_WIDTH, inner.width + 2 * PAD), height: inner.height + HEAD + PAD };
    });
    const ids = new Set(nodes.map((node) => node.id));
    const edges = graph.edges.filter(({ source, target }) => ids.has(source) && ids.has(target));
    return { nodes, edges, ...layout(nodes, edges) };
  }

  function draw() {
    const isEmpty = !graph.nodes.size;
    const kinds = new Set(graph.edges.map((edge) => edge.kind));
    patch(told, isEmpty ? "" : [
      kinds.has("data") && "Arrows show where arguments come from.", kinds.has("after") && "Dotted: called after.",
      graph.edges.some((edge) => edge.isConditional) && "Dashed: decided each time.", "Press a task for its calls. Wheel or + and − zoom, dragging moves.",
    ].filter(Boolean).join(" "));
    const whole = arranged("");
    size = { width: whole.width + 2 * PAD, height: whole.height + 2 * PAD + backRoom(whole) };
    const order = [];
    const content = boxContent(whole, PAD, PAD, order);
    if (!order.includes(current)) current = order[0] ?? null;
    const end = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" };
    const arrow = svg("marker", { id: "arrow", ...end }, svg("path", { d: "M0 0 8 4 0 8z", class: "arrow" }));
    const named = { role: "group", "aria-label": `Graph of ${order.length} tasks` };
    keepFocus(() => patch(paper, isEmpty ? h("p", { class: "empty" }, "Nothing has run yet.") : svg("svg",
      { viewBox: `0 0 ${size.width} ${size.height}`, ...named }, svg("defs", null, arrow), content)), () => paper);
    resize();
  }

  // The room below for edges that lead back.
  const backRoom = ({ edges, paths }) => (edges.some((edge) => !paths.has(edge)) ? 34 : 0);

  function boxContent(box, left, top, order) {
    const nodes = new Map(box.nodes.map((node) => {
      const { x, y } = box.places.get(node.id);
      return [node.id, { ...node, x: left + x, y: top + y }];
    }));
    const bottom = top + box.height + 20;
    return [box.edges.map((edge) => edgeOf(edge, nodes, box.paths.get(edge), left, top, bottom)),
      [...nodes.values()].sort((a, b) => a.x - b.x || a.y - b.y).map((node) => nodeOf(node, order))];
  }

  function edgeOf(edge, nodes, points, left, top, bottom) {
    const [a, b] = [nodes.get(edge.source), nodes.get(edge.target)];
    let d;
    let middle;
    if (points) {
      const moved = points.map(({ x, y }) => ({ x: left + x, y: top + y }));
      moved.at(-1).x -= 2;
      d = moved.map(({ x, y }, at) => {
        if (at === 0) return `M${x} ${y}`;
        const before = moved[at - 1];
        const bend = (x - before.x) / 2;
        return `C${before.x + bend} ${before.y} ${x - bend} ${y} ${x} ${y}`;
      }).join(" ");
      const [from, to] = [moved[0], moved[1]];
      middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
    } else {
      const [x1, x2] = [a.x + a.width - 24, b.x + 24];
      d = `M${x1} ${a.y + a.height} C${x1} ${bottom} ${x1} ${bottom} ${(x1 + x2) / 2} ${bottom} S${x2} ${bottom} ${x2} ${b.y + b.height + 2}`;
      middle = { x: (x1 + x2) / 2, y: bottom };
    }
    const kind = edge.kind === "after" ? "after" : edge.isConditional ? "conditional" : "";
    const calls = edge.calls ? `: ${count(edge.calls)} call${edge.calls === 1 ? "" : "s"} received its results` : "";
    const width = edge.calls ? Math.min(5, 1.5 + Math.log10(edge.calls)) : 1.5;
    const name = (node) => node.name;
    return svg("g", { key: `${edge.source} ${edge.target} ${edge.label ?? ""}` },
      svg("path", { d, class: `edge ${kind}`, "stroke-width": width, "marker-end": "url(#arrow)" },
        svg("title", null, `${name(a)} → ${name(b)}${calls}`)),
      edge.label && svg("text", { x: middle.x, y: middle.y - 5, class: "words", "text-anchor": "middle" }, edge.label));
  }

  function nodeOf(node, order) {
    const { x, y, width, height, states } = node;
    if (node.kind) {
      return svg("g", { key: node.id, class: "marker" }, svg("rect", { x, y, width, height, rx: 15, class: "box" }),
        svg("text", { x: x + width / 2, y: y + 19, class: "words", "text-anchor": "middle" }, node.name));
    }
    const words = wordsOf(states);
    const short = node.name.length > 20 ? `${node.name.slice(0, 19)}…` : node.name;
    const href = hashOf({ ...currentPlace(), tab: "calls" }, { q: `task:="${node.name}"`, state: null, call: null });
    order.push(node.id);
    const known = ORDER.filter((state) => states[state]);
    const link = svg("a", { href, "data-node": node.id, "aria-label": `${node.name}: ${words}. Show its calls`,
      tabindex: (current ?? order[0]) === node.id ? 0 : -1, onfocus: () => { current = node.id; } },
    svg("title", null, `${node.name}: ${words}`), svg("rect", { x, y, width, height: node.inner ? HEAD : height, rx: 8, class: "face" }),
    svg("text", { x: x + 10, y: y + 20, class: "title" }, short), svg("text", { x: x + 10, y: y + 37, class: "words" }, words),
    !node.inner && stripes(states, known, x, y));
    const sign = node.inner ? "−" : "+";
    const label = `${node.inner ? "Close" : "Open"} ${node.name}`;
    const toggle = node.hasCalls && svg("g", { key: "toggle", class: "toggle", role: "button", "aria-label": label, "aria-expanded": String(Boolean(node.inner)),
      tabindex: 0, "data-toggle": node.id, onclick: () => open(node.id), onkeydown: (event) => onToggleKey(event, node.id) },
    svg("rect", { x: x + width - 32, y: y + 6, width: 26, height: 26, rx: 6 }),
    svg("text", { x: x + width - 19, y: y + 24, "text-anchor": "middle", class: "title" }, sign));
    return svg("g", { key: node.id, class: `node ${known[0] ?? "idle"}` }, svg("rect", { x, y, width, height, rx: 8, class: "box" }),
      link, node.inner && svg("g", { key: "inner", class: "inner" }, boxContent(node.inner, x + PAD, y + HEAD, order)), toggle);
  }

  function stripes(states, known, x, y) {
    const total = known.reduce((sum, state) => sum + states[state], 0);
    let left = x + 10;
    return known.map((state) => {
      const share = ((BOX_WIDTH - 20) * states[state]) / total;
      const stripe = svg("rect", { key: state, x: left, y: y + BOX_HEIGHT - 11, width: Math.max(2, share), height: 4, rx: 2, class: `stripe ${state}` });
      left += share;
      return stripe;
    });
  }

  function open(id) {
    const name = encodeURIComponent(id);
    const names = (currentPlace().query.get("open") ?? "").split(",").filter(Boolean);
    const others = names.filter((other) => other !== name);
    note({ open: (others.length < names.length ? others : [...names, name]).join() || null }, { isStep: true });
    draw();
  }

  function onToggleKey(event, id) {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    open(id);
  }

  // ------------------------------------------------------------ zoom and the keyboard

  const fitting = () => Math.min(1, Math.max(READABLE, paper.clientWidth / size.width));

  function resize() {
    const drawn = paper.querySelector("svg");
    const factor = scale || fitting();
    drawn?.setAttribute("width", Math.round(size.width * factor));
    drawn?.setAttribute("height", Math.round(size.height * factor));
  }

  function fit() {
    scale = 0;
    note({ scale: null });
    resize();
  }

  function zoom(factor, x = paper.clientWidth / 2, y = paper.clientHeight / 2) {
    const before = scale || fitting();
    scale = Number(Math.min(CLOSEST, Math.max(FARTHEST, before * factor)).toFixed(2));
    const [left, top] = [(paper.scrollLeft + x) / before, (paper.scrollTop + y) / before];
    resize();
    paper.scrollTo(left * scale - x, top * scale - y);
    note({ scale: String(scale) });
  }

  paper.addEventListener("wheel", (event) => {
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return; // it is scrolled sideways
    event.preventDefault();
    const { left, top } = paper.getBoundingClientRect();
    zoom(STEP ** -Math.sign(event.deltaY), event.clientX - left, event.clientY - top);
  }, { passive: false });

  let from = null; // where the paper was taken hold of
  paper.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch" || event.target.closest("a, .toggle")) return;
    from = { x: event.clientX + paper.scrollLeft, y: event.clientY + paper.scrollTop };
    paper.setPointerCapture(event.pointerId);
  });
  paper.addEventListener("pointermove", (event) => {
    if (from) paper.scrollTo(from.x - event.clientX, from.y - event.clientY);
  });
  for (const name of ["pointerup", "pointercancel"]) paper.addEventListener(name, () => { from = null; });

  const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { "+": () => zoom(STEP), "=": () => zoom(STEP), "-": () => zoom(1 / STEP), Home: fit };
    const direction = DIRECTIONS[event.key];
    if (direction) step(direction);
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  }

  // Go to the nearest node in a direction.
  function step([dx, dy]) {
    const links = [...paper.querySelectorAll("[data-node]")];
    const centre = (link) => {
      const { x, y, width, height } = link.getBoundingClientRect();
      return { x: x + width / 2, y: y + height / 2 };
    };
    const active = links.find((link) => link === document.activeElement);
    if (!active) return links.find((link) => link.dataset.node === current)?.focus();
    const here = centre(active);
    const cost = (link) => {
      const { x, y } = centre(link);
      const ahead = (x - here.x) * dx + (y - here.y) * dy;
      const aside = Math.abs((x - here.x) * dy) + Math.abs((y - here.y) * dx);
      return ahead > 1 ? ahead + 2 * aside : Infinity;
    };
    const costs = new Map(links.map((link) => [link, cost(link)]));
    const next = links.reduce((best, link) => (costs.get(link) < costs.get(best) ? link : best), active);
    if (costs.get(next) === Infinity) return undefined;
    for (const link of links) link.setAttribute("tabindex", link === next ? 0 : -1);
    return next.focus();
  }

  function go({ query }) {
    scale = Number(query.get("scale")) || 0;
    if (!Number.isFinite(scale)) scale = 0;
    if (graph) draw();
  }

  go(currentPlace());
  const sizes = new ResizeObserver(resize);
  sizes.observe(paper);
  return { element, update, go, close: () => sizes.disconnect() };
}
