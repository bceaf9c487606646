// One call: what it was asked, how it ended, how often it was tried.

import { actionButton, badge, fact, h, patch, whenReleased } from "./dom.js";
import { bytes, moment, seconds } from "./format.js";
import { mediaOf } from "./media.js";
import { seriesOf } from "./series.js";
import { load } from "./source.js";
import { nameOf } from "./model.js";
import { CALL_NUMBERS, numberText } from "./numbers.js";
import { compareHash } from "./compare.js";
import { currentPlace, note } from "./place.js";
import { itemsOf, tree, valueButtons } from "./values.js";

export function callPanel({ run, start, isPending, linkBack, redraw }, id) {
  const body = h("div");
  const curves = h("section");
  const printed = h("section");
  const close = h("a", { class: "close", "aria-label": "Close the call" }, "✕");
  const element = h("aside", { class: "card panel", tabindex: "-1", "aria-label": "Call", onkeydown: (event) => {
    if (event.key === "Escape") close.click();
  } }, close, body, curves, printed);
  let known = null;
  let details = null;

  function section(title, ...children) {
    return h("section", { key: title }, h("h3", null, title), children);
  }

  function valueSection(title, part, value, drawn) {
    const origin = { thread: run.thread, call: id, at: details.row.checkpoint_id, part };
    return section(title, valueButtons(value, origin), drawn(value, origin));
  }

  function attemptOf(attempt, number, attempts) {
    return h("details", { key: attempt.began, class: "attempt", open: number === attempts.length - 1 },
      h("summary", null, badge("failed"), h("span", { class: "mono" }, attempt.error)),
      h("p", { class: "quiet" }, `${moment(attempt.began)} · ${seconds(attempt.seconds)} · process ${attempt.pid}`),
      attempt.traceback && h("pre", { tabindex: 0 }, attempt.traceback),
      attempt.full && h("details", { class: "full" }, h("summary", null, "Whole traceback"),
        h("pre", { tabindex: 0 }, attempt.full)));
  }

  // The state was read without reading the file: `flowpregel check` compares contents.
  const outputWords = { unchanged: "", touched: "written since", changed: "changed since", gone: "gone" };

  function outputOf(file) {
    const words = [bytes(file.size), outputWords[file.state]].filter(Boolean).join(", ");
    return h("li", { key: file.path }, h("span", { class: "mono" }, file.path), h("span", { class: "quiet" }, ` ${words}`));
  }

  const textOf = (error) => (typeof error === "string" ? error : error.items.map(([, text]) => text).join(": "));

  function draw() {
    const { row, arguments: given, result, error, attempts, preview, media, outputs } = details;
    const asked = given ?? preview.arguments;
    const { metrics } = preview;
    const pictures = media.filter((medium) => !medium.series);
    const live = run.running.get(id);
    const state = run.stateOf(row);
    const redo = row.text && state === "done" && run.row.status !== "running";
    const shared = row.began && !row.attempts;
    const many = attempts.length > 1;
    patch(body, h("h2", { class: "mono" }, nameOf(row)), badge(state),
      comparisonOf(),
      redo && h("span", { class: "buttons needs-actions" }, actionButton({
        text: "Take its result back", isPending: isPending("redo"), onclick: () => start("redo", { call: id }),
      })),
      h("dl", { class: "facts" },
        fact("Began", moment(row.began)), fact("Took", seconds(row.seconds) || null),
        fact("Waited", row.planned && row.began > row.planned ? seconds((row.began - row.planned) / 1e9) : null),
        CALL_NUMBERS.map((number) => fact(number.heading, numberText(number, row))),
        fact("Tried", shared ? "not at all: another run shared it" : row.attempts > 1 && `${row.attempts} times`),
        fact("Ran in", [row.executor, row.pid && `process ${row.pid}`, row.host].filter(Boolean).join(", ")),
        fact("Superstep", row.step >= 0 ? String(row.step) : null), fact("Id", h("span", { class: "mono" }, row.id))),
      live?.message && h("p", { key: "message" }, live.message),
      error !== null && attempts.length === 0 && section("Error", h("pre", { class: "error", tabindex: 0 }, textOf(error))),
      attempts.length > 0 && h("section", { key: "attempts" },
        h("h3", null, many ? `Failed attempts: ${attempts.length}` : "Failed attempt"), attempts.map(attemptOf).reverse()),
      given === null && asked.items.length > 0 && section("Arguments", itemsOf(asked)),
      given !== null && valueSection("Arguments", "arguments", given, itemsOf),
      metrics.items.length > 0 && section("Metrics", itemsOf(metrics), seriesOf(media.filter((medium) => medium.series))),
      state === "done" && valueSection(row.text ? "Result" : "Wrote", "result", result, tree),
      outputs.length > 0 && section("Output files", h("ul", { class: "outputs" }, outputs.map(outputOf))),
      pictures.length > 0 && section("Preview", mediaOf(pictures)));
  }

  // The first press chooses a call; from the next opened call, a link leads to both side by side.
  function comparisonOf() {
    const first = currentPlace().query.get("with");
    const words = { a: run.thread, b: run.thread, call_a: first, call_b: id };
    const isChosen = first === id;
    const choose = () => { note({ with: isChosen ? null : id }); draw(); redraw(); };
    return h("span", { class: "buttons" },
      first !== null && !isChosen && h("a", { key: "compare", class: "button small", href: compareHash(words) }, "Compare with the chosen call"),
      h("button", { key: "choose", type: "button", class: "button small", "aria-pressed": String(isChosen), onclick: choose }, isChosen ? "Chosen: open another call" : "Compare …"));
  }

  function drawUnknown(error) {
    const live = run.running.get(id);
    patch(body, h("h2", { class: "mono" }, live ? nameOf(live) : id.slice(0, 8)),
      live ? badge("running") : h("p", { class: "quiet" }, String(error.message)),
      live && h("dl", { class: "facts" }, fact("Began", moment(live.began)),
        fact("Runs in", live.pid && `process ${live.pid}`)));
  }

  // What it prints, and the values of its metrics, come while it runs.
  let read = 0;
  async function showLogs(isRunning) {
    if (isRunning && Date.now() - read < 2000) return;
    read = Date.now();
    const series = isRunning ? await load("series", { thread: run.thread, call: id }).catch(() => []) : [];
    patch(curves, series.length > 0 && [h("h3", null, "Metrics so far"), seriesOf(series)]);
    const text = await load("logs", { thread: run.thread, call: id }).catch(() => "");
    patch(printed, text && [h("h3", null, "Logs"), h("pre", { tabindex: 0 }, text)]);
  }

  async function update() {
    close.setAttribute("href", linkBack());
    const isRunning = run.running.has(id);
    if (isRunning) showLogs(true);
    const row = run.table.get(id);
    const call = row?.checkpoint_id ? row : undefined; // without a checkpoint nothing of it is stored yet
    const key = call ? `${call.began} ${call.state} ${run.stateOf(call)} ${run.row?.status} ${isPending("redo")}` : "live";
    if (key === known) return;
    known = key;
    if (isRunning && !call) { drawUnknown(); return; } // nothing is stored yet
    if (!isRunning) showLogs(false);
    try {
      details = await load("call", { thread: run.thread, call: id });
      whenReleased(draw);
    } catch (error) {
      drawUnknown(error);
    }
  }

  update();
  return { id, element, update };
}
