// The graph of the run: what called what, and how the tasks of each node stand.

import { h, labelOf, patch, svg } from "./dom.js";
import { count } from "./format.js";
import { ORDER } from "./model.js";
import { load } from "./source.js";

const [BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y] = [190, 58, 70, 26];

// The graph that the server has summed up, with, of the outermost graph, if its drawing is known, all of
// its nodes and what may follow on them.
export function graphOf(answer, drawing = null) {
  const nodes = new Map(answer.nodes.map((node) => [node.id, node]));
  for (const name of drawing?.nodes ?? []) {
    const id = `|${name}`;
    nodes.set(id, nodes.get(id) ?? { id, name, states: {} });
  }
  const drawn = (drawing?.edges ?? []).map((ends) => ends.map((name) => `|${name}`))
    .filter((ends) => ends.every((id) => nodes.has(id))); // others are the markers
  const pairs = [...answer.calls, ...answer.steps, ...(drawing ? drawn : answer.outer_steps)];
  const edges = new Map(pairs.map(([source, target]) => [`${source}\n${target}`, { source, target }]));
  return { nodes: [...nodes.values()], edges: [...edges.values()] };
}

// The layer of each node: one more than that of the deepest node that leads to it. An edge that
// leads back is left out of account.
export function layersOf(nodes, edges) {
  const after = new Map(nodes.map((node) => [node.id, []]));
  for (const edge of edges) if (edge.source !== edge.target) after.get(edge.source)?.push(edge.target);
  const layer = new Map();
  const [open, seen, order] = [new Set(), new Set(), []];
  const back = new Set();
  const visit = (id) => {
    seen.add(id);
    open.add(id);
    for (const next of after.get(id) ?? []) {
      if (open.has(next)) back.add(`${id}\n${next}`);
      else if (!seen.has(next)) visit(next);
    }
    open.delete(id);
    order.push(id);
  };
  const targets = new Set(edges.map((edge) => edge.target));
  for (const node of nodes) if (!targets.has(node.id) && !seen.has(node.id)) visit(node.id);
  for (const node of nodes) if (!seen.has(node.id)) visit(node.id);
  for (const id of order.reverse()) {
    const own = layer.get(id) ?? 0;
    layer.set(id, own);
    for (const next of after.get(id) ?? []) {
      if (!back.has(`${id}\n${next}`)) layer.set(next, Math.max(layer.get(next) ?? 0, own + 1));
    }
  }
  return layer;
}

const nameIn = (id) => id.slice(id.lastIndexOf("|") + 1);

export function graphView({ run }) {
  const paper = h("div", { class: "card graph", tabindex: 0, role: "region", "aria-label": "Graph of the run" });
  const told = h("p", { class: "quiet" }, "What called what, and what followed on what. While the run goes on, what it has not come to yet too.");
  const element = h("div", null, told, paper);
  let version = "";
  let isBusy = false;

  async function update() {
    if (version === run.version || isBusy) return;
    isBusy = true;
    version = run.version;
    const begin = performance.now();
    try {
      draw(graphOf(await load("graph", { thread: run.thread }), run.drawing));
    } catch (error) {
      patch(told, String(error.message ?? error));
    }
    // Of very many calls it takes the server some time: it counts for a tenth of the time.
    setTimeout(() => { isBusy = false; if (element.isConnected) update(); }, Math.min(5000, 9 * (performance.now() - begin)));
  }

  function draw(graph) {
    const layers = layersOf(graph.nodes, graph.edges);
    const rows = new Map();
    const places = new Map();
    for (const node of graph.nodes) {
      const layer = layers.get(node.id) ?? 0;
      const row = rows.get(layer) ?? 0;
      rows.set(layer, row + 1);
      places.set(node.id, { x: 12 + layer * (BOX_WIDTH + GAP_X), y: 12 + row * (BOX_HEIGHT + GAP_Y) });
    }
    const width = 24 + Math.max(1, rows.size) * (BOX_WIDTH + GAP_X) - GAP_X;
    const height = 24 + Math.max(1, ...rows.values()) * (BOX_HEIGHT + GAP_Y) - GAP_Y;
    const end = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" };
    const arrow = svg("marker", { id: "arrow", ...end }, svg("path", { d: "M0 0 8 4 0 8z", class: "arrow" }));
    const named = { role: "group", "aria-label": `Graph of ${graph.nodes.length} nodes` };
    patch(paper, graph.nodes.length === 0 ? h("p", { class: "empty" }, "Nothing has run yet.") : svg("svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, ...named },
      svg("defs", null, arrow), graph.edges.map((edge) => edgeOf(edge, places)),
      graph.nodes.map((node) => nodeOf(node, places.get(node.id)))));
  }

  function edgeOf(edge, places) {
    const [a, b] = [places.get(edge.source), places.get(edge.target)];
    if (!a || !b) return null;
    const [x1, y1, x2, y2] = [a.x + BOX_WIDTH, a.y + BOX_HEIGHT / 2, b.x - 2, b.y + BOX_HEIGHT / 2];
    const isBack = x2 <= x1;
    const bend = isBack ? 60 : (x2 - x1) / 2;
    const low = Math.max(y1, y2) + BOX_HEIGHT;
    const [by1, by2] = isBack ? [low, low] : [y1, y2];
    const d = `M${x1} ${y1} C${x1 + bend} ${by1} ${x2 - bend} ${by2} ${x2} ${y2}`;
    return svg("path", { key: `${edge.source} ${edge.target}`, d, class: "edge", "marker-end": "url(#arrow)" },
      svg("title", null, `${nameIn(edge.source)} → ${nameIn(edge.target)}`));
  }

  function nodeOf(node, { x, y }) {
    const { states } = node;
    const known = ORDER.filter((state) => states[state]);
    const total = known.reduce((sum, state) => sum + states[state], 0);
    const words = known.map((state) => `${count(states[state])} ${labelOf(state)}`).join(", ") || "not run";
    let left = x + 10;
    const stripes = known.map((state) => {
      const share = ((BOX_WIDTH - 20) * states[state]) / total;
      const place = { x: left, y: y + BOX_HEIGHT - 11, width: Math.max(2, share), height: 4, rx: 2 };
      const stripe = svg("rect", { ...place, class: `stripe ${state}` });
      left += share;
      return stripe;
    });
    const short = node.name.length > 22 ? `${node.name.slice(0, 21)}…` : node.name;
    return svg("g", { key: node.id, class: `node ${known[0] ?? "idle"}` }, svg("title", null, `${node.name}: ${words}`),
      svg("rect", { x, y, width: BOX_WIDTH, height: BOX_HEIGHT, rx: 8, class: "box" }),
      svg("text", { x: x + 10, y: y + 21, class: "title" }, short),
      svg("text", { x: x + 10, y: y + 39, class: "words" }, words), stripes);
  }

  return { element, update };
}
