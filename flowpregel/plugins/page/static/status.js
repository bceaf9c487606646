// How a run stands, as a sentence, and the buttons for what can be done now.

import { actionButton, badge, h } from "./dom.js";
import { count } from "./format.js";
import { callCounts } from "./model.js";
import { startHash } from "./start.js";

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

// A run that has not ended, which can be paused, and can get signals.
const OPEN_STATUSES = ["running", "waiting", "stopped", "enqueued"];
const SITUATIONS = new Set(["queued", "sleeping", "awaiting signal", "paused", "partly failed", "killed", "reading"]);

// The situation tells what the status alone does not.
export const situationOf = ({ status, text }) => (SITUATIONS.has(text?.situation) ? text.situation : status);
export const situationBadge = (row) => badge(situationOf(row));

// What is paused, and ends being so by the button.
const UNPAUSE = { all: "Unpause all runs", flow: "Unpause the flow", run: "Unpause" };

export function statusButtons(shared) {
  const { run, start, isPending } = shared;
  const { text, status, flow } = run.row;
  const situation = text?.situation ?? status;
  const failed = callCounts(run).failed ?? 0;
  const button = ([action, words, pendingText, kind]) => actionButton({
    key: action, text: situation === "partly failed" && failed ? `Try ${count(failed)} again` : words, pendingText,
    class: kind, isPending: isPending(action), onclick: () => start(action),
  });
  const isOpen = OPEN_STATUSES.includes(status);
  return h("span", { class: "buttons needs-actions" }, NEXT_STEPS[situation] && button(NEXT_STEPS[situation]),
    isOpen && (text?.paused
      ? actionButton({ key: "unpause", text: UNPAUSE[text.paused], pendingText: "Unpausing …", isPending: isPending("unpause"),
        onclick: () => start("unpause", text.paused === "run" ? {} : { scope: text.paused === "flow" ? flow : null }) })
      : actionButton({ key: "pause", text: "Pause", pendingText: "Pausing …", isPending: isPending("pause"), onclick: () => start("pause") })),
    flow && h("a", { key: "again", class: "button", href: startHash(run.thread) }, "Run again with other values"));
}

export function statusText(shared) {
  const { text } = shared.run.row;
  if (!text) return null;
  return [h("p", { key: "sentence", class: "sentence" }, text.sentence),
    (text.signals ?? []).map((name) => signalForm(shared, name)), !text.signals?.length && anySignal(shared), lostCalls(shared.run.row.lost),
    text.command && h("p", { key: "next", class: "next" }, `To ${text.next_step}: `, h("code", null, text.command))];
}

// A run gets a signal that it does not wait for yet when it asks for it.
function anySignal(shared) {
  return OPEN_STATUSES.includes(shared.run.row.status) && h("details", { key: "any signal", class: "needs-actions" },
    h("summary", null, "Send a signal"), signalForm(shared, null));
}

function signalForm({ start, isPending }, name) {
  const onsubmit = (event) => {
    event.preventDefault();
    const { elements } = event.currentTarget;
    const { value, text } = elements;
    start("signal", { name: name ?? elements.signal.value, value: value.value || "null", text: text.checked });
  };
  const label = `Value of the signal${name === null ? "" : ` ${name}`}`;
  return h("form", { key: `signal ${name}`, class: "answer needs-actions", onsubmit },
    name === null ? h("input", { type: "text", name: "signal", "aria-label": "Name of the signal", placeholder: "Name", required: true }) : h("code", null, name),
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
