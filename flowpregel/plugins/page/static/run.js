// One run: how it stands, what it asks, its workers, and its views.

import { badge, fact, fill, h, keepFocus, labelOf, markTab, patch, say, whenReleased } from "./dom.js";
import { ago, bytes, count, moment } from "./format.js";
import { currentPlace, hashOf, whenNoted } from "./place.js";
import { act, ConnectionLost, isReport } from "./source.js";
import { canRead, follow } from "./stream.js";
import { callCounts, ORDER, Run } from "./model.js";
import { callPanel } from "./call.js";
import { callsView } from "./calls.js";
import { errorsView } from "./errors.js";
import { graphView } from "./graph.js";
import { compareHash } from "./compare.js";
import { logsView } from "./logs.js";
import { plotView } from "./plot.js";
import { questionsView } from "./questions.js";
import { situationBadge, situationOf, statusButtons, statusText } from "./status.js";
import { stepsView } from "./steps.js";
import { timeView } from "./time.js";
import { timelineView } from "./timeline.js";

const MOST_OUTDATED = 5000; // milliseconds after which relative times are drawn again with the next news
const TABS = {
  calls: ["Calls", callsView],
  plot: ["Plot", plotView],
  timeline: ["Timeline", timelineView],
  graph: ["Graph", graphView],
  steps: ["Supersteps", stepsView],
  logs: ["Logs", logsView],
  time: ["Time", timeView],
};

export function showRun(thread) {
  const run = new Run(thread);
  const head = h("div", { class: "head" });
  const bar = h("div");
  const pool = h("div");
  const commands = h("div");
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const tabs = h("nav", { class: "tabs", "aria-label": "Views of the run" });
  const content = h("div", { class: "content" });
  const panel = h("div", { class: "side" });
  const title = () => h("h1", { id: "run-title", tabindex: "-1" }, thread);
  let view = null;
  let tab = null;
  let opened = null;
  const linkOf = (call) => hashOf(currentPlace(), { call });
  const linkBack = () => hashOf(currentPlace(), { call: null });
  const isPending = (action) => run.isPending(action);
  const shared = { run, linkOf, linkBack, start, isPending, reload: () => hasBegun && refresh(), redraw: () => view?.update() };
  const questions = questionsView(shared);
  const errors = errorsView(shared);
  const element = h("section", { "aria-labelledby": "run-title" },
    h("p", { class: "crumbs" }, isReport ? "Report of a run" : [h("a", { href: "#/" }, "← All runs"), " · ", h("a", { href: compareHash({ a: thread }) }, "Compare with another run")]),
    head, problem, bar, questions.element, errors.element, commands, pool, tabs, h("div", { class: "split" }, content, panel));
  patch(head, title(), h("p", { class: "quiet" }, "Reading the run …"));

  async function start(action, body = {}) {
    if (isPending(action)) return;
    run.pressed.set(action, null);
    draw();
    try {
      const { number } = await act(action, { thread, ...body });
      run.pressed.set(action, number);
      say(`${action} was started`);
    } catch (error) {
      run.pressed.delete(action);
      fail(error);
      draw();
    }
  }

  function fail(error) {
    if (error instanceof ConnectionLost) return;
    problem.hidden = false;
    patch(problem, String(error.message ?? error));
    // Such as for an address of a run that the store does not have.
    if (!run.row) patch(head, title());
  }

  function drawHead() {
    const { row, live } = run;
    keepFocus(() => patch(head, title(), situationBadge(row), statusButtons(shared), statusText(shared),
      h("dl", { class: "facts" },
        fact("Flow", row.flow && h("span", { class: "mono" }, row.flow)),
        fact("Began", moment(row.created)),
        fact("Changed", h("span", { title: moment(row.updated) }, isReport ? moment(row.updated) : ago(row.updated))),
        fact("Supersteps", row.step < 0 ? null : count(row.step + 1)),
        fact("Process", (live?.pid || row.pid) && `${live?.pid || row.pid}${row.host ? ` on ${row.host}` : ""}`))),
    () => head.querySelector("h1"));
  }

  function drawBar() {
    const counts = callCounts(run);
    const states = [...ORDER, "queued"].filter((state) => counts[state]);
    const total = states.reduce((sum, state) => sum + counts[state], 0);
    const settled = counts.done ?? 0;
    const isDone = run.row.status === "done";
    const parts = states.slice().reverse().sort((a, b) => (b === "done") - (a === "done"));
    const meter = h("div", {
      class: "meter", role: "progressbar", "aria-label": "Calls that are done",
      "aria-valuemin": 0, "aria-valuemax": isDone ? total : total + 1, "aria-valuenow": settled,
      "aria-valuetext": `${count(settled)} of ${isDone ? "" : "at least "}${count(total)} calls`,
    }, parts.map((state) => h("span", { key: state, class: state, style: { flexGrow: counts[state] } })),
    // What is still to come is not known before the run is done, so until then the bar is not full.
    !isDone && h("span", { key: "rest", class: "rest", style: { flexGrow: Math.max(1, total / 20) } }));
    const share = total > 0 && run.live ? `${Math.min(99, Math.floor((100 * settled) / total))} %` : "";
    const left = run.live && run.timeLeft ? ` · ${run.timeLeft} left` : "";
    const words = h("div", { class: "counts" },
      states.map((state) => h("span", { key: state }, badge(state, `${count(counts[state])} ${labelOf(state)}`))),
      h("span", { key: "rest", class: "quiet" }, !total && "no calls yet", share, rate(), left));
    patch(bar, meter, words);
    const situation = situationOf(run.row);
    markTab(situation, `${(situation === "running" && share) || labelOf(situation)} · ${thread}`);
  }

  // How fast calls have ended in the last ten seconds.
  const ends = [];
  function rate() {
    if (!run.live) { ends.length = 0; return ""; }
    const now = Date.now();
    ends.push([now, callCounts(run).done]);
    while (ends.length > 2 && now - ends[0][0] > 10_000) ends.shift();
    const each = (callCounts(run).done - ends[0][1]) / Math.max(1, (now - ends[0][0]) / 1000);
    return each >= 0.5 ? ` · ${count(Math.round(each))} a second` : "";
  }

  function drawPool() {
    const workers = run.live?.workers ?? [];
    const names = run.running;
    const rowOf = (worker) => {
      const share = `${Math.round(100 * Math.min(1, run.rates.get(worker.pid) ?? 0))}`;
      const task = names.get(worker.task);
      return h("div", { key: worker.pid, class: "worker" }, h("span", { class: "mono" }, worker.pid),
        h("span", { class: "gauge", title: "CPU" }, h("span", { class: "level", style: { width: `${share}%` } })),
        h("span", { class: "number" }, `${share} %`), h("span", { class: "number" }, bytes(worker.memory)),
        h("span", { class: "doing mono" }, task ? task.text || task.name : worker.task ? "busy" : "idle"));
    };
    patch(pool, workers.length > 0 && h("section", { class: "card pool", "aria-labelledby": "pool-title" },
      h("h2", { id: "pool-title" }, `Workers: ${workers.length}`),
      h("div", { class: "workers" }, workers.map(rowOf))));
  }

  function drawCommands() {
    const stateOf = (code) => ({ null: "running", 0: "done", 3: "waiting" })[code] ?? "failed";
    const shownOf = ({ number, code, line, output }) => h("details", { key: number, open: stateOf(code) === "failed" },
      h("summary", null, badge(stateOf(code)), h("code", null, line)),
      h("pre", { tabindex: 0 }, output || "(it has printed nothing)"));
    patch(commands, run.commands.length > 0 && h("section", { class: "card", "aria-labelledby": "commands-title" },
      h("h2", { id: "commands-title" }, "Started from here"), run.commands.map(shownOf)));
  }

  let drawn = 0;
  function drawNow() {
    if (!run.row || isClosed) return;
    drawn = Date.now();
    drawHead();
    drawBar();
    drawPool();
    drawCommands();
    questions.update().catch(fail);
    errors.update().catch(fail);
    view?.update();
    opened?.update();
  }

  function draw() {
    whenReleased(drawNow);
  }

  // Most news change nothing that is seen.
  const isOutdated = (before, now) => before !== now || Date.now() - drawn > MOST_OUTDATED;

  async function refresh() {
    try {
      const before = run.row?.status;
      const { answered } = run;
      await run.refresh();
      problem.hidden = true;
      if (before && before !== run.row.status) say(`The run is ${labelOf(run.row.status)} now`);
      // While very many calls come in, to draw them over and over would take longer than they.
      if (run.isBehind ? Date.now() - drawn > 1000 : isOutdated(answered, run.answered)) draw();
    } catch (error) {
      return fail(error);
    }
    return run.isBehind && !isClosed && refresh();
  }

  let hasBegun = false;
  let waiting = 0;
  function refreshSoon() {
    waiting ||= setTimeout(() => { waiting = 0; if (!isClosed) refresh(); }, run.rest);
  }

  function drawTabs() {
    patch(tabs, Object.entries(TABS).map(([key, [name]]) => h("a", {
      href: hashOf({ ...currentPlace(), tab: key }, { call: null }), "aria-current": key === tab ? "page" : null,
    }, name)));
  }

  function go(place) {
    const name = place.tab in TABS ? place.tab : "calls";
    if (name !== tab) {
      view?.close?.();
      tab = name;
      view = TABS[tab][1](shared);
      fill(content, view.element);
      if (run.row) view.update();
    } else {
      view.go?.(place);
    }
    drawTabs();
    showCall(place.query.get("call"));
    if (!hasBegun) {
      hasBegun = true;
      refresh();
    }
  }

  function showCall(call) {
    const before = opened?.id ?? null;
    if (call === before) return;
    const hadFocus = panel.contains(document.activeElement);
    run.finds.delete(before);
    if (call !== null) run.finds.add(call);
    opened = call === null ? null : callPanel(shared, call);
    fill(panel, opened?.element);
    panel.parentElement.classList.toggle("with-side", opened !== null);
    if (opened) opened.element.focus();
    else if (hadFocus) content.querySelector(`[data-id="${CSS.escape(before)}"] a`)?.focus();
  }

  whenNoted(() => { drawTabs(); opened?.update(); });
  let mark = null;
  const stop = follow(thread, (news) => {
    const { published } = run;
    const isOther = run.take(news);
    if (isOutdated(published, run.published)) draw();
    if (news.mark === mark && !isOther) return;
    mark = news.mark;
    refreshSoon();
  });
  // A process that ends, or is killed, leaves no commit behind.
  const timer = setInterval(() => run.row?.status === "running" && !document.hidden && canRead() && refresh(), 2000);
  let isClosed = false;
  return { element, go, close() { isClosed = true; stop(); clearInterval(timer); view?.close?.(); } };
}
