// The supersteps: what the channels held after each, and what it changed.

import { fill, h } from "./dom.js";
import { count, moment } from "./format.js";
import { isReport, load } from "./source.js";
import { brief, tree } from "./values.js";

export function stepsView({ run, start }) {
  const list = h("ol", { class: "steps" });
  const oninput = () => choose(steps.length - 1 - Number(slider.value));
  const slider = h("input", { type: "range", min: 0, "aria-label": "Superstep", oninput });
  const detail = h("div", { class: "card", "aria-live": "polite" });
  const told = h("p", { class: "quiet" });
  const onclick = () => { most *= 5; known = null; update(); };
  const older = h("button", { type: "button", class: "button", hidden: true, onclick }, "Show older");
  const element = h("div", null, h("div", { class: "bar" }, told, slider, older),
    h("div", { class: "travel" }, h("div", { class: "card" }, list), detail));
  let steps = []; // the newest first
  let most = 200;
  let chosen = null;
  let known = null;

  const titles = { input: () => "Input", loop: (step) => `After superstep ${step}`, fork: (step) => `Fork at ${step}` };
  const titleOf = ({ source, step }) => (titles[source] ?? ((at) => `Update at ${at}`))(step);

  async function update() {
    const key = `${run.row.checkpoints} ${run.row.updated}`;
    if (key === known) return;
    known = key;
    try {
      steps = await load("steps", { thread: run.thread, most });
    } catch (error) {
      fill(told, String(error.message));
      return;
    }
    const isAll = steps.length >= run.row.checkpoints;
    fill(told, isAll ? `${count(steps.length)} checkpoints` : `The newest ${count(steps.length)} of ${count(run.row.checkpoints)} checkpoints`);
    older.hidden = isAll || isReport;
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
    const isCurrent = (each) => (each.id === chosen ? "step" : null);
    fill(list, steps.map((each, index) => h("li", null,
      h("button", { type: "button", "aria-current": isCurrent(each), onclick: () => choose(index) },
        h("strong", null, titleOf(each)), h("span", { class: "quiet" }, moment(each.at)),
        h("span", { class: "mono quiet" }, each.changed.join(", "))))));
    if (again) return;
    try {
      const { channels } = await load("step", { thread: run.thread, checkpoint: step.id });
      if (chosen === step.id) show(step, channels);
    } catch (error) {
      fill(detail, h("p", { class: "empty" }, String(error.message)));
    }
  }

  function show(step, channels) {
    const label = "Name of the new thread";
    const field = h("input", { type: "text", "aria-label": label, placeholder: label, required: true });
    const onsubmit = (event) => { event.preventDefault(); start("fork", { checkpoint: step.id, name: field.value }); };
    const fork = h("form", { class: "answer needs-actions", onsubmit },
      field, h("button", { type: "submit", class: "button" }, "Fork from here"));
    fill(detail, h("h2", null, titleOf(step)), h("p", { class: "quiet mono" }, step.id), isReport ? null : fork,
      channels.length === 0 && h("p", { class: "empty" }, "No channel holds a value."), channels.map(channelOf));
  }

  function channelOf(channel) {
    const [was, is] = ["before" in channel, "value" in channel];
    const change = was ? (is ? "changed" : "removed") : "new";
    return h("section", { class: channel.changed ? "channel changed" : "channel" },
      h("h3", null, h("span", { class: "mono" }, channel.name),
        channel.changed && h("span", { class: "mark" }, change)),
      was && h("p", { class: "before mono" }, h("span", { class: "unseen" }, "before: "), brief(channel.before, 300)),
      is && tree(channel.value));
  }

  return { element, update };
}
