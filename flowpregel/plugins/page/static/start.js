// The form that starts a run: a field for each parameter of the flow, with its default, or with the value
// with which another run began. The server asks a command for the fields, since it runs no user code.

import { actionButton, h, markTab, patch, say } from "./dom.js";
import { currentPlace, hashOf, runHash } from "./place.js";
import { load, post } from "./source.js";
import { follow } from "./stream.js";

const NONE = ""; // the choice of no value
const PLAIN = /^[\w@%+=:,./-]+$/;
const INTEGER = /^\s*-?\d+\s*$/;
const PROBLEM = /^ {2}([\w.]+): (.*)$/; // a line of the command about one field

const quoted = (word) => (PLAIN.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);
const isGroup = (field) => field.kind === "group";

// The fields that are no groups, each with its whole name, such as params.depth.
function leavesOf(fields, prefix = "") {
  return fields.flatMap((field) => (isGroup(field) ? leavesOf(field.fields, `${prefix}${field.name}.`) : [[`${prefix}${field.name}`, field]]));
}

function valueAt(values, path) {
  return path.split(".").reduce((value, name) => (value !== null && typeof value === "object" ? value[name] : undefined), values);
}

// The default of a field, of which a group may have the values of all its fields.
function defaultOf(fields, path) {
  const [name, ...rest] = path.split(".");
  const field = fields.find((each) => each.name === name);
  if (!rest.length) return field.is_required ? undefined : field.default;
  const whole = valueAt(field.default, rest.join("."));
  return whole === undefined ? defaultOf(field.fields, rest.join(".")) : whole;
}

function textOf(field, value) {
  if (value === undefined || value === null) return "";
  if (field.kind === "choice" || field.kind === "json") return JSON.stringify(value);
  return String(value);
}

class WrongValue extends Error {}

// What was entered, as JSON; null: the default is taken.
function jsonOf(field, control) {
  const text = field.kind === "boolean" ? String(control.checked) : control.value;
  if (text.trim() === "" && (field.kind !== "text" || field.is_optional)) {
    if (field.is_optional) return "null";
    if (!field.is_required) return null;
    throw new WrongValue("A value is needed");
  }
  if (field.kind === "integer" && !INTEGER.test(text)) throw new WrongValue("Must be a whole number");
  if (field.kind === "integer") return BigInt(text.trim()).toString();
  if (field.kind === "number") {
    if (!Number.isFinite(Number(text))) throw new WrongValue("Must be a number");
    return JSON.stringify(Number(text));
  }
  if (field.kind === "text") return JSON.stringify(text);
  try {
    JSON.parse(text);
  } catch {
    throw new WrongValue('Must be JSON, such as [1, 2] or "text"');
  }
  return text;
}

// The object of all values, as JSON. What is wrong is told to *see*, by the name of the field.
function jsonOfFields(fields, controls, see, prefix = "") {
  const parts = fields.map((field) => {
    const path = `${prefix}${field.name}`;
    if (isGroup(field)) return [field.name, jsonOfFields(field.fields, controls, see, `${path}.`)];
    try {
      return [field.name, jsonOf(field, controls.namedItem(path))];
    } catch (error) {
      see(path, error.message);
      return [field.name, null];
    }
  });
  return `{${parts.filter(([, json]) => json !== null).map(([name, json]) => `${JSON.stringify(name)}: ${json}`).join(", ")}}`;
}

export function showStart(thread) {
  const head = h("div", { class: "head" });
  const form = h("form", { class: "card start", novalidate: true, oninput: () => draw(), onsubmit: (event) => { event.preventDefault(); start("run"); } });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const element = h("section", { "aria-labelledby": "start-title" },
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "← All runs")), head, problem, form);
  let signature = null;
  let problems = new Map();
  let underWay = null; // the action that was pressed, and the id of its run
  let fillings = 0; // fields that are filled anew are other fields
  let filled = {};
  let stop = () => {};
  let isClosed = false;
  const flow = currentPlace().query.get("flow");
  const source = thread === null ? { flow } : { thread };

  const title = (text) => h("h1", { id: "start-title", tabindex: "-1" }, text);
  patch(head, title("New run"), h("p", { class: "quiet" }, "Asking the flow for its parameters …"));
  markTab(null, "New run");

  async function read() {
    try {
      signature = await post("form", source);
      fill(currentPlace().query.get("values") === "defaults" ? {} : signature.values);
      markTab(null, `New run of ${signature.name}`);
    } catch (error) {
      patch(head, title("New run"));
      fail(error.message);
    }
  }

  function fill(values) {
    filled = values;
    fillings += 1;
    problems = new Map();
    draw();
  }

  function fail(text) {
    problem.hidden = false;
    patch(problem, h("span", { class: "lines" }, String(text)));
  }

  const idOf = (path) => `field ${path}`.replaceAll(/[ .]/g, "-");

  function startValueOf(path) {
    const value = valueAt(filled, path);
    return value === undefined ? defaultOf(signature.fields, path) : value;
  }

  function controlOf(path, field) {
    const value = startValueOf(path);
    const text = textOf(field, value);
    const wrong = problems.has(path);
    const props = {
      key: `${path} ${fillings}`, id: idOf(path), name: path, "aria-invalid": wrong ? "true" : null,
      "aria-describedby": wrong ? `${idOf(path)}-problem` : null, "aria-required": field.is_required && !field.is_optional ? "true" : null,
    };
    if (field.kind === "boolean") return h("input", { ...props, type: "checkbox", checked: value === true });
    if (field.kind === "choice") {
      const none = (field.is_optional || value === undefined) && h("option", { value: NONE, selected: text === "" }, field.is_optional ? "(none)" : "");
      return h("select", props, none, field.choices.map(([label, choice]) => (
        h("option", { value: JSON.stringify(choice), selected: JSON.stringify(choice) === text }, label))));
    }
    if (field.kind === "json") return h("textarea", { ...props, rows: Math.min(8, 1 + text.length / 60), spellcheck: "false" }, text);
    const isNumber = field.kind === "integer" || field.kind === "number";
    return h("input", { ...props, type: "text", inputmode: isNumber ? "decimal" : null, value: text });
  }

  function problemOf(path) {
    return problems.has(path) && h("p", { id: `${idOf(path)}-problem`, class: "error" }, problems.get(path));
  }

  function rowOf(path, field) {
    return h("div", { key: path, class: "field" }, h("label", { for: idOf(path) }, field.name), controlOf(path, field),
      h("span", { class: "quiet mono" }, field.type), problemOf(path));
  }

  function rowsOf(fields, prefix = "") {
    return fields.map((field) => (isGroup(field)
      ? h("fieldset", { key: `${prefix}${field.name}` }, h("legend", null, field.name, " ", h("span", { class: "quiet mono" }, field.type)),
        problemOf(`${prefix}${field.name}`), rowsOf(field.fields, `${prefix}${field.name}.`))
      : rowOf(`${prefix}${field.name}`, field)));
  }

  function valuesNow(see) {
    return jsonOfFields(signature.fields, form.elements, see);
  }

  function commandLine(action) {
    const words = ["flowpregel", action, signature.flow, signature.option, valuesNow(() => {}), "--id", form.elements.id.value];
    if (signature.folder) words.push("--folder", signature.folder);
    words.push("--store", signature.store);
    return words.map(quoted).join(" ");
  }

  function draw() {
    if (isClosed) return;
    const { name, doc, option, id } = signature;
    const isEmpty = Object.keys(filled).length === 0;
    patch(head, title(`New run of ${name}`), h("p", { class: "quiet mono" }, signature.flow), doc && h("p", { class: "lines" }, doc),
      thread !== null && h("p", null, h("button", { key: "fill", type: "button", class: "button", onclick: () => fill(isEmpty ? signature.values : {}) },
        isEmpty ? `Fill in the values of ${thread}` : "Fill in the defaults")));
    const button = (action, text, pendingText, props) => actionButton({
      key: action, text, pendingText, isPending: underWay?.action === action, ...props });
    patch(form, rowsOf(signature.fields),
      h("div", { key: "id of the run", class: "field" }, h("label", { for: "field-id" }, "Id of the run"),
        h("input", { key: "id", id: "field-id", name: "id", type: "text", value: id, required: true,
          "aria-invalid": problems.has("id") ? "true" : null, "aria-describedby": problems.has("id") ? "field-id-problem" : null }), problemOf("id")),
      h("p", { key: "buttons", class: "answer" }, button("run", "Start now", "Starting …", { type: "submit", class: "main" }),
        option === "--arguments" && button("enqueue", "Enqueue", "Enqueuing …", { onclick: () => start("enqueue") })),
      h("p", { key: "line", class: "quiet" }, "The same in a terminal:"), h("pre", { key: "command", tabindex: 0, lazy: true }));
    patch(form.querySelector("pre"), commandLine(underWay?.action ?? "run"));
  }

  // Show what is wrong, and lead to the first of it.
  function refuse(found) {
    problems = found;
    underWay = null;
    draw();
    form.querySelector("[aria-invalid]")?.focus();
    if (found.size) say(`${found.size} ${found.size === 1 ? "value" : "values"} cannot be used`);
  }

  async function runOf(id) {
    const { runs } = await load("runs", { q: id });
    return runs.some((run) => run.thread_id === id);
  }

  async function start(action) {
    if (underWay) return;
    problem.hidden = true;
    const found = new Map();
    const values = valuesNow((path, text) => found.set(path, text));
    const id = form.elements.id.value.trim();
    if (!id) found.set("id", "A value is needed");
    if (found.size) { refuse(found); return; }
    underWay = { action, id };
    problems = new Map();
    draw();
    try {
      if (await runOf(id)) { refuse(new Map([["id", "There is a run with this id already"]])); return; }
      const { number } = await post("start", { ...source, action, name: id, option: signature.option, values });
      stop();
      stop = follow(id, ({ commands }) => see(id, commands.find((command) => command.number === number)));
    } catch (error) {
      underWay = null;
      draw();
      fail(error.message);
    }
  }

  // Go to the run once it is there. A command that ends before has found something wrong.
  async function see(id, command) {
    if (!command || isClosed || underWay?.id !== id) return;
    if (await runOf(id)) {
      if (!isClosed) location.hash = runHash(id);
      return;
    }
    if (command.code === null || underWay?.id !== id) return;
    stop();
    const lines = command.output.split("\n").map((line) => PROBLEM.exec(line)).filter(Boolean);
    const names = new Set(leavesOf(signature.fields).map(([path]) => path));
    const found = new Map(lines.map(([, path, text]) => [fieldFor(path, names), text]));
    if (!found.size || lines.some(([, path]) => !fieldFor(path, names))) fail(command.output);
    refuse(found);
  }

  // A problem may be about a part of a field, such as tags.0, or about a whole group.
  function fieldFor(path, names) {
    const parts = path.split(".");
    while (parts.length && !names.has(parts.join("."))) parts.pop();
    return parts.join(".") || path;
  }

  read();
  return { element, go() {}, close() { isClosed = true; stop(); } };
}

// The address of the form for a flow that the command has offered.
export const offerHash = (flow) => hashOf({ thread: null, view: "start", query: new URLSearchParams() }, { flow });

// The address of the form for a run like another run.
export const startHash = (thread, values = null) => hashOf({ thread, view: "start", query: new URLSearchParams() }, { values });
