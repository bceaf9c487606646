// The terms of the search for calls, beside its field. A press on one adds it to the search.

import { h } from "./dom.js";

const TERMS = [
  ["timeout", "a word in the call or in its error"],
  ['"out of memory"', "words with spaces"],
  ["state:failed", "also done, running, waiting, unfinished"],
  ["task:train", "a part of the name of the task"],
  ["error:ValueError", "a part of the error"],
  ["depth:>8", "an argument, a metric or a field of the result; also <, <=, >=, ="],
  ["took:>250ms", "seconds, or with ms, s, m, h; cpu: too"],
  ["memory:>1gb", "peak memory in bytes, or with kb, mb, gb"],
  ["tries:>1", "the number of attempts; also worker:, host:, step:"],
  ["-state:done", "a minus leaves out what matches"],
];

export function searchTerms(onAdd) {
  return h("details", { class: "terms" }, h("summary", null, "Search terms"),
    h("dl", null, TERMS.map(([term, text]) => h("div", { key: term },
      h("dt", null, h("button", { type: "button", class: "button small mono", onclick: () => onAdd(term) }, term)), h("dd", null, text)))),
    h("p", { class: "quiet" }, "All terms must match. More: ", h("code", null, 'flowpregel docs "use-the-page#search-terms"')));
}
