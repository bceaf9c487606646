// The CPUs and the memory of the workers over time, computed from the recorded calls.

import { h, svg } from "./dom.js";
import { bytes, count, seconds } from "./format.js";

const CHART_HEIGHT = 48;
const BAR_WIDTH = 10;

// Bars of one or more values each, of which a later one is drawn over an earlier one.
function chart(title, label, most, bars) {
  const width = bars.length * BAR_WIDTH;
  const barOf = ([name, value], at) => {
    const height = most > 0 ? (CHART_HEIGHT * Math.min(value, most)) / most : 0;
    return svg("rect", { key: `${name} ${at}`, class: name, x: at * BAR_WIDTH, y: CHART_HEIGHT - height, width: BAR_WIDTH - 1, height });
  };
  return h("figure", { key: title, class: "usage" }, h("figcaption", null, title),
    svg("svg", { viewBox: `0 0 ${width} ${CHART_HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      bars.flatMap((values, at) => values.map((value) => barOf(value, at)))));
}

export function usageCharts({ usage, cores, total }) {
  if (!usage.length) return null;
  const mean = usage.reduce((sum, moment) => sum + moment.cpu, 0) / usage.length;
  const most = Math.max(...usage.map((moment) => moment.memory));
  const part = seconds(total / usage.length);
  const cpuText = `${mean.toFixed(1)} of ${count(cores)} CPUs used on average`;
  const memoryText = `${bytes(most)} at most`;
  return [
    chart(`CPU: ${cpuText}`, `CPU of the workers over time: ${cpuText}`, cores,
      usage.map(({ cpu, busy }) => [["idle", cores], ["busy", busy], ["cpu", cpu]])),
    chart(`Memory: ${memoryText}`, `Memory of the workers over time: ${memoryText}`, most, usage.map(({ memory }) => [["cpu", memory]])),
    h("p", { key: "usage", class: "quiet" }, `A bar is ${part}. Dark: CPU time of the calls, spread over their durations; light: workers that ran a call; `
      + "grey: idle. The memory is the sum of the peaks of the workers that ran a call."),
  ];
}
