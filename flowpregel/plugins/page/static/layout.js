// Where the nodes of a graph go: in layers from left to right, without one over another.
//
//     layer 0   1   2        an edge that passes a layer has a slot of its own there,
//       a ──── b ── d        so it does not cross a node
//        `──── · ──´
//       c ─── e
//
// In a layer, the order and the heights are those of the neighbours, as far as there is room.

const [GAP_X, GAP_Y, SLOT] = [64, 22, 14];
const ROUNDS = 6;

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
  const targets = new Set(edges.filter((edge) => edge.source !== edge.target).map((edge) => edge.target));
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

// The slots of each layer, and of each edge: its source, a slot for each layer it passes, its target.
function slotsOf(nodes, edges) {
  const layers = layersOf(nodes, edges);
  const columns = [];
  const put = (slot, layer) => { (columns[layer] ??= []).push(slot); return slot; };
  const slots = new Map(nodes.map((node) => [node.id, put({ ...node, before: [], after: [] }, layers.get(node.id))]));
  const chains = new Map();
  for (const edge of edges) {
    const [from, to] = [layers.get(edge.source), layers.get(edge.target)];
    if (from === undefined || to === undefined || from >= to) continue; // one that leads back
    const chain = [slots.get(edge.source)];
    for (let layer = from + 1; layer < to; layer += 1) chain.push(put({ width: 0, height: SLOT, before: [], after: [] }, layer));
    chain.push(slots.get(edge.target));
    for (let at = 1; at < chain.length; at += 1) {
      chain[at - 1].after.push(chain[at]);
      chain[at].before.push(chain[at - 1]);
    }
    chains.set(edge, chain);
  }
  return { columns, slots, chains };
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function orderSlots(columns) {
  const number = () => columns.forEach((column) => column.forEach((slot, at) => { slot.at = at; }));
  number();
  for (let round = 0; round < ROUNDS; round += 1) {
    const side = round % 2 ? "after" : "before";
    for (const column of round % 2 ? columns.slice().reverse() : columns) {
      const wish = new Map(column.map((slot) => [slot, slot[side].length ? mean(slot[side].map((other) => other.at)) : slot.at]));
      column.sort((a, b) => wish.get(a) - wish.get(b));
      number();
    }
  }
}

function placeSlots(columns) {
  let x = 0;
  for (const column of columns) {
    const width = Math.max(...column.map((slot) => slot.width));
    let y = 0;
    for (const slot of column) {
      slot.x = x + (width - slot.width) / 2;
      slot.y = y;
      y += slot.height + GAP_Y;
    }
    x += width + GAP_X;
  }
  const middle = (slot) => slot.y + slot.height / 2;
  for (let round = 0; round < ROUNDS; round += 1) {
    const side = round % 2 ? "after" : "before";
    for (const column of round % 2 ? columns.slice().reverse() : columns) {
      let free = -Infinity;
      const moves = [];
      for (const slot of column) {
        const wish = slot[side].length ? mean(slot[side].map(middle)) - slot.height / 2 : slot.y;
        const y = Math.max(free, wish);
        moves.push(wish - y);
        slot.y = y;
        free = y + slot.height + GAP_Y;
      }
      // What was pushed down by its neighbours moves the whole layer up by half of that.
      for (const slot of column) slot.y += mean(moves) / 2;
    }
  }
}

// The places of nodes with an id, a width and a height; the points of each edge that leads on; and the size of all.
export function layout(nodes, edges) {
  const { columns, slots, chains } = slotsOf(nodes, edges);
  orderSlots(columns);
  placeSlots(columns);
  const all = columns.flat();
  const top = Math.min(...all.map((slot) => slot.y));
  for (const slot of all) slot.y -= top;
  const paths = new Map([...chains].map(([edge, chain]) => [edge, chain.map((slot, at) => ({
    x: slot.x + (at === 0 ? slot.width : 0), y: slot.y + slot.height / 2,
  }))]));
  return {
    places: new Map([...slots].map(([id, slot]) => [id, { x: slot.x, y: slot.y }])),
    paths,
    width: Math.max(0, ...all.map((slot) => slot.x + slot.width)),
    height: Math.max(0, ...all.map((slot) => slot.y + slot.height)),
  };
}
