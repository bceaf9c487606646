// Which view is shown: the list of runs, or one run. The address says which.

import { compareHash, showCompare } from "./compare.js";
import { fill, h } from "./dom.js";
import { offerNotices } from "./notify.js";
import { placeOf, runHash, setPlace } from "./place.js";
import { comparison, ConnectionLost, isReport, load } from "./source.js";
import { follow, setRestartLine } from "./stream.js";
import { showRun } from "./run.js";
import { showRuns } from "./runs.js";
import { showStart } from "./start.js";

const main = document.getElementById("main");
let shown = null;

function route(hash = location.hash) {
  const place = placeOf(hash);
  setPlace(place);
  if (shown && shown.thread === place.thread && shown.view === place.view) {
    shown.go(place);
    return;
  }
  const isFirst = shown === null;
  shown?.close();
  const shownView = { runs: showRuns, run: showRun, start: showStart, compare: showCompare }[place.view](place.thread);
  shown = { ...shownView, thread: place.thread, view: place.view };
  fill(main, shownView.element);
  shownView.go(place);
  // Who reads with the ears begins at the new content; at first at the head.
  if (!isFirst) main.focus({ preventScroll: true });
}

// In the frame of a notebook an address cannot change, and elsewhere it keeps the view.
function onLink(event) {
  const href = event.target.closest?.("a")?.getAttribute("href") ?? "";
  if (href === "#main") {
    event.preventDefault();
    main.focus();
  } else if (isReport && href.startsWith("#/")) {
    event.preventDefault();
    route(href);
  }
}

// The page of the first store is at the root, the others are below it.
function storeSwitch(stores, current) {
  const root = current === stores[0] ? "./" : "../../";
  return h("nav", { "aria-label": "Stores" }, stores.map((name, at) => (
    h("a", { key: name, href: at ? `${root}stores/${name}/#/` : `${root}#/`, "aria-current": name === current ? "page" : null }, name))));
}

async function begin() {
  const { store, actions, runs, restart, stores, name } = await load("runs");
  document.body.classList.toggle("actions", Boolean(actions));
  fill(document.getElementById("store"), stores?.length > 1 ? storeSwitch(stores, name) : store);
  if (isReport) {
    route(comparison ? compareHash({ a: comparison.a.run, b: comparison.b.run }) : runHash(runs[0].thread_id));
    return;
  }
  setRestartLine(restart);
  offerNotices();
  window.addEventListener("hashchange", () => route());
  route();
}

async function start() {
  try {
    await begin();
  } catch (error) {
    if (error instanceof ConnectionLost) {
      // The news show the banner. The first news that come from the store begin the page.
      const stop = follow(null, () => {
        stop();
        start();
      });
    } else {
      fill(main, h("p", { class: "problem", role: "alert" }, String(error.message ?? error)));
    }
  }
}

// The secret is in a cookie from now on, and has no business in an address.
if (!isReport && location.search) history.replaceState(null, "", location.pathname + location.hash);
document.addEventListener("click", onLink);
start();
