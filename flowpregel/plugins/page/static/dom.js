// Elements of the page. Text is only ever text: nothing here reads markup.
//
// What is drawn again is compared with what is there, and only the difference is made: an element
// that still exists stays the same node, so a press, the focus, a selection, an opened detail and a
// scrolled list survive while a run goes on.
//
//     h(...) makes elements     patch(parent, elements) makes the parent's content like them
//                                 same key, or same kind and turn  -> the node stays, and is renewed
//                                 no partner                       -> added, or removed

// What does not print, and what turns text round, is written as JavaScript would.
const UNSEEN = /[^\P{C}\n\t]|[\u2028\u2029]/gu;
// Most texts have only these characters. All of them print, and to look for them takes a tenth of the time.
const PRINTABLE = /^[\n\t -~\u00a0-\u00ac\u00ae-\u024f\u2010-\u2027\u2190-\u23ff\u25a0-\u27bf]*$/;

export function visible(value) {
  const text = String(value);
  if (PRINTABLE.test(text)) return text;
  return text.replace(UNSEEN, (char) => {
    const code = char.codePointAt(0);
    if (code < 256) return "\\x" + code.toString(16).padStart(2, "0");
    return "\\u" + (code > 0xffff ? `{${code.toString(16)}}` : code.toString(16).padStart(4, "0"));
  });
}

const SPACES = { svg: "http://www.w3.org/2000/svg" };
const drawnWith = new WeakMap(); // the properties with which each element was drawn last
const isAbsent = (value) => value === null || value === undefined || value === false;

function element(space, name, props, children) {
  const made = space ? document.createElementNS(SPACES[space], name) : document.createElement(name);
  renewProps(made, props ?? {});
  return fill(made, ...children);
}

// h("a", { href, onclick }, "text", child, ...)
//
// key: tells the element from its siblings. style: an object of properties.
// lazy: the element fills itself, and keeps its content while it exists.
export function h(name, props, ...children) {
  return element(null, name, props, children);
}

export function svg(name, props, ...children) {
  return element("svg", name, props, children);
}

// An attribute is only written if it is drawn otherwise than before: that a reader has opened a
// detail, or typed into a field, is theirs.
function renewProps(node, props) {
  const before = drawnWith.get(node) ?? {};
  drawnWith.set(node, props);
  for (const key in { ...before, ...props }) {
    const value = props[key];
    if (key === "key" || key === "lazy" || value === before[key]) continue;
    if (key === "style") Object.assign(node.style, value);
    else if (key === "open" && isAbsent(value)) continue; // nothing is closed that a reader may read
    else if (key.startsWith("on")) {
      if (!before[key]) node.addEventListener(key.slice(2), dispatch);
    } else if (isAbsent(value)) node.removeAttribute(key);
    else node.setAttribute(key, value === true ? "" : visible(value));
  }
}

function dispatch(event) {
  drawnWith.get(event.currentTarget)?.[`on${event.type}`]?.(event);
}

function nodesOf(children) {
  return children.flat(4).filter((child) => !isAbsent(child))
    .map((child) => (child instanceof Node ? child : document.createTextNode(visible(child))));
}

// Replace what is in an element.
export function fill(parent, ...children) {
  parent.replaceChildren(...nodesOf(children));
  return parent;
}

// Make what is in an element like *children*, which nothing else refers to.
export function patch(parent, ...children) {
  const known = new Map(keyed([...parent.childNodes]));
  const nodes = keyed(nodesOf(children)).map(([key, fresh]) => {
    const old = known.get(key);
    known.delete(key);
    return old ? renew(old, fresh) : fresh;
  });
  const kept = new Set(nodes);
  for (const node of [...parent.childNodes]) if (!kept.has(node)) node.remove();
  arrange(parent, nodes);
  return parent;
}

// Each node with its own key, or with its turn among its siblings of the same kind.
function keyed(nodes) {
  const turns = new Map();
  return nodes.map((node) => {
    const own = drawnWith.get(node)?.key;
    if (own !== undefined) return [`${node.nodeName} ${own}`, node];
    const turn = (turns.get(node.nodeName) ?? 0) + 1;
    turns.set(node.nodeName, turn);
    return [`${node.nodeName}#${turn}`, node];
  });
}

function renew(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    renewText(old, fresh.data);
    return old;
  }
  const props = drawnWith.get(fresh);
  renewProps(old, props);
  if (!props.lazy) patch(old, ...fresh.childNodes);
  return old;
}

// Only from where a text differs, so that a selection before it stays.
function renewText(node, text) {
  const before = node.data;
  if (before === text) return;
  let same = 0;
  while (same < before.length && before[same] === text[same]) same += 1;
  node.replaceData(same, before.length - same, text.slice(same));
}

// A node that is moved loses the press and the focus in it: the others move around it.
function arrange(parent, nodes) {
  const fixed = parent.querySelector(":scope > :active") ?? parent.querySelector(":scope > :focus-within");
  let next = parent.firstChild;
  for (const node of nodes) {
    while (node === fixed && next !== fixed) {
      const after = next.nextSibling;
      parent.append(next);
      next = after;
    }
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
}

// While something is pressed, nothing moves away from below the pointer: *draw* waits for its release.
let isPressed = false;
const postponed = new Set();

export function whenReleased(draw) {
  if (isPressed) postponed.add(draw);
  else draw();
}

function release() {
  // The click comes after the release, in the same task.
  setTimeout(() => {
    isPressed = false;
    const draws = [...postponed];
    postponed.clear();
    for (const draw of draws) draw();
  });
}

window.addEventListener("pointerdown", (event) => { isPressed = event.button === 0; }, true);
window.addEventListener("pointermove", (event) => { if (isPressed && !event.buttons) release(); }, true);
for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, release, true);

const LABELS = {
  done: ["✓", "done"], failed: ["✕", "failed"], running: ["▶", "running"], waiting: ["?", "asks"],
  stopped: ["■", "stopped"], unfinished: ["◌", "unfinished"], queued: ["…", "queued"],
  enqueued: ["…", "enqueued"], sleeping: ["☾", "sleeps"], "awaiting signal": ["⚑", "waits for a signal"],
  paused: ["‖", "paused"], "partly failed": ["✕", "done, some failed"], killed: ["■", "killed"],
};

export function labelOf(state) {
  return (LABELS[state] ?? ["", state])[1];
}

export function signOf(state) {
  return (LABELS[state] ?? ["•"])[0];
}

// A state is told by a sign and a word; its colour only helps.
export function badge(state, text) {
  const kind = state in LABELS ? state.replace(" ", "-") : "";
  return h("span", { class: `badge ${kind}` }, h("span", { "aria-hidden": "true" }, signOf(state)), text ?? labelOf(state));
}

// Tell people who do not see the page what has changed.
export function say(text) {
  const place = document.getElementById("said");
  if (place.textContent !== text) place.textContent = visible(text);
}

// A name and a value in a list of facts, if there is a value.
export function fact(name, value) {
  return value ? h("div", { key: name }, h("dt", null, name), h("dd", null, value)) : null;
}

const ICONS = { done: "done", failed: "failed", "partly failed": "failed", running: "running", waiting: "waiting" };

// The title and the icon of the tab show how it stands.
export function markTab(state, text) {
  const title = visible(`${state ? `${signOf(state)} ` : ""}${text} · flowpregel`);
  if (document.title !== title) document.title = title;
  const icon = document.querySelector('link[rel="icon"]');
  const file = `static/icon${state in ICONS ? `-${ICONS[state]}` : ""}.svg`;
  if (icon && icon.getAttribute("href") !== file) icon.setAttribute("href", file);
}

// Draw; if the element with the focus is gone then, another gets it.
export function keepFocus(draw, fallback) {
  const focused = document.activeElement;
  draw();
  if (focused && focused !== document.body && !focused.isConnected) fallback()?.focus({ preventScroll: true });
}

// A button for something that takes time: while it is under way, it says so and cannot be pressed.
export function actionButton({ isPending, text, pendingText = `${text} …`, ...props }) {
  const { onclick, class: kind = "", ...others } = props;
  const words = isPending ? { "aria-disabled": "true", "aria-busy": "true" } : {};
  return h("button", {
    type: "button", ...others, ...words, class: `button ${kind}`,
    onclick: (event) => { if (isPending) event.preventDefault(); else onclick?.(event); },
  }, isPending ? pendingText : text);
}
