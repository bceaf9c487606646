// One run: how it stands, what it asks, its workers, and its views.

import { badge, fact, fill, h, labelOf, say } from "./dom.js";
import { ago, bytes, count, moment } from "./format.js";
import { act, follow, isReport, load } from "./source.js";
import { ORDER, Run } from "./model.js";
import { callPanel } from "./call.js";
import { callsView } from "./calls.js";
import { graphView } from "./graph.js";
import { stepsView } from "./steps.js";
import { timelineView } from "./timeline.js";
import { brief } from "./values.js";

const TABS = {
  calls: ["Calls", callsView],
  timeline: ["Timeline", timelineView],
  graph: ["Graph", graphView],
  steps: ["Supersteps", stepsView],
};
const MOST_QUESTIONS = 20;

export function showRun(thread) {
  const run = new Run(thread);
  const base = `#/run/${encodeURIComponent(thread)}`;
  const head = h("div", { class: "head" });
  const bar = h("div");
  const questions = h("div");
  const pool = h("div");
  const commands = h("div");
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const tabs = h("nav", { class: "tabs", "aria-label": "Views of the run" });
  const content = h("div", { class: "content" });
  const panel = h("div", { class: "side" });
  const element = h("section", { "aria-labelledby": "run-title" },
    h("p", { class: "crumbs" }, isReport ? "Report of a run" : h("a", { href: "#/" }, "← All runs")),
    head, problem, bar, questions, commands, pool, tabs, h("div", { class: "split" }, content, panel));
  fill(head, h("h1", { id: "run-title" }, thread), h("p", { class: "quiet" }, "Reading the run …"));
  let view = null;
  let tab = null;
  let opened = null;
  let asked = "";
  const linkOf = (call) => `${base}/${tab}?call=${encodeURIComponent(call)}`;
  const shared = { run, base, linkOf, start };

  async function start(action, body) {
    try {
      await act(action, { thread, ...body });
      say(`${action} was started`);
    } catch (error) {
      fail(error);
    }
  }

  function fail(error) {
    problem.hidden = false;
    fill(problem, String(error.message ?? error));
  }

  function drawHead() {
    const { row, live } = run;
    const button = (action, text, kind = "") => h("button", {
      type: "button", class: `button ${kind}`, onclick: () => start(action, {}),
    }, text);
    const goesOn = { failed: ["retry", "Try failed calls again"], stopped: ["resume", "Go on"] }[row.status];
    fill(head, h("h1", { id: "run-title" }, row.thread_id), badge(row.status),
      h("span", { class: "buttons needs-actions" },
        row.status === "running" && button("cancel", "Cancel", "danger"), goesOn && button(...goesOn)),
      h("dl", { class: "facts" },
        fact("Flow", row.flow && h("span", { class: "mono" }, row.flow)),
        fact("Began", moment(row.created)),
        fact("Changed", h("span", { title: moment(row.updated) }, isReport ? moment(row.updated) : ago(row.updated))),
        fact("Supersteps", row.step < 0 ? null : count(row.step + 1)),
        fact("Process", (live?.pid || row.pid) && `${live?.pid || row.pid}${row.host ? ` on ${row.host}` : ""}`)));
  }

  function drawBar() {
    const { counts } = run;
    const states = [...ORDER, "queued"].filter((state) => counts[state]);
    const total = states.reduce((sum, state) => sum + counts[state], 0);
    const settled = counts.done ?? 0;
    const parts = states.slice().reverse().sort((a, b) => (b === "done") - (a === "done"));
    const meter = h("div", {
      class: "meter", role: "progressbar", "aria-label": "Calls that are done",
      "aria-valuemin": 0, "aria-valuemax": total, "aria-valuenow": settled,
    }, parts.map((state) => {
      const part = h("span", { class: state });
      part.style.flexGrow = counts[state];
      return part;
    }));
    const words = h("div", { class: "counts" },
      states.map((state) => badge(state, `${count(counts[state])} ${labelOf(state)}`)),
      // Of a run that does not go on nobody knows what is still to come.
      h("span", { class: "quiet" }, !total && "no calls yet", total > 0 && run.live && `${Math.floor((100 * settled) / total)} %`,
        timeLeft(total - settled)));
    fill(bar, meter, words);
  }

  // By how fast calls have ended in the last ten seconds.
  const ends = [];
  function timeLeft(left) {
    if (!run.live) { ends.length = 0; return ""; }
    const now = Date.now();
    ends.push([now, run.counts.done]);
    while (ends.length > 2 && now - ends[0][0] > 10_000) ends.shift();
    const rate = (run.counts.done - ends[0][1]) / Math.max(1, (now - ends[0][0]) / 1000);
    if (rate <= 0) return "";
    const minutes = left / rate / 60;
    const time = minutes < 1.5 ? `${Math.ceil(minutes * 60)} s` : `${Math.round(minutes)} min`;
    return ` · ${count(Math.round(rate))} a second · about ${time} left`;
  }

  async function drawQuestions() {
    const rows = [...run.calls.values()].filter((call) => call.questions).slice(0, MOST_QUESTIONS);
    const key = rows.map((call) => `${call.id} ${call.questions} ${call.began}`).join();
    if (key === asked) return;
    asked = key;
    const details = await Promise.all(rows.map((call) => load("call", { thread, call: call.id })));
    const items = details.flatMap((detail) => detail.questions);
    if (items.length) say(`The run asks ${items.length === 1 ? "a question" : `${items.length} questions`}`);
    fill(questions, items.length > 0 && h("section", { class: "card asks", "aria-labelledby": "asks-title" },
      h("h2", { id: "asks-title" }, "It waits for an answer"), items.map(questionOf)));
  }

  function questionOf(question) {
    const label = "Answer, as JSON or text";
    const field = h("input", { type: "text", "aria-label": label, placeholder: "JSON, or text" });
    const asText = h("input", { type: "checkbox" });
    const send = (value, text) => start("answer", { question: question.id, value, text });
    const onsubmit = (event) => { event.preventDefault(); send(field.value, asText.checked); };
    const quick = (text, word) => h("button", {
      type: "button", class: "button", title: `Answers ${word}`, onclick: () => send(word, false),
    }, text);
    const form = h("form", { class: "answer needs-actions", onsubmit }, field, h("label", null, asText, " as text"),
      h("button", { type: "submit", class: "button main" }, "Answer"), quick("Yes", "true"), quick("No", "false"));
    return h("div", { class: "question" }, h("p", { class: "mono" }, brief(question.value, 2000)), question.id && form);
  }

  function drawPool() {
    const workers = run.live?.workers ?? [];
    const names = run.running;
    const rowOf = (worker) => {
      const share = `${Math.round(100 * Math.min(1, run.rates.get(worker.pid) ?? 0))}`;
      const level = h("span", { class: "level" });
      level.style.width = `${share}%`;
      const task = names.get(worker.task);
      return h("div", { class: "worker" }, h("span", { class: "mono" }, worker.pid),
        h("span", { class: "gauge", title: "CPU" }, level), h("span", { class: "number" }, `${share} %`),
        h("span", { class: "number" }, bytes(worker.memory)),
        h("span", { class: "doing mono" }, task ? task.text || task.name : worker.task ? "busy" : "idle"));
    };
    fill(pool, workers.length > 0 && h("section", { class: "card pool", "aria-labelledby": "pool-title" },
      h("h2", { id: "pool-title" }, `Workers: ${workers.length}`),
      h("div", { class: "workers" }, workers.map(rowOf))));
  }

  function drawCommands() {
    const stateOf = (code) => ({ null: "running", 0: "done", 3: "waiting" })[code] ?? "failed";
    const shownOf = ({ code, line, output }) => h("details", { open: stateOf(code) === "failed" },
      h("summary", null, badge(stateOf(code)), h("code", null, line)),
      h("pre", null, output || "(it has printed nothing)"));
    fill(commands, run.commands.length > 0 && h("section", { class: "card", "aria-labelledby": "commands-title" },
      h("h2", { id: "commands-title" }, "Started from here"), run.commands.map(shownOf)));
  }

  let drawn = 0;
  function draw() {
    if (!run.row) return;
    drawn = Date.now();
    drawHead();
    drawBar();
    drawPool();
    drawCommands();
    drawQuestions().catch(fail);
    view?.update();
    opened?.update();
  }

  async function refresh() {
    try {
      const before = run.row?.status;
      await run.refresh();
      problem.hidden = true;
      if (before && before !== run.row.status) say(`The run is ${labelOf(run.row.status)} now`);
      // While very many calls come in, to draw them over and over would take longer than they.
      if (!run.isBehind || Date.now() - drawn > 1000) draw();
    } catch (error) {
      return fail(error);
    }
    return run.isBehind && !isClosed && refresh();
  }

  function go(place) {
    const name = place.tab in TABS ? place.tab : "calls";
    if (name !== tab) {
      view?.close?.();
      tab = name;
      fill(tabs, Object.entries(TABS).map(([key, [title]]) => h("a", {
        href: `${base}/${key}`, "aria-current": key === tab ? "page" : null,
      }, title)));
      view = TABS[tab][1](shared);
      fill(content, view.element);
      if (run.row) view.update();
    }
    view.go?.(place.query);
    const call = place.query.get("call");
    if (call !== (opened?.id ?? null)) {
      opened = call === null ? null : callPanel(shared, call, `${base}/${tab}`);
      fill(panel, opened?.element);
      panel.parentElement.classList.toggle("with-side", opened !== null);
      opened?.element.focus();
    }
  }

  let mark = null;
  const stop = follow(thread, (news) => {
    const wasLive = run.live !== null;
    run.take(news);
    if (news.mark === mark && wasLive === (run.live !== null)) return draw();
    mark = news.mark;
    return refresh();
  });
  // A process that ends, or is killed, leaves no commit behind.
  const timer = setInterval(() => run.row?.status === "running" && refresh(), 2000);
  let isClosed = false;
  refresh();
  return { element, go, close() { isClosed = true; stop(); clearInterval(timer); view?.close?.(); } };
}
