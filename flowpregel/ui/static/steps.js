// The supersteps: what the channels held after each, and what it changed.

import { fill, h } from "./dom.js";
import { count, moment } from "./format.js";
import { isReport, load } from "./source.js";
import { brief, tree } from "./values.js";

export function stepsView({ run, start }) {
  const list = h("ol", { class: "steps" });
  const slider = h("input", { type: "range", min: 0, "aria-label": "Superstep", oninput: () => choose(steps.length - 1 - Number(slider.value)) });
  const detail = h("div", { class: "card", "aria-live": "polite" });
  const told = h("p", { class: "quiet" });
  const element = h("div", null, h("div", { class: "bar" }, told, slider), h("div", { class: "travel" }, h("div", { class: "card" }, list), detail));
  let steps = []; // the newest first
  let chosen = null;
  let known = null;

  const titleOf = (step) => (step.source === "input" ? "Input" : step.source === "loop" ? `After superstep ${step.step}` : `${step.source === "fork" ? "Fork" : "Update"} at ${step.step}`);

  async function update() {
    const key = `${run.row.checkpoints} ${run.row.updated}`;
    if (key === known) return;
    known = key;
    try {
      steps = await load("steps", { thread: run.thread });
    } catch (error) {
      fill(told, String(error.message));
      return;
    }
    fill(told, `${count(steps.length)} checkpoints`);
    slider.max = String(steps.length - 1);
    const at = steps.findIndex((step) => step.id === chosen);
    choose(at < 0 ? 0 : at);
  }

  async function choose(at) {
    const step = steps[at];
    if (!step) return;
    const again = chosen === step.id;
    chosen = step.id;
    slider.value = String(steps.length - 1 - at);
    slider.setAttribute("aria-valuetext", titleOf(step));
    fill(list, steps.map((each, index) => h("li", null, h("button", { type: "button", "aria-current": each.id === chosen ? "step" : null, onclick: () => choose(index) },
      h("strong", null, titleOf(each)), h("span", { class: "quiet" }, moment(each.at)), h("span", { class: "mono quiet" }, each.changed.join(", "))))));
    if (again) return;
    try {
      const { channels } = await load("step", { thread: run.thread, checkpoint: step.id });
      if (chosen === step.id) show(step, channels);
    } catch (error) {
      fill(detail, h("p", { class: "empty" }, String(error.message)));
    }
  }

  function show(step, channels) {
    const field = h("input", { type: "text", "aria-label": "Name of the new thread", placeholder: "name of the new thread", required: true });
    const fork = h("form", { class: "answer needs-actions", onsubmit: (event) => { event.preventDefault(); start("fork", { checkpoint: step.id, name: field.value }); } },
      field, h("button", { type: "submit", class: "button" }, "Fork from here"));
    fill(detail, h("h2", null, titleOf(step)), h("p", { class: "quiet mono" }, step.id), isReport ? null : fork,
      channels.length === 0 ? h("p", { class: "empty" }, "No channel holds a value.") : channels.map((channel) => h("section", { class: channel.changed ? "channel changed" : "channel" },
        h("h3", null, h("span", { class: "mono" }, channel.name), channel.changed && h("span", { class: "mark" }, "before" in channel ? ("value" in channel ? "changed" : "removed") : "new")),
        "before" in channel && h("p", { class: "before mono" }, h("span", { class: "unseen" }, "before: "), brief(channel.before, 300)),
        "value" in channel && tree(channel.value))));
  }

  return { element, update };
}
