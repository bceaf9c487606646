// The buttons that choose the states which a list shows.

import { badge, h } from "./dom.js";
import { count } from "./format.js";
import { chosenStates, toggleState } from "./place.js";

export function stateChips(states, numberOf, onToggle) {
  const chosen = chosenStates();
  return states.map((state) => h("button", {
    key: state, type: "button", class: `chip ${state}`, "data-state": state, "aria-pressed": String(chosen.has(state)),
    onclick: () => { toggleState(state); onToggle(); },
  }, badge(state), h("span", { class: "number" }, count(numberOf(state)))));
}
