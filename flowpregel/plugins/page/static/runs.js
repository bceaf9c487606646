// The list of runs.

import { badge, fill, h, say } from "./dom.js";
import { ago, count, moment } from "./format.js";
import { follow, load } from "./source.js";

const STATES = ["running", "waiting", "failed", "stopped", "done"];

export function showRuns() {
  let runs = [];
  const chosen = new Set();
  const label = "Search runs and flows";
  const search = h("input", { type: "search", placeholder: label, "aria-label": label, oninput: draw });
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Show only" });
  const body = h("tbody");
  const empty = h("p", { class: "empty" });
  const heads = ["Run", "Status", "Progress", "Flow", "Changed", "Began"];
  const element = h("section", { "aria-labelledby": "runs-title" },
    h("div", { class: "bar" }, h("h1", { id: "runs-title" }, "Runs"), search, filters),
    h("div", { class: "card" }, h("table", { class: "list" },
      h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col" }, head)))), body), empty));

  function toggle(state) {
    if (!chosen.delete(state)) chosen.add(state);
    draw();
  }

  function draw() {
    const wanted = search.value.trim().toLowerCase();
    const found = runs.filter((run) => (!chosen.size || chosen.has(run.status))
      && `${run.thread_id} ${run.flow ?? ""}`.toLowerCase().includes(wanted));
    const focused = document.activeElement?.dataset?.state;
    fill(filters, STATES.map((state) => h("button", {
      type: "button", class: `chip ${state}`, "data-state": state, "aria-pressed": String(chosen.has(state)),
      onclick: () => toggle(state),
    }, badge(state), h("span", { class: "number" }, count(runs.filter((run) => run.status === state).length)))));
    if (focused) filters.querySelector(`[data-state="${CSS.escape(focused)}"]`)?.focus();
    const row = document.activeElement?.closest?.("tr")?.dataset?.run;
    fill(body, found.map(rowOf));
    if (row !== undefined) [...body.rows].find((each) => each.dataset.run === row)?.querySelector("a").focus();
    const none = runs.length ? "No run is like that." : "This store has no runs yet. They appear here when they begin.";
    fill(empty, found.length ? "" : none);
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
    return h("tr", { "data-run": run.thread_id },
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
      const before = runs.length;
      ({ runs } = await load("runs"));
      draw();
      if (before && runs.length > before) say(`${runs.length - before} new runs`);
    } finally {
      busy = false;
      if (again) { again = false; refresh(); }
    }
  }

  const stop = follow(null, refresh);
  // A process that is killed leaves no commit behind, and the times are relative.
  const timer = setInterval(refresh, 3000);
  refresh();
  return { element, go() {}, close() { stop(); clearInterval(timer); } };
}
