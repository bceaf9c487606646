// What the run asks: each question once, with the form that fits it. Answers are collected, and go on
// together with one command.

import { actionButton, h, keepFocus, patch, say, whenReleased } from "./dom.js";
import { markdown } from "./markdown.js";
import { nameOf } from "./model.js";
import { load } from "./source.js";
import { brief, itemsOf, plainOf } from "./values.js";

const MOST_QUESTIONS = 20;
const PROMPTS = ["question", "text", "message", "prompt", "title"];
const OPTIONS = ["options", "choices"];
const PAUSES = ["sleeps_until", "waits_for_signal"];

// A wait for a time or a signal is no question: the head of the run says it.
function isPause(value) {
  const [name, what] = value?.items?.length === 1 ? value.items[0] : [];
  return PAUSES.includes(name) && typeof what === "string";
}

// The part of a JSON schema that describes the values themselves.
function schemaOf(schema, root = schema, depth = 0) {
  if (schema === null || typeof schema !== "object" || depth > 8) return {};
  const name = /^#\/\$defs\/(.+)$/.exec(schema.$ref ?? "")?.[1];
  if (name) return schemaOf(root.$defs?.[name], root, depth + 1);
  const several = schema.anyOf ?? schema.oneOf;
  const kinds = Array.isArray(several) ? several.filter((kind) => kind?.type !== "null") : [];
  if (kinds.length === 1) return { ...schemaOf(kinds[0], root, depth + 1), title: schema.title };
  if (kinds.length && kinds.every((kind) => kind && "const" in kind)) return { ...schema, enum: kinds.map((kind) => kind.const) };
  return schema;
}

// What can be chosen, each with its words and its JSON; null: anything can be answered.
function choicesOf({ value, schema }) {
  const kind = schemaOf(schema);
  if (kind.type === "boolean") return [["Yes", "true"], ["No", "false"]];
  const offered = value?.items?.find(([name, list]) => OPTIONS.includes(name) && Array.isArray(list))?.[1].map(plainOf);
  const options = Array.isArray(kind.enum) ? kind.enum : offered;
  return options?.map((option) => {
    const [label, answer] = option?.constructor === Object && "value" in option ? [option.label ?? option.value, option.value] : [option, option];
    return [typeof label === "string" ? label : JSON.stringify(label), JSON.stringify(answer)];
  }) ?? null;
}

const isNumber = (kind) => kind.type === "integer" || kind.type === "number";
const jsonOfNumber = (text) => (/^-?\d+$/.test(text) ? text : JSON.stringify(Number(text)));

function control(kind, props) {
  if (Array.isArray(kind.enum)) {
    return h("select", props, kind.enum.map((option) => h("option", { value: JSON.stringify(option) }, String(option))));
  }
  if (kind.type === "boolean") return h("input", { ...props, type: "checkbox", required: null });
  if (isNumber(kind)) return h("input", { ...props, type: "number", step: kind.type === "integer" ? 1 : "any" });
  return h("input", { ...props, type: "text", placeholder: kind.type === "string" ? null : "JSON, or text" });
}

function jsonOfField(field, kind) {
  if (Array.isArray(kind.enum)) return field.value;
  if (kind.type === "boolean") return String(field.checked);
  if (isNumber(kind)) return jsonOfNumber(field.value);
  if (kind.type === "string") return JSON.stringify(field.value);
  try {
    JSON.parse(field.value);
    return field.value;
  } catch {
    return JSON.stringify(field.value);
  }
}

export function questionsView({ run, start, isPending }) {
  const element = h("div");
  const answers = new Map(); // collected, by the id of the question
  let questions = [];
  let known = "";
  let isCut = false; // whether there are more questions than are shown
  let isWanted = false; // to send what is collected, once the run has stopped

  async function update() {
    const asking = run.asking();
    // A call comes before its body, which asks the questions of its calls once more.
    asking.sort((a, b) => Boolean(b.text) - Boolean(a.text) || (a.path < b.path ? -1 : 1));
    const rows = asking.slice(0, MOST_QUESTIONS);
    isCut = run.isAskingMore || rows.length < asking.filter((call) => call.text).length;
    const key = rows.map((call) => `${call.id} ${call.questions} ${call.began}`).join();
    if (key !== known) {
      known = key;
      await read(rows).catch((error) => { known = ""; throw error; });
    }
    if (isWanted && answers.size && !isBusy()) send();
    whenReleased(draw);
  }

  async function read(rows) {
    const details = await Promise.all(rows.map((call) => load("call", { thread: run.thread, call: call.id })));
    const byId = new Map();
    for (const { row, questions: asked } of details) {
      asked.forEach((question, at) => {
        const id = question.id ?? `${row.id} ${at}`;
        if (!byId.has(id)) byId.set(id, { ...question, caller: row.text ? nameOf(row) : "" });
      });
    }
    const textOfId = (id) => JSON.stringify(byId.get(id)?.value);
    for (const { id, value } of questions) if (textOfId(id) !== JSON.stringify(value)) answers.delete(id);
    questions = [...byId.values()].filter(({ value }) => !isPause(value));
    const number = questions.filter(isAnswerable).length;
    if (number) say(`The run asks ${number === 1 ? "a question" : `${number} questions`}`);
  }

  const isBusy = () => run.row.status === "running" || ["answer", "resume", "retry"].some(isPending);
  const isAnswerable = (question) => Boolean(question.id);
  const openOnes = () => questions.filter((question) => isAnswerable(question) && !answers.has(question.id));

  function send() {
    isWanted = isBusy();
    if (isWanted) { draw(); return; }
    const list = [...answers].map(([question, answer]) => ({ question, ...answer }));
    start("answer", { answers: list });
  }

  function collect(question, value, text = false) {
    answers.set(question.id, { value, text });
    keepFocus(draw, () => element.querySelector("form input, form select, form button, .send"));
    if (openOnes().length === 0) send();
  }

  function draw() {
    const first = () => document.getElementById("run-title");
    keepFocus(() => patch(element, questions.length > 0 && h("section", { class: "card asks", "aria-labelledby": "asks-title" },
      h("h2", { id: "asks-title" }, titleOf(questions.filter(isAnswerable).length)), questions.map(questionOf),
      isCut && h("p", { class: "quiet" }, "There are more. They are shown when these are answered."),
      answers.size > 0 && sendBar())), first);
  }

  function titleOf(number) {
    return number === 1 ? "It waits for an answer" : `It waits for ${number} answers`;
  }

  function sendBar() {
    const number = `${answers.size} ${answers.size === 1 ? "answer" : "answers"}`;
    const open = openOnes().length;
    return h("p", { class: "answer needs-actions" },
      actionButton({
        class: "main send", onclick: send, isPending: isWanted || isPending("answer"),
        text: `Go on with ${number}`, pendingText: isWanted ? "Sends them when the run stops …" : `Sending ${number} …`,
      }), open > 0 && h("span", { class: "quiet" }, `${open} more ${open === 1 ? "is" : "are"} open.`));
  }

  function questionOf(question, at) {
    const answer = answers.get(question.id);
    return h("div", { key: question.id ?? at, class: "question", role: "group", "aria-label": `Question ${at + 1}` },
      question.caller && h("p", { class: "quiet mono" }, question.caller), textOf(question.value),
      answer ? answeredOf(question, answer) : isAnswerable(question) && formOf(question));
  }

  function answeredOf(question, { value }) {
    const change = () => { answers.delete(question.id); isWanted = false; draw(); };
    return h("p", { class: "answer needs-actions" }, "Your answer: ", h("code", null, value),
      !isPending("answer") && h("button", { type: "button", class: "button", onclick: change }, "Change"));
  }

  function textOf(value) {
    if (typeof value === "string") return markdown(value);
    if (!value?.items) return h("p", { class: "mono" }, brief(value, 2000));
    const prompt = PROMPTS.map((name) => value.items.find(([key, text]) => key === name && typeof text === "string")).find(Boolean);
    const others = value.items.filter((item) => item !== prompt && !OPTIONS.includes(item[0]));
    return [prompt && markdown(prompt[1]), others.length > 0 && itemsOf({ items: others })];
  }

  function formOf(question) {
    const choices = choicesOf(question);
    if (choices) {
      return h("div", { class: "answer needs-actions" }, choices.map(([label, json]) => (
        h("button", { key: json, type: "button", class: "button", onclick: () => collect(question, json) }, label))));
    }
    const kind = schemaOf(question.schema);
    if (kind.type === "object" && kind.properties) return objectForm(question, kind);
    return kind.type === "string" || isNumber(kind) ? valueForm(question, kind) : freeForm(question);
  }

  const submit = () => h("button", { type: "submit", class: "button main" }, "Answer");

  function valueForm(question, kind) {
    const onsubmit = (event) => {
      event.preventDefault();
      collect(question, jsonOfField(event.currentTarget.elements.answer, kind));
    };
    const props = { name: "answer", "aria-label": kind.title ?? "Answer", required: isNumber(kind) };
    return h("form", { class: "answer needs-actions", onsubmit }, control(kind, props), submit());
  }

  function objectForm(question, kind) {
    const fields = Object.entries(kind.properties).map(([name, part]) => [name, schemaOf(part, question.schema)]);
    const required = new Set(kind.required ?? []);
    const onsubmit = (event) => {
      event.preventDefault();
      const { elements } = event.currentTarget;
      const fieldOf = (name) => elements.namedItem(name);
      const given = fields.filter(([name, part]) => part.type === "boolean" || required.has(name) || fieldOf(name).value !== "");
      const parts = given.map(([name, part]) => `${JSON.stringify(name)}: ${jsonOfField(fieldOf(name), part)}`);
      collect(question, `{${parts.join(", ")}}`);
    };
    return h("form", { class: "answer needs-actions", onsubmit }, fields.map(([name, part]) => (
      h("label", { key: name }, `${part.title ?? name} `, control(part, { name, required: required.has(name) })))), submit());
  }

  function freeForm(question) {
    const label = "Answer, as JSON or text";
    const onsubmit = (event) => {
      event.preventDefault();
      const { answer, text } = event.currentTarget.elements;
      collect(question, answer.value, text.checked);
    };
    const quick = (word, json) => h("button", {
      type: "button", class: "button", title: `Answers ${json}`, onclick: () => collect(question, json),
    }, word);
    return h("form", { class: "answer needs-actions", onsubmit },
      h("input", { type: "text", name: "answer", "aria-label": label, placeholder: "JSON, or text" }),
      h("label", null, h("input", { type: "checkbox", name: "text" }), " as text"), submit(), quick("Yes", "true"), quick("No", "false"));
  }

  return { element, update };
}
