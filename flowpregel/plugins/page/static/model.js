// What is known of one run: its calls, kept up to date by asking only for what changed.

import { load } from "./source.js";

// From what needs somebody to what is settled.
export const ORDER = ["failed", "waiting", "running", "unfinished", "done"];

export class Run {
  constructor(thread) {
    this.thread = thread;
    this.row = null;
    this.live = null;
    this.drawing = null; // the nodes of the run's graph, and its edges, if a process has told
    this.commands = [];
    this.pressed = new Map(); // the buttons whose commands are not known yet: their numbers, by action
    this.calls = new Map();
    this.counts = {};
    this.version = 0; // grows with each change of the calls
    this.limit = null; // a report may hold only so many calls
    this.isBehind = false; // whether there is more to ask for
    this.rates = new Map(); // the share of a CPU that each worker takes, by pid
    this._mark = 0;
    this._busy = null;
  }

  // Ask for what changed; several requests at once become one more.
  async refresh() {
    if (this._busy) { this._again = true; return this._busy; }
    this._busy = this._refresh().finally(() => { this._busy = null; });
    await this._busy;
    if (this._again) { this._again = false; await this.refresh(); }
  }

  async _refresh() {
    const query = { thread: this.thread };
    const [row, changes] = await Promise.all([load("run", query), load("calls", { ...query, since: this._mark })]);
    this.row = row;
    this._mark = changes.mark;
    if (changes.is_whole) this.calls.clear();
    for (const cells of changes.rows) {
      const call = {};
      changes.columns.forEach((column, at) => { call[column] = cells[at]; });
      this.calls.set(call.id, call);
    }
    this.limit = changes.limit ?? null;
    this.isBehind = changes.is_more;
    this._count();
  }

  // Take in what the running process has published.
  take(news) {
    this.commands = news.commands ?? [];
    const numbers = new Set(this.commands.map((command) => command.number));
    for (const [action, number] of this.pressed) if (numbers.has(number)) this.pressed.delete(action);
    const [before, now] = [this.live, news.live];
    if (before && now && now.at > before.at) {
      const known = new Map(before.workers.map((worker) => [worker.pid, worker.cpu]));
      const period = (now.at - before.at) / 1e9;
      for (const worker of now.workers) {
        const used = worker.cpu - (known.get(worker.pid) ?? worker.cpu);
        this.rates.set(worker.pid, Math.max(0, used / period));
      }
    }
    this.live = now ?? null;
    this.drawing = now?.drawing ?? this.drawing;
    this._count();
  }

  // Whether an action was asked for, and its command has not ended.
  isPending(action) {
    const isUnderWay = (command) => command.action === action && command.code === null;
    return this.pressed.has(action) || this.commands.some(isUnderWay);
  }

  get running() {
    return new Map((this.live?.running ?? []).map((task) => [task.id, task]));
  }

  // How a call stands: what runs now has left nothing yet, or what an earlier attempt left.
  stateOf(call) {
    return call.state !== "done" && this._running.has(call.id) ? "running" : call.state;
  }

  _count() {
    this._running = this.running;
    const counts = { failed: 0, waiting: 0, running: 0, unfinished: 0, done: 0, queued: 0 };
    for (const call of this.calls.values()) counts[this.stateOf(call)] += 1;
    counts.running += this.live?.running.filter((task) => !this.calls.has(task.id)).length ?? 0;
    counts.queued = Object.values(this.live?.waiting ?? {}).reduce((sum, each) => sum + each, 0);
    this.counts = counts;
    this.version += 1;
  }

  // All calls, those that run and have left nothing included, each with `shown`, its state.
  rows() {
    const rows = [];
    for (const call of this.calls.values()) {
      rows.push({ ...call, shown: this.stateOf(call), live: this._running.get(call.id) });
    }
    for (const task of this._running.values()) {
      if (!this.calls.has(task.id)) {
        const unknown = { namespace: "", step: this.row.step + 1, seconds: null, error: "" };
        const caller = this._running.get(task.caller)?.path ?? "";
        rows.push({ ...unknown, ...task, caller, shown: "running", attempts: task.attempt, live: task });
      }
    }
    return rows;
  }
}

export const nameOf = (call) => call.text || call.name || `task ${call.id.slice(0, 8)}`;
