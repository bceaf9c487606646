// What is known of one run: its counts, and the part of its calls that is seen.
//
//     GET api/calls?q=nan&offset=400&count=60&since=E.V&known=7,8   -> what changed of that part
//
// A run may have a million calls: the server filters, orders and counts them. A call has a number,
// which stays the same within an epoch E; version V is that of the rows that are known here.

import { load } from "./source.js";
import { rowsOf } from "./query.js";

// From what needs somebody to what is settled.
export const ORDER = ["failed", "waiting", "running", "unfinished", "done"];
const MOST_ASKING = 60;
const MOST_REST = 5000;
const RUNNING_OF = (live) => (live?.running ?? []).map((task) => task.id).join();

const publishedText = ({ live, commands, time_left }) => JSON.stringify([live ?? null, commands ?? [], time_left ?? null]);
const NOTHING = publishedText({});

// A part of the calls that match a query, in order.
export class CallWindow {
  constructor(thread) {
    this.thread = thread;
    this.total = 0;
    this.offset = 0;
    this.numbers = []; // of the calls in this part, in order
    this.found = new Map(); // further calls that were asked for by id, with their positions
    this._rows = new Map();
    this._epoch = 0;
    this._version = 0;
  }

  get version() { return `${this._epoch}.${this._version}`; }

  async load(query) {
    const known = [...this._rows.keys()].join();
    const asked = Object.fromEntries(Object.entries(query).filter(([, value]) => value !== ""));
    const answer = await load("calls", { thread: this.thread, ...asked, since: this.version, known });
    if (answer.epoch !== this._epoch) this._rows.clear();
    for (const row of rowsOf(answer)) this._rows.set(row.number, row);
    const kept = new Set(answer.numbers);
    for (const number of this._rows.keys()) if (!kept.has(number)) this._rows.delete(number);
    this.found = new Map(answer.found.map(([id, position, cells]) => (
      [id, { position, row: cells && rowsOf({ columns: answer.columns, rows: [[null, ...cells]] })[0] }])));
    this.numbers = answer.numbers;
    this.total = answer.total;
    this.offset = Number(query.offset ?? 0);
    this._epoch = answer.epoch;
    this._version = answer.version;
    return answer;
  }

  // The call at a position in the order, or undefined if that is not loaded.
  at(position) {
    return this._rows.get(this.numbers[position - this.offset]);
  }

  // The position of a call, or -1.
  positionOf(id) {
    const at = this.numbers.findIndex((number) => this._rows.get(number)?.id === id);
    return at >= 0 ? this.offset + at : this.found.get(id)?.position ?? -1;
  }

  get(id) {
    for (const row of this._rows.values()) if (row.id === id) return row;
    return this.found.get(id)?.row ?? undefined;
  }

  rows() {
    return this.numbers.map((number) => this._rows.get(number)).filter(Boolean);
  }
}

export class Run {
  constructor(thread) {
    this.thread = thread;
    this.row = null;
    this.live = null;
    this.timeLeft = null; // the estimated time until the known calls have ended, in words
    this.drawing = null; // the nodes of the run's graph, and its edges, if a process has told
    this.commands = [];
    this.pressed = new Map(); // the buttons whose commands are not known yet: their numbers, by action
    this.counts = {};
    this.bodies = {}; // the counts of tasks that no call started
    this.fields = []; // the names of the calls' own fields
    this.table = new CallWindow(thread);
    this.query = { count: 0 }; // what the table shows; without a table, only the counts are asked for
    this.finds = new Set(); // the ids of calls that are shown wherever they are in the table
    this.version = ""; // differs after each change of the calls
    this.answered = ""; // differs after each change of the answers about the run
    this.published = NOTHING; // differs after each change of the news of the run
    this.limit = null; // a report may hold only so many calls
    this.isBehind = false; // whether the server has not read all calls yet
    this.rates = new Map(); // the share of a CPU that each worker takes, by pid
    this._asking = new CallWindow(thread);
    this._recorded = {};
    this._busy = null;
    this._restUntil = 0;
  }

  // Ask for what changed; several requests at once become one more.
  async refresh() {
    if (this._busy) { this._again = true; return this._busy; }
    this._busy = this._refresh().finally(() => { this._busy = null; });
    await this._busy;
    if (this._again) { this._again = false; await this.refresh(); }
  }

  // Milliseconds until it is time to follow once more: very many calls take a server at most a tenth of its time.
  get rest() {
    return this.isBehind ? 0 : Math.max(0, this._restUntil - performance.now());
  }

  async _refresh() {
    const begin = performance.now();
    const query = { ...this.query, find: [...this.finds].join() };
    const [row, answer] = await Promise.all([load("run", { thread: this.thread }), this.table.load(query)]);
    if (answer.counts.waiting && this._askedAt !== this.table.version) {
      this._askedAt = this.table.version;
      await this._asking.load({ state: "waiting", sort: "path", count: MOST_ASKING });
    }
    this.row = row;
    this._recorded = answer.counts;
    this.bodies = answer.bodies;
    this.fields = answer.fields;
    this.limit = answer.limit ?? null;
    this.isBehind = answer.is_behind || row.is_behind === true;
    this.version = this.table.version;
    this._count();
    const { rows, ...others } = answer;
    this.answered = JSON.stringify([row, others]);
    const end = performance.now();
    this._restUntil = end + Math.min(MOST_REST, 9 * (end - begin));
  }

  // Take in what the running process has published; whether that changes which calls are running.
  take(news) {
    this.published = publishedText(news);
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
    this.timeLeft = news.time_left ?? null;
    this.drawing = now?.drawing ?? this.drawing;
    this._count();
    return RUNNING_OF(before) !== RUNNING_OF(now);
  }

  // Whether an action was asked for, and its command has not ended.
  isPending(action) {
    const isUnderWay = (command) => command.action === action && command.code === null;
    return this.pressed.has(action) || this.commands.some(isUnderWay);
  }

  get running() {
    return new Map((this.live?.running ?? []).map((task) => [task.id, task]));
  }

  // How a recorded call stands: what runs now has left nothing yet, or what an earlier attempt left.
  stateOf(call) {
    return call.state !== "done" && this.running.has(call.id) ? "running" : call.state;
  }

  // The calls that wait for an answer: the first of them, if there are very many.
  asking() {
    return this._recorded.waiting ? this._asking.rows().filter((call) => call.questions) : [];
  }

  get isAskingMore() {
    return (this._recorded.waiting ?? 0) > MOST_ASKING;
  }

  _count() {
    const counts = { failed: 0, waiting: 0, running: 0, unfinished: 0, done: 0, ...this._recorded };
    counts.queued = Object.values(this.live?.waiting ?? {}).reduce((sum, each) => sum + each, 0);
    this.counts = counts;
  }
}

// The body of a flow is no call. Of a graph without calls, the nodes are counted.
export function callCounts(run) {
  const { counts, bodies } = run; // a body is a task that no call started
  const states = ORDER.filter((state) => counts[state]);
  if (states.every((state) => counts[state] === (bodies[state] ?? 0))) return counts;
  const calls = states.map((state) => [state, counts[state] - (bodies[state] ?? 0)]);
  return { ...counts, ...Object.fromEntries(calls) };
}

export const nameOf = (call) => call.text || call.name || `task ${call.id.slice(0, 8)}`;
