// Where the time of a run went: by kind of moment, by task and by worker, the slowest calls, and the
// calls that had to follow each other.

import { h, patch, whenReleased } from "./dom.js";
import { bytes, count, seconds } from "./format.js";
import { load } from "./source.js";
import { usageCharts } from "./usage.js";

const TIME_PERIOD = 3000; // milliseconds between two requests, while a run goes on

export function timeView({ run, linkOf }) {
  const element = h("div", { class: "time" }, h("p", { class: "empty" }, "Reading the calls …"));
  let known = null;
  let asked = 0;
  let isBusy = false;
  let isClosed = false;
  let timer = 0;

  async function update() {
    const { version } = run;
    if (isBusy || isClosed || version === known) return;
    const rest = asked + TIME_PERIOD - Date.now();
    if (rest > 0) {
      timer ||= setTimeout(() => { timer = 0; update(); }, rest);
      return;
    }
    isBusy = true;
    asked = Date.now();
    try {
      const answer = await load("time", { thread: run.thread });
      if (answer.is_behind) asked = 0;
      else {
        known = version;
        whenReleased(() => draw(answer.use));
      }
    } catch (error) {
      patch(element, h("p", { class: "empty" }, String(error.message)));
    } finally {
      isBusy = false;
    }
    if (asked === 0) update();
  }

  function draw(use) {
    patch(element, use === null ? h("p", { class: "empty" }, "No call has ended yet.") : [
      h("section", { class: "card" }, h("h2", null, `${seconds(use.total)} from the first call to the last`), phases(use)),
      use.usage.length > 0 && h("section", { key: "usage", class: "card" }, h("h2", null, "Workers over time"), usageCharts(use)),
      timeTable("By task", ["Task", "Calls", "In all", "Median", "Longest", "Waited", "CPU"], use.tasks.map((task) => [
        task.name, count(task.calls), seconds(task.seconds), seconds(task.median), seconds(task.longest),
        seconds(task.waited), seconds(task.cpu)])),
      timeTable(`The ${use.slowest.length} slowest calls`, ["Call", "Took", "Waited"], use.slowest.map(callRow)),
      timeTable("Critical path", ["Call", "Took", "Waited"], use.path.longest.map(callRow), pathText(use.path)),
      use.workers.length > 0 && timeTable("Workers", ["Process", "Calls", "In all", "CPU", "Peak memory"],
        use.workers.map((worker) => [`${worker.pid} on ${worker.host}`, count(worker.calls), seconds(worker.seconds),
          seconds(worker.cpu), bytes(worker.peak)])),
    ]);
  }

  const callRow = (call) => [h("a", { href: linkOf(call.id) }, call.text), seconds(call.seconds), seconds(call.waited)];

  function pathText(path) {
    const calls = path.calls === 1 ? "1 call" : `${count(path.calls)} calls, one after another`;
    return `${calls}: ${seconds(path.seconds)} of work, ${seconds(path.waited)} of waiting for a worker, `
      + `${seconds(path.between)} between calls. These took longest.`;
  }

  return { element, update, close: () => { isClosed = true; } };
}

function phases(use) {
  const whole = use.cores * (use.total - use.stopped);
  const parts = [
    ["Calls ran", use.busy, use.total, "running"],
    ["Only waited for a worker", use.waiting, use.total, "waiting"],
    ["Body, or between supersteps", use.body, use.total, "unfinished"],
    use.stopped > 0.01 && ["Stopped, or body before it was resumed", use.stopped, use.total, "rest"],
    whole > 0 && [`Idle, of ${count(use.cores)} ${use.cores === 1 ? "core" : "cores"}`, use.idle, whole, "queued"],
  ].filter(Boolean);
  return [h("dl", { class: "phases" }, parts.map(([name, time, total, state]) => {
    const share = total > 0 ? `${Math.round((100 * time) / total)}%` : "0%";
    return h("div", { key: name }, h("dt", null, name),
      h("dd", { class: "meter" }, h("span", { class: state, style: { width: share } })),
      h("dd", { class: "number" }, `${seconds(time)} · ${share}`));
  })), h("p", { class: "quiet" }, `A call waited ${seconds(use.median_wait)} for a worker (median).`,
    whole > 0 && ` While calls waited, cores were idle for ${seconds(use.idle_while_waiting)}.`)];
}

function timeTable(title, heads, rows, text) {
  return h("section", { key: title, class: "card" }, h("h2", null, title), text && h("p", { class: "quiet" }, text),
    h("table", { class: "list figures" }, h("thead", null, h("tr", null, heads.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, rows.map(([first, ...cells]) => h("tr", null, h("th", { scope: "row", class: "mono" }, first),
        cells.map((cell) => h("td", { class: "number" }, cell)))))));
}
