// One call: what it was asked, how it ended, how often it was tried.

import { badge, fact, fill, h } from "./dom.js";
import { bytes, moment, seconds } from "./format.js";
import { load } from "./source.js";
import { nameOf } from "./model.js";
import { itemsOf, tree } from "./values.js";

export function callPanel({ run, start }, id, back) {
  const body = h("div");
  const printed = h("section");
  const element = h("aside", { class: "card panel", tabindex: "-1", "aria-label": "Call", onkeydown: (event) => {
    if (event.key === "Escape") element.querySelector(".close").click();
  } }, h("a", { class: "close", href: back, "aria-label": "Close the call" }, "✕"), body, printed);
  let known = null;

  function section(title, ...children) {
    return h("section", null, h("h3", null, title), children);
  }

  function attemptOf(attempt, number) {
    return h("details", { class: "attempt", open: number === 0 },
      h("summary", null, badge("failed"), h("span", { class: "mono" }, attempt.error)),
      h("p", { class: "quiet" }, `${moment(attempt.began)} · ${seconds(attempt.seconds)} · process ${attempt.pid}`),
      attempt.traceback && h("pre", null, attempt.traceback));
  }

  const textOf = (error) => (typeof error === "string" ? error : error.items.map(([, text]) => text).join(": "));

  function draw({ row, arguments: given, result, error, attempts, logs }) {
    const live = run.running.get(id);
    const state = run.stateOf(row);
    const redo = row.text && state === "done" && run.row.status !== "running";
    const takeBack = { type: "button", class: "button", onclick: () => start("redo", { call: id }) };
    const shared = row.began && !row.attempts;
    const many = attempts.length > 1;
    fill(body, h("h2", { class: "mono" }, nameOf(row)), badge(state),
      redo && h("span", { class: "buttons needs-actions" }, h("button", takeBack, "Take its result back")),
      h("dl", { class: "facts" },
        fact("Began", moment(row.began)), fact("Took", seconds(row.seconds) || null),
        fact("Waited", row.planned && row.began > row.planned ? seconds((row.began - row.planned) / 1e9) : null),
        fact("CPU", row.cpu ? seconds(row.cpu) : null), fact("Memory", bytes(row.peak)),
        fact("Tried", shared ? "not at all: another run shared it" : row.attempts > 1 && `${row.attempts} times`),
        fact("Ran in", [row.executor, row.pid && `process ${row.pid}`, row.host].filter(Boolean).join(", ")),
        fact("Superstep", row.step >= 0 ? String(row.step) : null), fact("Id", h("span", { class: "mono" }, row.id))),
      live?.message && h("p", null, live.message),
      error !== null && attempts.length === 0 && section("Error", h("pre", { class: "error" }, textOf(error))),
      attempts.length > 0 && section(many ? `Failed attempts: ${attempts.length}` : "Failed attempt",
        attempts.slice().reverse().map(attemptOf)),
      given !== null && section("Arguments", itemsOf(given)),
      state === "done" && section(row.text ? "Result" : "Wrote", tree(result)));
  }

  // What it prints comes while it runs.
  let read = 0;
  async function showLogs(isRunning) {
    if (isRunning && Date.now() - read < 2000) return;
    read = Date.now();
    const text = await load("logs", { thread: run.thread, call: id }).catch(() => "");
    fill(printed, text && [h("h3", null, "Logs"), h("pre", null, text)]);
  }

  async function update() {
    const isRunning = run.running.has(id);
    if (isRunning) showLogs(true);
    const call = run.calls.get(id);
    const key = call ? `${call.began} ${call.state} ${run.stateOf(call)} ${run.row?.status}` : "live";
    if (key === known) return;
    known = key;
    if (!isRunning) showLogs(false);
    try {
      draw(await load("call", { thread: run.thread, call: id }));
    } catch (error) {
      const live = run.running.get(id);
      fill(body, h("h2", { class: "mono" }, live ? nameOf(live) : id.slice(0, 8)),
        live ? badge("running") : h("p", { class: "quiet" }, String(error.message)),
        live && h("dl", { class: "facts" }, fact("Began", moment(live.began)),
          fact("Runs in", live.pid && `process ${live.pid}`)));
    }
  }

  update();
  return { id, element, update };
}
