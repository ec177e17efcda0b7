"use strict";
// Everything shown is set as text, never as markup: names, reasons and answers come from files, clients and models.
const at = id => document.getElementById(id);
const every_ms = 1000;
let token = sessionStorage.getItem("token") || "";
let shown = "";  // what the form was built from

function element(kind, text, className) {
  const made = document.createElement(kind);
  if (text !== undefined && text !== null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

async function ask(path, options = {}) {
  const headers = {...(options.headers || {}), ...(token ? {Authorization: "Bearer " + token} : {})};
  return fetch(path, {...options, headers, cache: "no-store"});
}

const ms = seconds => seconds === null || seconds === undefined ? "–" : (seconds * 1000).toPrecision(3) + " ms";
const bytes = n => n === null || n === undefined ? "–" : n < 1e6 ? (n / 1e3).toFixed(1) + " kB" : n < 1e9 ? (n / 1e6).toFixed(1) + " MB" : (n / 1e9).toFixed(2) + " GB";
const tone = state => state === "READY" ? "good" : state === "LOADING" ? "wait" : "bad";

function rows(table, list) {
  at(table).tBodies[0].replaceChildren(...list.map(cells => {
    const row = element("tr");
    row.append(...cells);
    return row;
  }));
}

function showModels(models) {
  rows("models", models.map(model => {
    const state = element("td", null, "reason");
    state.append(element("span", model.state, tone(model.state)));
    const more = model.reason || model.finding;
    if (more) state.append(" ", element("small", more));
    const numbers = [model.queued, model.running, model.mean_batch ?? "–", ms(model.p50_s), ms(model.p99_s), bytes(model.memory_bytes), model.replicas, model.answered, model.failed];
    return [element("td", model.name + " " + model.version), state, ...numbers.map(value => element("td", value ?? "–"))];
  }));
}

function showWorkers(workers) {
  rows("workers", workers.map(worker => [
    element("td", worker.number), element("td", worker.device),
    element("td", worker.running ? "runs " + worker.running : worker.ready ? "ready" : "starting", worker.ready ? "good" : "wait"),
    element("td", worker.holds.join(", ") || "–"), element("td", bytes(worker.memory_bytes)),
  ]));
}

function showFindings(findings) {
  at("findings").replaceChildren(...(findings.length ? findings : [{text: "none"}]).map(finding => {
    const item = element("li");
    if (finding.code) item.append(element("strong", finding.code), " ");
    if (finding.model) item.append(element("em", finding.model), ": ");
    item.append(finding.text);
    if (finding.times) item.append(" ", element("small", (finding.times > 1 ? finding.times + " times, last at " : "at ") + new Date(finding.at * 1000).toLocaleTimeString()));
    return item;
  }));
}

function zeros(shape, datatype) {
  if (!shape.length) return datatype === "BYTES" ? "text" : datatype === "BOOL" ? false : 0;
  return Array.from({length: shape[0]}, () => zeros(shape.slice(1), datatype));
}

function count(shape) { return shape.reduce((product, size) => product * size, 1); }

function flat(value) { return Array.isArray(value) ? value.flatMap(flat) : [value]; }

function sizes(value) { return Array.isArray(value) ? [value.length, ...(value.length ? sizes(value[0]) : [])] : []; }

function buildForm(model) {
  const form = at("try");
  form.replaceChildren();
  at("answer").textContent = "";
  if (!model) return;
  if (!model.inputs.length) form.append(element("p", "Nothing is known about the inputs of this model: write them as the protocol has them."));
  const fields = model.inputs.length ? model.inputs : [null];
  for (const input of fields) {
    const label = element("label", input ? `${input.name}: ${input.datatype} [${input.shape.join(", ")}]` : "inputs");
    const area = element("textarea");
    area.spellcheck = false;
    const shape = input ? input.shape.map(size => size === -1 ? 1 : size) : [];
    if (input) area.dataset.name = input.name;
    area.value = input ? (count(shape) <= 4096 ? JSON.stringify(zeros(shape, input.datatype)) : "") : '[{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0, 0]}]';
    label.append(area);
    form.append(label);
  }
  form.append(element("button", "Infer"));
}

function readForm(model) {
  const areas = [...at("try").querySelectorAll("textarea")];
  if (!model.inputs.length) return JSON.parse(areas[0].value);
  return model.inputs.map((input, i) => {
    const value = JSON.parse(areas[i].value);
    return {name: input.name, datatype: input.datatype, shape: sizes(value), data: flat(value)};
  });
}

let models = [];
const chosen = () => models.find(model => model.name + " " + model.version === at("which").value);

function showForm() {
  const described = JSON.stringify(models.map(model => [model.name, model.version, model.inputs]));
  if (described === shown) return;
  shown = described;
  const before = at("which").value;
  at("which").replaceChildren(...models.map(model => element("option", model.name + " " + model.version)));
  if (models.some(model => model.name + " " + model.version === before)) at("which").value = before;
  buildForm(chosen());
}

at("which").addEventListener("change", () => buildForm(chosen()));

at("try").addEventListener("submit", async event => {
  event.preventDefault();
  const model = chosen(), out = at("answer");
  try {
    const inputs = readForm(model);
    const path = `/v2/models/${encodeURIComponent(model.name)}/versions/${encodeURIComponent(model.version)}/infer`;
    const started = performance.now();
    const answer = await ask(path, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({inputs})});
    const text = await answer.text();
    out.className = "scroll" + (answer.ok ? "" : " bad");
    out.textContent = `${answer.status} after ${(performance.now() - started).toFixed(1)} ms\n${text}`;
  } catch (error) {
    out.className = "scroll bad";
    out.textContent = String(error);
  }
});

at("token-form").addEventListener("submit", event => {
  event.preventDefault();
  token = at("token").value;
  sessionStorage.setItem("token", token);
  refresh();
});

let timer = 0;
async function refresh() {
  clearTimeout(timer);
  const state = at("state");
  try {
    const answer = await ask("/status");
    at("token-form").hidden = answer.status !== 401;
    if (!answer.ok) throw new Error((await answer.json()).error);
    const now = await answer.json();
    state.textContent = (now.not_ready || "ready") + ` · up ${Math.round(now.up_s)} s · ${now.restarts} workers replaced · rankwise ${now.version}`;
    state.className = now.not_ready ? "wait" : "good";
    models = now.models;
    showModels(models);
    showWorkers(now.workers);
    showFindings(now.findings);
    showForm();
  } catch (error) {
    state.textContent = String(error.message || error);
    state.className = "bad";
  }
  timer = setTimeout(refresh, every_ms);
}
refresh();
