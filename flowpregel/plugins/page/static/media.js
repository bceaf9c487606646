// Pictures, tables and texts that came out of a call.

import { h } from "./dom.js";
import { count } from "./format.js";
import { markdown } from "./markdown.js";

const cellText = (cell) => (Array.isArray(cell) ? cell[0] : cell === null ? "None" : String(cell));

function tableOf({ columns, rows, shape }) {
  const [height, width] = shape;
  const rest = height > rows.length || width > columns.length;
  return h("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Rows" },
    h("table", null,
      h("thead", null, h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) => (
        h("td", { class: typeof cell === "number" ? "number" : "" }, cellText(cell)))))))),
    rest && h("p", { class: "quiet" }, `${count(height)} rows, ${count(width)} columns`));
}

// A picture is a data URL in an image element: nothing in it is run.
const CONTENTS = {
  picture: ({ url, title }) => h("img", { src: url, alt: title }),
  table: ({ table }) => tableOf(table),
  markdown: ({ text }) => markdown(text),
  text: ({ text }) => h("pre", { tabindex: 0 }, text),
};

export function mediaOf(media) {
  return media.map((medium, at) => h("figure", { key: `${at} ${medium.title}`, class: "media" },
    h("figcaption", { class: "quiet" }, medium.title), CONTENTS[medium.kind](medium)));
}
