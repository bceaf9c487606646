// Where the page gets what it shows: from its server, or, in a report, from the page itself.

import { queryCalls, queryTimeline } from "./query.js";
import { compareInReport, queryPlot } from "./points.js";

const kept = document.getElementById("answers");
const answers = kept && JSON.parse(kept.textContent);

export const isReport = answers !== null;
export const comparison = answers?.["compare:"]; // of a report that has two runs
export const reportCalls = answers?.["calls:"];

// The status of an answer if the store has not answered the server within the time limit.
const STALLED = 503;

// The server cannot be reached, or the store does not answer: the banner says so, and what to do.
export class ConnectionLost extends Error {}

// A network that changes aborts local requests too: what only reads is asked again.
async function read(address, tries = 3) {
  try {
    return await fetch(address);
  } catch (error) {
    if (tries === 0) throw new ConnectionLost(String(error.message ?? error));
    await new Promise((done) => setTimeout(done, 300));
    return read(address, tries - 1);
  }
}

export async function load(path, query = {}) {
  if (isReport) {
    const local = { calls: queryCalls, timeline: queryTimeline, plot: queryPlot, compare: compareInReport }[path];
    if (local) return local(reportCalls, query, answers);
    const answer = answers[`${path}:${query.call ?? query.checkpoint ?? ""}`];
    if (answer === undefined) throw new Error("this report does not hold that");
    return answer;
  }
  const response = await read(`api/${path}?${new URLSearchParams(query)}`);
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (response.status === STALLED) throw new ConnectionLost(answer.error);
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Send an object.
export async function post(path, body) {
  const response = await fetch(`api/${path}`, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Start what a button stands for.
export const act = (action, asked) => post(`actions/${action}`, asked);
