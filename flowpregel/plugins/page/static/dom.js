// Elements of the page. Text is only ever text: nothing here reads markup.

// What does not print, and what turns text round, is written as JavaScript would.
const UNSEEN = /[^\P{C}\n\t]|[\u2028\u2029]/gu;

export function visible(text) {
  return String(text).replace(UNSEEN, (char) => {
    const code = char.codePointAt(0);
    if (code < 256) return "\\x" + code.toString(16).padStart(2, "0");
    return "\\u" + (code > 0xffff ? `{${code.toString(16)}}` : code.toString(16).padStart(4, "0"));
  });
}

const SPACES = { svg: "http://www.w3.org/2000/svg" };

function element(space, name, props, children) {
  const made = space ? document.createElementNS(SPACES[space], name) : document.createElement(name);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : visible(value));
  }
  fill(made, ...children);
  return made;
}

// h("a", { href, onclick }, "text", child, ...)
export function h(name, props, ...children) {
  return element(null, name, props, children);
}

export function svg(name, props, ...children) {
  return element("svg", name, props, children);
}

// Replace what is in an element.
export function fill(parent, ...children) {
  const nodes = children.flat(4).filter((each) => each !== null && each !== undefined && each !== false);
  parent.replaceChildren(...nodes.map((each) => (each instanceof Node ? each : visible(each))));
  return parent;
}

const LABELS = {
  done: ["✓", "done"], failed: ["✕", "failed"], running: ["▶", "running"], waiting: ["?", "asks"],
  stopped: ["■", "stopped"], unfinished: ["◌", "unfinished"], queued: ["…", "queued"],
};

export function labelOf(state) {
  return (LABELS[state] ?? ["", state])[1];
}

// A state is told by a sign and a word; its colour only helps.
export function badge(state, text) {
  const [sign, word] = LABELS[state] ?? ["•", state];
  const kind = state in LABELS ? state : "";
  return h("span", { class: `badge ${kind}` }, h("span", { "aria-hidden": "true" }, sign), text ?? word);
}

// Tell people who do not see the page what has changed.
export function say(text) {
  const place = document.getElementById("said");
  if (place.textContent !== text) place.textContent = visible(text);
}

// A name and a value in a list of facts, if there is a value.
export function fact(name, value) {
  return value ? h("div", null, h("dt", null, name), h("dd", null, value)) : null;
}
