// How a run stands, as a sentence, and the buttons for what can be done now.

import { actionButton, badge, h } from "./dom.js";
import { count } from "./format.js";
import { ORDER } from "./model.js";

// For each situation that something can be done about: the command, its button, and what the button
// says meanwhile. A run that asks is answered by the forms below.
const NEXT_STEPS = {
  running: ["cancel", "Cancel", "Cancelling …", "danger"],
  queued: ["cancel", "Cancel", "Cancelling …", "danger"],
  sleeping: ["wake", "Wake now", "Waking it …", "main"],
  paused: ["resume", "Continue", "Continuing …", "main"],
  failed: ["retry", "Try again what failed", "Trying again …", "main"],
  "partly failed": ["retry", "Try again", "Trying again …", "main"],
  killed: ["resume", "Resume", "Resuming …", "main"],
  stopped: ["resume", "Resume", "Resuming …", "main"],
};

const SITUATIONS = new Set(["queued", "sleeping", "awaiting signal", "paused", "partly failed", "killed", "reading"]);

// The body of a flow is no call. Of a graph without calls, the nodes are counted.
export function callCounts(run) {
  const { counts, bodies } = run; // a body is a task that no call started
  const states = ORDER.filter((state) => counts[state]);
  if (states.every((state) => counts[state] === (bodies[state] ?? 0))) return counts;
  const calls = states.map((state) => [state, counts[state] - (bodies[state] ?? 0)]);
  return { ...counts, ...Object.fromEntries(calls) };
}

// The badge tells what the status alone does not.
export function situationBadge({ status, text }) {
  return badge(SITUATIONS.has(text?.situation) ? text.situation : status);
}

export function statusButtons({ run, start, isPending }) {
  const { text, status } = run.row;
  const situation = text?.situation ?? status;
  const [action, words, pendingText, kind] = NEXT_STEPS[situation] ?? [];
  if (!action) return null;
  const failed = callCounts(run).failed ?? 0;
  const label = situation === "partly failed" && failed ? `Try ${count(failed)} again` : words;
  return h("span", { class: "buttons needs-actions" }, actionButton({
    key: action, text: label, pendingText, class: kind, isPending: isPending(action), onclick: () => start(action),
  }));
}

export function statusText(shared) {
  const { text } = shared.run.row;
  if (!text) return null;
  return [h("p", { key: "sentence", class: "sentence" }, text.sentence),
    (text.signals ?? []).map((name) => signalForm(shared, name)), lostCalls(shared.run.row.lost),
    text.command && h("p", { key: "next", class: "next" }, `To ${text.next_step}: `, h("code", null, text.command))];
}

function signalForm({ start, isPending }, name) {
  const onsubmit = (event) => {
    event.preventDefault();
    const { value, text } = event.currentTarget.elements;
    start("signal", { name, value: value.value || "null", text: text.checked });
  };
  const label = `Value of the signal ${name}`;
  return h("form", { key: `signal ${name}`, class: "answer needs-actions", onsubmit },
    h("code", null, name),
    h("input", { type: "text", name: "value", "aria-label": label, placeholder: "JSON, text, or nothing" }),
    h("label", null, h("input", { type: "checkbox", name: "text" }), " as text"),
    actionButton({ type: "submit", class: "main", text: "Send", pendingText: "Sending …", isPending: isPending("signal") }));
}

// What a process that died had under way, if somebody watched it.
function lostCalls(lost) {
  if (!lost) return null;
  const waiting = Object.entries(lost.waiting).map(([name, number]) => `${name} × ${count(number)}`);
  const parts = [["Had begun", lost.running], ["Had not begun", waiting]];
  return parts.filter(([, names]) => names.length).map(([title, names]) => h("details", { key: title, class: "lost" },
    h("summary", null, title), h("ul", null, names.map((name) => h("li", { class: "mono" }, name)))));
}
