// News of the store, over one connection for all tabs of a browser.
//
//     the leader, a tab that holds the lock LEAD ---- GET api/news?thread=A&thread=B ----> the server
//        |      each tab holds a lock that names its run, so the leader knows A and B
//        +----- a channel, with all news -----> the other tabs
//
// A browser opens six connections to a server: if each tab had its own, the seventh would wait for
// good. A lock ends with its tab, however that ends: then another tab leads. A hidden tab lets its
// locks go, and follows nothing until it is seen again. A shared worker would be the other way: it takes
// a policy for trusted types, and the content policy of this page allows none.

import { h, patch } from "./dom.js";
import { isReport } from "./source.js";

// A server may have pages of several stores, below different paths.
const STORE = isReport || location.pathname === "/" ? "" : ` ${location.pathname}`;
const LEAD = `flowpregel${STORE} news`;
const WATCHES = `flowpregel${STORE} watches `;
const RETRY = 1000;
const LOOK_AGAIN = 2000;
let restartLine = "flowpregel ui";

// The command line that starts the server again, under the same address.
export function setRestartLine(line) {
  restartLine = line;
}

class Refused extends Error {}
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Hold a lock until the function that is returned is called; once it is held, *use* runs. A page of
// another machine without TLS has no locks: there each tab that is seen leads itself.
function hold(name, mode, use) {
  const wait = new AbortController();
  let release;
  const released = new Promise((done) => { release = done; });
  const held = () => { use(); return released; };
  if (navigator.locks) navigator.locks.request(name, { mode, signal: wait.signal }, held).catch(() => {});
  else held();
  return () => { wait.abort(); release(); };
}

// The runs that visible tabs show.
async function watchedThreads(own) {
  const { held } = navigator.locks ? await navigator.locks.query() : { held: [] };
  const named = held.filter((lock) => lock.name.startsWith(WATCHES)).map((lock) => lock.name.slice(WATCHES.length));
  return [...new Set(own === null ? named : [own, ...named])].sort();
}

// The state of the connection to the store: it is gone, does not answer, or can be read.
const linkOf = ({ gone, stalled }) => (gone ? { gone } : stalled ? { stalled } : { isLive: true });

// Read news until the connection ends.
async function readNews(threads, signal, see) {
  const query = new URLSearchParams(threads.map((thread) => ["thread", thread]));
  const response = await fetch(`api/news?${query}`, { signal });
  if (!response.ok) throw new Refused(`the server answered ${response.status}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) see(JSON.parse(event.slice("data: ".length)));
  }
}

// Read the news of all tabs, and pass them on, until *signal*.
async function lead(own, channel, take, signal) {
  const last = {};
  const tell = (message) => {
    Object.assign(last, message);
    channel.postMessage(message);
    take(message);
  };
  while (!signal.aborted) {
    const threads = await watchedThreads(own);
    const outdated = new AbortController();
    const check = async () => {
      if (signal.aborted) return;
      if (String(await watchedThreads(own)) !== String(threads)) outdated.abort();
      else if (!signal.aborted) channel.postMessage(last);
    };
    const timer = setInterval(check, LOOK_AGAIN);
    channel.onmessage = ({ data }) => data.link || check(); // an empty message: a tab has joined
    const ends = AbortSignal.any([signal, outdated.signal]);
    try {
      await readNews(threads, ends, (news) => tell({ link: linkOf(news), news }));
      tell({ link: { isLost: true } });
    } catch (error) {
      if (!ends.aborted) tell({ link: error instanceof Refused ? { refused: error.message } : { isLost: true } });
    }
    clearInterval(timer);
    if (!ends.aborted) await pause(RETRY);
  }
}

// Call *see* with the news of a run, or of the store, until the function that is returned is called.
export function follow(thread, see) {
  if (isReport) return () => {};
  let leave = null;

  function take({ link, news }) {
    if (link) showLink(link);
    if (!news?.mark) return;
    const { mark, threads } = news;
    if (thread === null) see({ mark });
    else if (threads[thread]) see({ mark, ...threads[thread] });
  }

  function join() {
    const channel = new BroadcastChannel(LEAD);
    const stop = new AbortController();
    channel.onmessage = ({ data }) => take(data);
    const joined = () => stop.signal.aborted || channel.postMessage({});
    const unwatch = thread === null ? joined() : hold(`${WATCHES}${thread}`, "shared", joined);
    const unlead = hold(LEAD, "exclusive", () => lead(thread, channel, take, stop.signal));
    return () => {
      stop.abort();
      channel.close();
      unlead();
      if (thread !== null) unwatch();
    };
  }

  function onVisibility() {
    if (document.hidden) { leave?.(); leave = null; }
    else leave ??= join();
  }

  document.addEventListener("visibilitychange", onVisibility);
  onVisibility();
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    leave?.();
  };
}

// Whether the store can be read.
export const canRead = () => document.querySelector("#link.on") !== null;

// The state of the connection: a word in the head, and a banner that says what to type.
function showLink({ isLive, isLost, refused, gone, stalled }) {
  const link = document.getElementById("link");
  link.className = isLive ? "link on" : "link off";
  patch(link, isLive ? "live" : "not live");
  const type = [" Type ", h("code", null, restartLine)];
  const texts = [
    isLost && ["The server of this page has ended, or cannot be reached.", type, " and the page goes on by itself."],
    refused && [`This address is no longer valid (${refused}).`, type, " and open the address that it prints."],
    gone && [gone, type, " once it is there again."],
    stalled && [stalled, " The page goes on by itself when it answers."],
  ].filter(Boolean);
  const banner = document.getElementById("banner");
  banner.hidden = isLive === true;
  patch(banner, ...texts.flat(2));
}
