// Which view is shown: the list of runs, or one run. The address says which.

import { fill, h } from "./dom.js";
import { isReport, load } from "./source.js";
import { showRun } from "./run.js";
import { showRuns } from "./runs.js";

const main = document.getElementById("main");
let shown = null;

// #/  or  #/run/ID/TAB?call=...
function placeOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/");
  const thread = parts[0] === "run" && parts[1] ? decodeURIComponent(parts[1]) : null;
  return { thread, tab: parts[2] || "calls", query: new URLSearchParams(query ?? "") };
}

function route(hash = location.hash) {
  if (hash === "#main") return;
  const place = placeOf(hash);
  if (shown && shown.thread === place.thread) {
    shown.go(place);
    return;
  }
  const isFirst = shown === null;
  shown?.close();
  document.title = place.thread === null ? "flowpregel" : `${place.thread} · flowpregel`;
  const view = place.thread === null ? showRuns() : showRun(place.thread);
  shown = { ...view, thread: place.thread };
  fill(main, view.element);
  view.go(place);
  // Who reads with the ears begins at the new content; at first at the head.
  if (!isFirst) main.focus({ preventScroll: true });
}

async function start() {
  // The secret is in a cookie from now on, and has no business in an address.
  if (!isReport && location.search) history.replaceState(null, "", location.pathname + location.hash);
  try {
    const { store, actions, runs } = await load("runs");
    document.body.classList.toggle("actions", Boolean(actions));
    fill(document.getElementById("store"), store);
    if (isReport) {
      // In the frame of a notebook an address cannot change.
      document.addEventListener("click", (event) => {
        const link = event.target.closest?.('a[href^="#/"]');
        if (!link) return;
        event.preventDefault();
        route(link.getAttribute("href"));
      });
      route(`#/run/${encodeURIComponent(runs[0].thread_id)}`);
      return;
    }
    window.addEventListener("hashchange", () => route());
    route();
  } catch (error) {
    fill(main, h("p", { class: "problem", role: "alert" }, String(error.message ?? error)));
  }
}

start();
