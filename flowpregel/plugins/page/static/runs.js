// The list of runs, flow by flow. The server filters, sorts and cuts it into pages.

import { compareHash } from "./compare.js";
import { actionButton, badge, h, labelOf, markTab, patch, say, whenReleased } from "./dom.js";
import { ago, count, moment, seconds } from "./format.js";
import { stateChips } from "./chips.js";
import { currentPlace, hashOf, note, runHash } from "./place.js";
import { act, ConnectionLost, load } from "./source.js";
import { offerHash, startHash } from "./start.js";
import { canRead, follow } from "./stream.js";

const STATES = ["running", "waiting", "failed", "stopped", "enqueued", "done"];
const HEADS = [["run", "Run"], ["status", "Status"], ["failed", "Failed"], ["took", "Took"], ["began", "Began"], [null, "Input"], [null, "Last error"]];
const PASSED_ON = ["q", "state", "flow", "sort", "page"];
const NO_FLOW = "-"; // in the address: an address does not keep an empty word
const DAY = 86_400;
const MOST_AT_ONCE = 4;
const STILL_GOES_ON = ["running", "waiting", "stopped", "enqueued"];

// The commands that can be started for many runs, each with its words and the runs that it is for. A
// pause of a flow, or of all runs, ends for others too, so the words say so.
const BULK = [
  ["cancel", "Cancel", (run) => run.status === "running"],
  ["retry", "Try again what failed", (run) => ["failed", "partly failed"].includes(run.situation)],
  ["resume", "Resume", (run) => run.status === "stopped"],
  ["wake", "Wake now", (run) => ["sleeping", "awaiting signal"].includes(run.situation)],
  ["pause", "Pause", (run) => STILL_GOES_ON.includes(run.status) && !run.paused],
  ["unpause", "Unpause", (run) => run.paused === "run"],
  ["unpause", "Unpause their flow", (run) => run.paused === "flow", (runs) => runs.map(({ thread_id, flow }) => ({ thread: thread_id, scope: flow }))],
  ["unpause", "Unpause all runs", (run) => run.paused === "all", ([run]) => [{ thread: run.thread_id, scope: null }]],
];
const eachThread = (runs) => runs.map((run) => ({ thread: run.thread_id }));

// The rows of an answer, which has only those that changed, and their order.
function withRows(answer, before) {
  const keyOf = { runs: (run) => run.thread_id, flows: (flow) => flow.flow };
  for (const [name, keys] of Object.entries(answer.order ?? {})) {
    const rows = new Map([...(before?.[name] ?? []), ...answer[name]].map((row) => [keyOf[name](row), row]));
    answer[name] = keys.map((key) => rows.get(key));
  }
  return answer;
}

export const nameOfFlow = (flow) => flow || "Runs without a recorded flow";

// Midnight of a date such as 2026-11-29, in seconds, where the browser is.
const midnight = (date) => new Date(`${date}T00:00`).getTime() / 1000;

function queryOf({ query }) {
  const asked = Object.fromEntries(PASSED_ON.filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  if (asked.flow === NO_FLOW) asked.flow = "";
  if (query.get("from")) asked.since = midnight(query.get("from"));
  if (query.get("to")) asked.until = midnight(query.get("to")) + DAY;
  return asked;
}

// How long a run took, against the median of its flow: the bar is half full at the median.
function tookCell(run, median) {
  if (run.seconds === null) return h("td");
  const times = median ? run.seconds / median : 0;
  const text = times ? `${times.toFixed(times < 10 ? 1 : 0)} × the median of ${seconds(median)}` : null;
  return h("td", { class: "took", title: text }, seconds(run.seconds),
    times > 0 && h("span", { class: "gauge" }, h("span", { class: "level", style: { width: `${Math.min(100, 50 * times)}%` } })),
    text && h("span", { class: "unseen" }, `, ${text}`));
}

const isPartlyFailed = ([, status, , failed]) => status === "done" && failed > 0;

// The last runs of a flow, the oldest first; higher: it took longer.
function stripOf({ strip }) {
  const longest = Math.max(...strip.map(([, , took]) => took ?? 0)) || 1;
  const failed = strip.filter(([, status]) => status === "failed").length;
  const partly = strip.filter(isPartlyFailed).length;
  const label = `Last ${strip.length} runs${failed ? `, ${failed} failed` : ""}${partly ? `, ${partly} done with failed calls` : ""}`;
  return h("span", { class: "strip", role: "group", "aria-label": label }, strip.map((run) => {
    const [thread, status, took, calls] = run;
    const text = `${thread}: ${labelOf(status)}${isPartlyFailed(run) ? `, ${count(calls)} failed` : ""}${took === null ? "" : `, ${seconds(took)}`}`;
    const height = took === null ? 100 : Math.max(25, (100 * took) / longest);
    return h("a", { key: thread, class: isPartlyFailed(run) ? "partly-failed" : status, href: runHash(thread), tabindex: -1, title: text, "aria-label": text, style: { height: `${height}%` } });
  }));
}

export function showRuns() {
  let isClosed = false;
  let page = null;
  const label = "Search runs and flows";
  const change = (changes, options) => { note({ page: null, ...changes }, options); refresh(); };
  const search = h("input", { type: "search", placeholder: label, "aria-label": label, oninput: () => change({ q: search.value }) });
  const dateOf = (name, text) => h("input", {
    type: "date", "aria-label": text, title: text, onchange: (event) => change({ [name]: event.currentTarget.value }, { isStep: true }),
  });
  const dates = { from: dateOf("from", "Changed since"), to: dateOf("to", "Changed until") };
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Show only" });
  const flows = h("div", { class: "flows" });
  const bulk = h("div");
  const offers = h("div");
  const chosen = new Map(); // the chosen runs, by id
  let underWay = null; // the words of the action that is started for many runs, and the number of runs that are left
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const element = h("section", { "aria-labelledby": "runs-title" },
    h("div", { class: "bar" }, h("h1", { id: "runs-title" }, "Runs"), search, h("span", { class: "dates" }, dates.from, "–", dates.to), filters),
    problem, offers, bulk, flows);

  function draw() {
    const { offered = [] } = page;
    patch(offers, offered.length > 0 && h("p", { class: "answer card needs-actions", role: "group", "aria-label": "Start a run" },
      h("strong", null, "New run of"), offered.map((flow) => h("a", { key: flow, class: "button", href: offerHash(flow) }, h("span", { class: "mono" }, flow)))));
    const numberOf = (state) => page.states[state] ?? 0;
    patch(filters, stateChips(STATES, numberOf, () => change({})));
    const none = page.total ? "No run is like that." : "This store has no runs yet. They appear here when they begin.";
    const isOneFlow = currentPlace().query.get("flow") !== null;
    patch(flows, isOneFlow && h("p", { class: "crumbs" }, h("a", { href: hashOf(currentPlace(), { flow: null, page: null }) }, "← All flows")),
      page.flows.map(flowOf), !page.matched && h("p", { class: "card empty" }, none), page.pages > 1 && pager());
    for (const run of page.runs) if (chosen.has(run.thread_id)) chosen.set(run.thread_id, run);
    drawBulk();
    const urgent = ["waiting", "running"].find(numberOf);
    markTab(urgent, urgent ? `${numberOf(urgent)} ${urgent} · Runs` : "Runs");
  }

  function drawBulk() {
    const runs = [...chosen.values()];
    const buttonOf = ([action, text, isFor, requestsOf = eachThread]) => {
      const fitting = runs.filter(isFor);
      const isPending = underWay?.text === text;
      return (fitting.length > 0 || isPending) && actionButton({
        key: text, class: "needs-actions", text: `${text} (${fitting.length})`, pendingText: `${text} … (${underWay?.left} left)`, isPending,
        onclick: () => underWay || startEach(action, text, requestsOf(fitting)),
      });
    };
    const stateOf = (code) => (code === null ? "running" : { 0: "done", 3: "waiting" }[code] ?? "failed");
    const commands = page.commands ?? [];
    patch(bulk, (runs.length > 0 || underWay) && h("p", { key: "chosen", class: "answer card", role: "group", "aria-label": "Chosen runs" },
      h("strong", null, `${runs.length} chosen`), BULK.map(buttonOf),
      runs.length === 2 && h("a", { key: "compare", class: "button", href: compareHash({ a: runs[0].thread_id, b: runs[1].thread_id }) }, "Compare"),
      h("button", { key: "none", type: "button", class: "button", onclick: () => { chosen.clear(); draw(); } }, "Choose none")),
    commands.length > 0 && h("details", { key: "commands", class: "card" }, h("summary", null, `Started from here: ${commands.length}`),
      commands.map(({ number, code, line, output }) => h("details", { key: number },
        h("summary", null, badge(stateOf(code)), h("code", null, line)), h("pre", { tabindex: 0 }, output || "(it has printed nothing)")))));
  }

  // A command for each request, some at a time: each is a process.
  async function startEach(action, text, requests) {
    const left = [...requests];
    underWay = { text, left: left.length };
    draw();
    try {
      while (left.length) {
        await act(action, left.shift());
        underWay.left = left.length;
        do await refresh(); while (page.commands.filter(({ code }) => code === null).length >= MOST_AT_ONCE && await later());
      }
      say(`${action} was started for ${requests.length} runs`);
    } catch (error) {
      problem.hidden = false;
      patch(problem, String(error.message ?? error));
    }
    underWay = null;
    chosen.clear();
    draw();
  }
  const later = () => new Promise((done) => setTimeout(() => done(true), 300));

  function flowOf(flow) {
    const rows = page.runs.filter((run) => (run.flow ?? "") === flow.flow);
    const href = hashOf(currentPlace(), { flow: flow.flow || NO_FLOW, page: null });
    const number = `${count(flow.runs)} run${flow.runs === 1 ? "" : "s"}`;
    return h("section", { key: flow.flow, class: "card flow", "aria-label": nameOfFlow(flow.flow) },
      h("div", { class: "flow-head" }, h("h2", { class: flow.flow && "mono" }, nameOfFlow(flow.flow)), stripOf(flow),
        h("span", { class: "quiet" }, number, flow.median !== null && ` · median ${seconds(flow.median)}`),
        flow.flow && flow.strip.length > 0 && h("a", { class: "button needs-actions", href: startHash(flow.strip.at(-1)[0], "defaults") }, "New run")),
      h("table", { class: "list" }, h("thead", null, h("tr", null, HEADS.map(headOf))),
        h("tbody", null, rows.map((run) => rowOf(run, flow.median)))),
      page.flows.length > 1 && flow.runs > rows.length && h("p", null, h("a", { href }, `All ${number} of this flow`)));
  }

  function headOf([order, text]) {
    if (order === null) return h("th", { scope: "col" }, text);
    const sort = currentPlace().query.get("sort") ?? "-updated";
    const isSorted = sort.replace("-", "") === order;
    const isDown = isSorted && sort.startsWith("-");
    const next = isSorted ? (isDown ? order : null) : `-${order}`;
    return h("th", { scope: "col", "aria-sort": isSorted ? (isDown ? "descending" : "ascending") : null },
      h("button", { type: "button", class: "sort", onclick: () => change({ sort: next }, { isStep: true }) },
        text, isSorted && h("span", { "aria-hidden": "true" }, isDown ? " ▼" : " ▲")));
  }

  function rowOf(run, median) {
    return h("tr", { key: run.thread_id, "data-run": run.thread_id },
      h("th", { scope: "row" }, choiceOf(run), h("a", { href: runHash(run.thread_id) }, run.thread_id)),
      h("td", { title: run.short }, badge(run.situation === "asking" ? "waiting" : run.situation)),
      h("td", { class: run.failed ? "number error" : "number quiet" }, run.failed === null ? "" : count(run.failed)),
      tookCell(run, median),
      h("td", { title: `began ${moment(run.began)}, changed ${moment(run.updated)}` }, ago(run.began)),
      h("td", { class: "mono quiet cut", title: run.input }, run.input),
      h("td", { class: "error cut", title: run.error }, run.error));
  }

  function choiceOf(run) {
    const onchange = ({ currentTarget: { checked } }) => {
      if (checked) chosen.set(run.thread_id, run);
      else chosen.delete(run.thread_id);
      draw();
    };
    // Its state is set by the reader; another key makes another box when all choices are undone.
    return h("input", { key: chosen.has(run.thread_id), type: "checkbox", "aria-label": `Choose ${run.thread_id}`, checked: chosen.has(run.thread_id), onchange });
  }

  function pager() {
    const link = (at, text) => (at < 0 || at >= page.pages ? null : h("a", { key: text, class: "button", href: hashOf(currentPlace(), { page: at || null }) }, text));
    return h("nav", { class: "answer", "aria-label": "Pages" }, link(page.page - 1, "Previous"),
      h("span", { class: "quiet" }, `Page ${page.page + 1} of ${count(page.pages)}`), link(page.page + 1, "Next"));
  }

  let busy = null;
  let isAgain = false;
  function refresh() {
    isAgain = busy !== null;
    busy ??= read().finally(() => { busy = null; if (isAgain && !isClosed) refresh(); });
    return busy;
  }

  async function read() {
    try {
      const last = page;
      const before = last?.total;
      const answer = withRows(await load("runs", { ...queryOf(currentPlace()), known: last?.version ?? "" }), last);
      // A late answer must not change the title of the view that is shown now.
      if (isClosed) return;
      page = answer;
      problem.hidden = true;
      whenReleased(draw);
      if (before && page.total > before) say(`${page.total - before} new runs`);
    } catch (error) {
      problem.hidden = error instanceof ConnectionLost;
      patch(problem, String(error.message ?? error));
    }
  }

  function go() {
    const { query } = currentPlace();
    search.value = query.get("q") ?? "";
    for (const [name, field] of Object.entries(dates)) field.value = query.get(name) ?? "";
    refresh();
  }

  const stop = follow(null, refresh);
  // A process that is killed leaves no commit behind, and the times are relative.
  const timer = setInterval(() => !document.hidden && canRead() && refresh(), 3000);
  return { element, go, close() { isClosed = true; stop(); clearInterval(timer); } };
}
