// The address: which view is shown, and how. It can be shared, and survives back and forth.
//
//     #/?q=WORDS&state=failed        #/run/ID/TAB?call=ID&q=WORDS&state=failed,waiting&sort=ORDER
//     #/start/ID?values=defaults     the form for a new run like ID
//     #/start?flow=MODULE:FLOW       the form for a flow that the command has offered
//     #/compare?a=ID&b=ID            two runs; with call_a and call_b, two calls

import { isReport } from "./source.js";

export function placeOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/");
  const named = ["run", "start"].includes(parts[0]) && parts[1] ? parts[0] : null;
  const view = named ?? (["compare", "start"].includes(parts[0]) ? parts[0] : "runs");
  const thread = named === null ? null : decodeURIComponent(parts[1]);
  return { view, thread, tab: parts[2] || "calls", query: new URLSearchParams(query ?? "") };
}

// The address of a place, with some of its query changed; null takes a word out.
export function hashOf({ view, thread, tab, query }, changes = {}) {
  const words = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") words.delete(name);
    else words.set(name, value);
  }
  const name = thread === null ? "" : encodeURIComponent(thread);
  const path = view === "compare" ? "#/compare" : view === "start" && thread === null ? "#/start" : thread === null ? "#/" : view === "start" ? `#/start/${name}` : `#/run/${name}/${tab}`;
  return words.size ? `${path}?${words}` : path;
}

export const runHash = (thread) => `#/run/${encodeURIComponent(thread)}`;

let here = placeOf("");

export const currentPlace = () => here;

// What gives the addresses of calls at this place: there are many of them at once.
export function callLinks() {
  const hash = hashOf(here, { call: null });
  const start = `${hash}${hash.includes("?") ? "&" : "?"}call=`;
  return (call) => start + encodeURIComponent(call);
}

let noted = () => {};
let writing = 0; // the timer of an address that is to be replaced

export function setPlace(place) {
  here = place;
  clearTimeout(writing);
}

// Call *see* after each change of how the view is shown.
export function whenNoted(see) {
  noted = see;
}

// Keep how a view is shown. A step (such as a filter) can be undone by going back; what changes
// with every key or pixel (a search, a zoom) replaces the address.
export function note(changes, { isStep = false } = {}) {
  const hash = hashOf(here, changes);
  if (hash === hashOf(here)) return;
  setPlace(placeOf(hash));
  // In the frame of a notebook an address cannot change. Browsers allow only so many changes a second.
  const { history } = window;
  if (isStep && !isReport) history.pushState(null, "", hash);
  else if (!isReport) writing = setTimeout(() => history.replaceState(null, "", hash), 150);
  noted();
}

// The states that a list shows only; none: it shows all.
export function chosenStates() {
  return new Set((here.query.get("state") ?? "").split(",").filter(Boolean));
}

export function toggleState(state) {
  const chosen = chosenStates();
  if (!chosen.delete(state)) chosen.add(state);
  note({ state: [...chosen].join(",") }, { isStep: true });
}
