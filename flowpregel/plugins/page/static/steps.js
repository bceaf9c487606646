// The supersteps: what the channels held after each, and what it changed.

import { actionButton, h, patch, whenReleased } from "./dom.js";
import { count, moment } from "./format.js";
import { currentPlace, note } from "./place.js";
import { isReport, load } from "./source.js";
import { brief, tree, valueButtons } from "./values.js";

export function stepsView({ run, start, isPending }) {
  const list = h("ol", { class: "steps", onkeydown: move });
  const oninput = () => choose(steps.length - 1 - Number(slider.value), { isNoted: true });
  const slider = h("input", { type: "range", min: 0, "aria-label": "Superstep", oninput });
  const about = h("div", { "aria-live": "polite" });
  const fork = h("div");
  const values = h("div");
  const detail = h("div", { class: "card" }, about, fork, values);
  const told = h("p", { class: "quiet" });
  const onclick = () => { most *= 5; known = null; update(); };
  const older = h("button", { type: "button", class: "button", hidden: true, onclick }, "Show older");
  const element = h("div", null, h("div", { class: "bar" }, told, slider, older),
    h("div", { class: "travel" }, h("div", { class: "card" }, list), detail));
  let steps = []; // the newest first
  let most = 200;
  let chosen = null; // null: the newest
  let seen = null; // the one whose values are shown
  let known = null;

  const titles = { input: () => "Input", loop: (step) => `After superstep ${step}`, fork: (step) => `Fork at ${step}` };
  const titleOf = ({ source, step }) => (titles[source] ?? ((at) => `Update at ${at}`))(step);
  const indexOf = (id) => Math.max(0, steps.findIndex((step) => step.id === id));

  async function update() {
    drawFork();
    const key = `${run.row.checkpoints} ${run.row.updated}`;
    if (key === known) return;
    known = key;
    try {
      const newest = await load("steps", { thread: run.thread, most });
      whenReleased(() => take(newest));
    } catch (error) {
      patch(told, String(error.message));
    }
  }

  function take(newest) {
    steps = newest;
    const isAll = steps.length >= run.row.checkpoints;
    patch(told, isAll ? `${count(steps.length)} checkpoints` : `The newest ${count(steps.length)} of ${count(run.row.checkpoints)} checkpoints`);
    older.hidden = isAll || isReport;
    slider.max = String(steps.length - 1);
    choose(indexOf(chosen));
  }

  async function choose(at, { isNoted = false } = {}) {
    const step = steps[at];
    if (!step) return;
    if (isNoted) {
      chosen = step.id;
      note({ at: step.id });
    }
    slider.value = String(steps.length - 1 - at);
    slider.setAttribute("aria-valuetext", titleOf(step));
    patch(list, steps.map((each, index) => h("li", { key: each.id },
      h("button", {
        type: "button", "aria-current": index === at ? "step" : null, tabindex: index === at ? 0 : -1,
        onclick: () => choose(index, { isNoted: true }),
      },
        h("strong", null, titleOf(each)), h("span", { class: "quiet" }, moment(each.at)),
        h("span", { class: "mono quiet" }, each.changed.join(", "))))));
    if (seen === step.id) return;
    seen = step.id;
    try {
      const { channels } = await load("step", { thread: run.thread, checkpoint: step.id });
      if (seen === step.id) show(step, channels);
    } catch (error) {
      patch(values, h("p", { class: "empty" }, String(error.message)));
    }
  }

  // The arrow keys go from superstep to superstep.
  function move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = Math.min(steps.length - 1, Math.max(0, indexOf(seen) + step));
    choose(at, { isNoted: true });
    list.children[at]?.firstElementChild.focus();
  }

  function drawFork() {
    const label = "Name of the new thread";
    const onsubmit = (event) => {
      event.preventDefault();
      start("fork", { checkpoint: seen, name: event.currentTarget.elements.name.value });
    };
    patch(fork, !isReport && h("form", { class: "answer needs-actions", onsubmit },
      h("input", { type: "text", name: "name", "aria-label": label, placeholder: label, required: true }),
      actionButton({ type: "submit", text: "Fork from here", isPending: isPending("fork") })));
  }

  function show(step, channels) {
    drawFork();
    patch(about, h("h2", null, titleOf(step)), h("p", { class: "quiet mono" }, step.id));
    patch(values,
      channels.length === 0 && h("p", { class: "empty" }, "No channel holds a value."), channels.map(channelOf));
  }

  function channelOf(channel) {
    const [was, is] = ["before" in channel, "value" in channel];
    const origin = { thread: run.thread, checkpoint: seen, channel: channel.name, part: "after" };
    const change = was ? (is ? "changed" : "removed") : "new";
    return h("section", { key: channel.name, class: channel.changed ? "channel changed" : "channel" },
      h("h3", null, h("span", { class: "mono" }, channel.name),
        channel.changed && h("span", { class: "mark" }, change)),
      was && h("p", { class: "before mono" }, h("span", { class: "unseen" }, "before: "), brief(channel.before, 300)),
      is && [valueButtons(channel.value, origin), tree(channel.value, origin)]);
  }

  function go({ query }) {
    chosen = query.get("at");
    choose(indexOf(chosen));
  }

  go(currentPlace());
  return { element, update, go };
}
