// Two runs or two calls side by side: what was asked otherwise, and what came out.

import { badge, h, markTab, patch } from "./dom.js";
import { fieldText } from "./fields.js";
import { bytes, count, seconds } from "./format.js";
import { CALL_NUMBERS, numberText } from "./numbers.js";
import { hashOf, note, currentPlace, runHash } from "./place.js";
import { comparison, isReport, load } from "./source.js";

const CHANGE_WORDS = { different: "Other result", "only a": "Only in A", "only b": "Only in B", same: "The same" };
const PAGE_OF_PAIRS = 500;
const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export const compareHash = (words) => hashOf({ view: "compare", thread: null, query: new URLSearchParams() }, words);
const callHash = (thread, call) => `${runHash(thread)}/calls?${new URLSearchParams({ call })}`;

export function showCompare() {
  const field = (name, label) => h("input", { type: "text", name, "aria-label": label, placeholder: label, list: "compare-runs" });
  const fields = { a: field("a", "Run A"), b: field("b", "Run B") };
  const list = h("datalist", { id: "compare-runs" });
  const form = h("form", { class: "bar", onsubmit: submit }, fields.a, fields.b, list, h("button", { type: "submit", class: "button main" }, "Compare"));
  const content = h("div");
  const crumbs = h("p", { class: "crumbs" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const element = h("section", { class: "compare", "aria-labelledby": "compare-title" },
    crumbs,
    h("h1", { id: "compare-title" }, "Compare"), !isReport && form, problem, content);
  let asked = "";

  function submit(event) {
    event.preventDefault();
    note({ a: fields.a.value.trim(), b: fields.b.value.trim(), call_a: null, call_b: null, change: null, offset: null }, { isStep: true });
    update();
  }

  function drawCrumbs({ a, b, call_a: call }) {
    const isPair = Boolean(call);
    patch(crumbs, comparison ? [isPair ? h("a", { href: compareHash({ a, b }) }, "← Both runs") : "Report of two runs"]
      : isReport ? h("a", { href: runHash(a) }, "← The run") : h("a", { href: "#/" }, "← All runs"));
  }

  async function update() {
    const { query } = currentPlace();
    const words = Object.fromEntries(["a", "b", "call_a", "call_b", "change", "offset"].filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
    markTab("", words.a && words.b ? `${words.a} and ${words.b}` : "Compare");
    problem.hidden = true;
    drawCrumbs(words);
    if (!words.a || !words.b) { patch(content); return; }
    const wanted = JSON.stringify(words);
    asked = wanted;
    patch(content, h("p", { class: "empty", role: "status" }, "Reading the calls of both …"));
    try {
      const answer = await load("compare", words);
      if (asked !== wanted) return;
      patch(content, words.call_a ? callsCompared(answer, words) : runsCompared(answer, words));
    } catch (error) {
      patch(content);
      problem.hidden = false;
      patch(problem, String(error.message ?? error));
    }
  }

  function go({ query }) {
    for (const [name, input] of Object.entries(fields)) input.value = query.get(name) ?? "";
    update();
    if (!isReport && !list.children.length) {
      load("runs").then(({ runs }) => patch(list, runs.map((run) => h("option", { key: run.thread_id, value: run.thread_id })))).catch(() => {});
    }
  }

  return { element, go, close() { asked = null; } };
}

// A report of two runs has no views of the single runs.
const linkTo = (href, text, kind = null) => (comparison ? h("span", { class: kind }, text) : h("a", { class: kind, href }, text));

const cellOf = (value) => (value === null || value === undefined ? h("span", { class: "quiet" }, "none") : fieldText(value));

// Rows of a name and two values; equal rows are quiet.
function sideBySide(title, rows, heads = ["A", "B"]) {
  return h("section", { key: title, class: "card" }, h("h2", null, title), h("table", { class: "list sides" },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, h("span", { class: "unseen" }, "Name")), heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", null, rows.map(([name, a, b]) => h("tr", { key: name }, h("th", { scope: "row" }, name), h("td", null, a), h("td", null, b))))));
}

const differences = (title, fields, none) => (fields.length
  ? sideBySide(title, fields.map(({ name, a, b }) => [name, cellOf(a), cellOf(b)]))
  : h("section", { key: title, class: "card" }, h("h2", null, title), h("p", { class: "quiet" }, none)));

function runsCompared(answer, words) {
  const totalOf = (run) => Object.values(run.states).reduce((sum, each) => sum + each, 0);
  const row = (name, of) => [name, of(answer.a), of(answer.b)];
  const errorsOf = (run) => Object.entries(run.errors).slice(0, 5).map(([error, number]) => h("div", { class: "error" }, `${count(number)} × ${error}`));
  const heads = [["A", words.a], ["B", words.b]].map(([name, thread]) => [`${name}: `, linkTo(runHash(thread), thread)]);
  return [
    sideBySide("Both runs", [
      row("Status", (run) => badge(run.status)), row("Flow", (run) => h("span", { class: "mono" }, run.flow)),
      row("Calls", (run) => count(totalOf(run))), row("Failed", (run) => count(run.states.failed ?? 0)),
      row("From first to last", (run) => seconds(run.elapsed)), row("Sum of durations", (run) => seconds(run.seconds)),
      row("CPU", (run) => seconds(run.cpu)), row("Peak memory", (run) => bytes(run.peak)), row("Errors", errorsOf),
    ], heads),
    differences("Parameters that differ", answer.parameters, "Both runs have the same input."),
    pairs(answer, words),
  ];
}

function pairs(answer, words) {
  const change = words.change ?? "different";
  const here = currentPlace();
  const chips = Object.entries(CHANGE_WORDS).map(([name, text]) => h("a", {
    key: name, class: "chip", href: hashOf(here, { change: name, offset: null }), "aria-current": name === change ? "true" : null,
  }, ` ${text} `, h("span", { class: "number" }, count(answer.counts[name] ?? 0))));
  const offset = Number(words.offset ?? 0);
  const total = answer.counts[change] ?? 0;
  const link = (at, text) => at >= 0 && at < total && at !== offset && h("a", { class: "button", href: hashOf(here, { offset: at || null }) }, text);
  return h("section", { key: "pairs", class: "card" }, h("h2", null, "Calls"),
    h("p", { class: "quiet" }, "Matched by the task and the arguments."),
    h("nav", { class: "chips", "aria-label": "Calls" }, chips),
    answer.calls.length === 0 ? h("p", { class: "empty" }, "There is no such call.")
      : h("table", { class: "list sides" }, h("thead", null, h("tr", null, ["Call", "A", "B"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, answer.calls.map((pair) => pairRow(pair, words)))),
    total > PAGE_OF_PAIRS && h("nav", { class: "answer", "aria-label": "Pages" },
      link(offset - PAGE_OF_PAIRS, "Previous"), link(offset + PAGE_OF_PAIRS, "Next")));
}

function pairRow(pair, words) {
  const isBoth = pair.a.id && pair.b.id;
  const [thread, call] = pair.a.id ? [words.a, pair.a] : [words.b, pair.b];
  const href = isBoth ? compareHash({ a: words.a, b: words.b, call_a: pair.a.id, call_b: pair.b.id }) : callHash(thread, call.id);
  const side = (row, name) => {
    if (!row.id) return "";
    const values = pair.results.map((field) => `${field.name} = ${fieldText(field[name]) || "none"}`).join(", ");
    return [row.state !== "done" && badge(row.state), row.error ? h("div", { class: "error" }, row.error) : values,
      h("div", { class: "quiet" }, [seconds(row.seconds), bytes(row.peak)].filter(Boolean).join(" · "))];
  };
  return h("tr", { key: `${pair.a.id} ${pair.b.id}` }, h("th", { scope: "row", class: "mono" }, isBoth ? h("a", { href }, pair.text) : linkTo(href, pair.text)),
    h("td", null, side(pair.a, "a")), h("td", null, side(pair.b, "b")));
}

function callsCompared(answer, words) {
  const row = (name, of) => [name, of(answer.a, words.a), of(answer.b, words.b)];
  const facts = sideBySide("Both calls", [
    row("Call", (call, thread) => linkTo(callHash(thread, call.id), call.text, "mono")),
    words.a !== words.b && ["Run", ...[words.a, words.b].map((thread) => linkTo(runHash(thread), thread))],
    row("State", (call) => badge(call.state)), row("Took", (call) => seconds(call.seconds)),
    ...CALL_NUMBERS.map((number) => row(capitalized(number.label), (call) => numberText(number, call))), row("Attempts", (call) => count(call.attempts)),
    row("Error", (call) => h("span", { class: "error" }, call.error)),
  ].filter(Boolean));
  if (!answer.arguments) return [facts, differences("Fields that differ", answer.results, "All fields are the same.")];
  const unseen = "They differ in a part that the preview does not show.";
  return [
    facts,
    differences("Arguments that differ", answer.arguments, answer.is_same_input ? "Both were asked the same." : unseen),
    differences("Results that differ", answer.results, answer.is_same_result ? "Both have the same result." : unseen),
  ];
}
