// What is wrong: the failed calls by kind of error, with what only they have, and the button that
// tries one kind again.

import { actionButton, h, patch, whenReleased } from "./dom.js";
import { count } from "./format.js";
import { currentPlace, hashOf } from "./place.js";
import { load } from "./source.js";

const ERRORS_PERIOD = 1500; // milliseconds between two requests, while a run goes on

export function errorsView({ run, start, isPending }) {
  const element = h("div");
  let kinds = [];
  let more = 0;
  let known = null;
  let asked = 0;
  let isBusy = false;
  let timer = 0;

  async function update() {
    whenReleased(draw);
    const version = run.counts.failed ? `${run.version} ${run.counts.failed}` : "none";
    if (isBusy || version === known || !element.isConnected) return;
    const rest = asked + ERRORS_PERIOD - Date.now();
    if (rest > 0) {
      timer ||= setTimeout(() => { timer = 0; update().catch(() => {}); }, rest);
      return;
    }
    isBusy = true;
    asked = Date.now();
    try {
      const answer = version === "none" ? { kinds: [] } : await load("errors", { thread: run.thread });
      if (answer.is_behind) asked = 0;
      else {
        known = version;
        ({ kinds, more = 0 } = answer);
      }
      whenReleased(draw);
    } finally {
      isBusy = false;
    }
    if (known !== version) await update();
  }

  function draw() {
    patch(element, kinds.length > 0 && h("section", { class: "card", "aria-labelledby": "errors-title" },
      h("h2", { id: "errors-title" }, "Errors, by kind"), h("ul", { class: "kinds" }, kinds.map(kindOf)),
      more > 0 && h("p", { class: "quiet" }, `${count(more)} more kinds are not shown.`)));
  }

  // The search finds the words that all errors of the kind have.
  function kindOf(kind) {
    const [type, ...message] = kind.error.split(": ");
    const words = kind.pattern.split("#")[0].trim();
    const href = hashOf({ ...currentPlace(), tab: "calls" }, { state: "failed", q: words, call: null });
    const number = kind.count === 1 ? "it" : count(kind.count);
    return h("li", { key: `${kind.task} ${kind.pattern}` },
      h("span", { class: "number" }, count(kind.count)),
      h("span", { class: "kind" }, h("a", { href }, h("strong", null, type), message.length > 0 && ` ${message.join(": ")}`),
        kind.condition && h("span", { class: "condition" }, ` ${kind.condition}`)),
      h("span", { class: "mono quiet" }, kind.task),
      h("span", { class: "needs-actions" }, actionButton({
        text: `Try ${number} again`, pendingText: "Trying again …", isPending: isPending("retry"),
        onclick: () => start("retry", { task: kind.task, error: kind.pattern }),
      })));
  }

  return { element, update };
}
