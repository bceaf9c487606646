// The list of runs.

import { badge, h, markTab, patch, say, whenReleased } from "./dom.js";
import { ago, count, moment } from "./format.js";
import { stateChips } from "./chips.js";
import { chosenStates, currentPlace, note } from "./place.js";
import { ConnectionLost, load } from "./source.js";
import { follow } from "./stream.js";

const STATES = ["running", "waiting", "failed", "stopped", "enqueued", "done"];

export function showRuns() {
  let runs = null;
  const label = "Search runs and flows";
  const oninput = () => { note({ q: search.value }); draw(); };
  const search = h("input", { type: "search", placeholder: label, "aria-label": label, oninput });
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Show only" });
  const body = h("tbody");
  const empty = h("p", { class: "empty" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const heads = ["Run", "Status", "Progress", "Flow", "Changed", "Began"];
  const element = h("section", { "aria-labelledby": "runs-title" },
    h("div", { class: "bar" }, h("h1", { id: "runs-title" }, "Runs"), search, filters), problem,
    h("div", { class: "card" }, h("table", { class: "list" },
      h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col" }, head)))), body), empty));

  function draw() {
    if (runs === null) return;
    const words = search.value.trim().toLowerCase();
    const chosen = chosenStates();
    const found = runs.filter((run) => (!chosen.size || chosen.has(run.status))
      && `${run.thread_id} ${run.flow ?? ""}`.toLowerCase().includes(words));
    const numberOf = (state) => runs.filter((run) => run.status === state).length;
    patch(filters, stateChips(STATES, numberOf, draw));
    patch(body, found.map(rowOf));
    const none = runs.length ? "No run is like that." : "This store has no runs yet. They appear here when they begin.";
    patch(empty, found.length ? "" : none);
    const urgent = ["waiting", "running"].find(numberOf);
    markTab(urgent, urgent ? `${numberOf(urgent)} ${urgent} · Runs` : "Runs");
  }

  // The tasks of the superstep that it is in; of one that is done, how many supersteps it took.
  function progressOf(run) {
    const { done = 0, ...others } = run.states ?? {};
    const total = Object.values(others).reduce((sum, each) => sum + each, done);
    const steps = run.step + 1;
    if (run.status === "done" || !total) return steps > 0 ? `${count(steps)} superstep${steps > 1 ? "s" : ""}` : "";
    const trouble = others.failed ? `, ${count(others.failed)} failed` : "";
    return `${count(done)} ${done === 1 ? "call" : "calls"} done${trouble}`;
  }

  function rowOf(run) {
    return h("tr", { key: run.thread_id, "data-run": run.thread_id },
      h("th", { scope: "row" }, h("a", { href: `#/run/${encodeURIComponent(run.thread_id)}` }, run.thread_id)),
      h("td", null, badge(run.status)),
      h("td", { class: "progress" }, progressOf(run)),
      h("td", { class: "mono quiet" }, run.flow ?? ""),
      h("td", { title: moment(run.updated) }, ago(run.updated)),
      h("td", { class: "quiet" }, moment(run.created)));
  }

  let busy = false;
  let again = false;
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const before = runs?.length;
      ({ runs } = await load("runs"));
      problem.hidden = true;
      whenReleased(draw);
      if (before && runs.length > before) say(`${runs.length - before} new runs`);
    } catch (error) {
      problem.hidden = error instanceof ConnectionLost;
      patch(problem, String(error.message ?? error));
    } finally {
      busy = false;
      if (again) { again = false; refresh(); }
    }
  }

  function go() {
    search.value = currentPlace().query.get("q") ?? "";
    draw();
  }

  const stop = follow(null, refresh);
  // A process that is killed leaves no commit behind, and the times are relative.
  const timer = setInterval(() => document.hidden || refresh(), 3000);
  refresh();
  return { element, go, close() { stop(); clearInterval(timer); } };
}
