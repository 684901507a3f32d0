"use strict";
// One conversation, kept in memory: a list of messages as the API takes them, and what belongs to
// their display. Everything the model writes reaches the page as text nodes, never as HTML.

const $ = (id) => document.getElementById(id);
const api = (path) => new URL(path, document.baseURI.replace(/[^/]*$/, ""));
const el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

const SCHEMA = `{
  "type": "object",
  "properties": {
    "city": { "type": "string" },
    "country": { "type": "string" }
  },
  "required": ["city", "country"],
  "additionalProperties": false
}`;
const TOOLS = `[{
  "type": "function",
  "function": {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
      "type": "object",
      "properties": { "city": { "type": "string" } },
      "required": ["city"]
    }
  }
}]`;
const TRIES = ["What is the capital of France?", "Name three fruits.", "What is 12 + 30?"];

// ---------------------------------------------------------------- Markdown

const INLINE = [
  [/^`([^`\n]+)`/, (m) => el("code", {}, m[1])],
  [/^\*\*(?=\S)([^\n]+?)\*\*/, (m) => el("strong", {}, ...inline(m[1]))],
  [/^\*(?=[^\s*])([^*\n]+)\*/, (m) => el("em", {}, ...inline(m[1]))],
  [/^~~(?=\S)([^\n]+?)~~/, (m) => el("s", {}, ...inline(m[1]))],
  [/^\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/, (m) => link(m[2], m[1])],
  [/^https?:\/\/[^\s<>()]*[^\s<>().,;:!?]/, (m) => link(m[0], m[0])],
];
const link = (href, text) => el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, text);

function inline(text) {
  const nodes = [];
  let plain = "";
  for (let at = 0; at < text.length; ) {
    const special = "`*~[h".includes(text[at]);
    const found = special && INLINE.map(([form, make]) => [form.exec(text.slice(at, at + 4000)), make]).find(([match]) => match);
    if (!found) { plain += text[at++]; continue; }
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(found[1](found[0]));
    at += found[0][0].length;
  }
  if (plain) nodes.push(plain);
  return nodes;
}

function codeBlock(language, lines) {
  const copy = el("button", { type: "button", onclick: (event) => copied(event.target, lines.join("\n")) }, "Copy");
  return el("div", { class: "block" }, el("div", { class: "bar" }, el("span", {}, language || "code"), copy),
    el("pre", { tabindex: "0" }, el("code", {}, lines.join("\n"))));
}

const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const LIST = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

function list(lines) {
  // Items deeper than the first belong to a list within the item before them.
  const first = LIST.exec(lines[0]);
  const numbered = /\d/.test(first[2]);
  const node = el(numbered ? "ol" : "ul", { start: numbered ? parseInt(first[2], 10) : null });
  for (let i = 0; i < lines.length; ) {
    const own = LIST.exec(lines[i++]);
    const inner = [];
    while (i < lines.length && (!LIST.test(lines[i]) || LIST.exec(lines[i])[1].length > first[1].length)) inner.push(lines[i++]);
    const from = inner.findIndex((line) => LIST.test(line));
    const more = (from < 0 ? inner : inner.slice(0, from)).map((line) => " " + line.trim()).join("");
    node.append(el("li", {}, ...inline(own[3] + more), from < 0 ? null : list(inner.slice(from))));
  }
  return node;
}

function markdown(text) {
  const lines = text.split("\n");
  const nodes = [];
  for (let i = 0; i < lines.length; ) {
    const line = lines[i];
    let match;
    if ((match = /^\s*(```+|~~~+)\s*([\w+#.-]*)/.exec(line))) {
      const code = [];
      for (i++; i < lines.length && !lines[i].trim().startsWith(match[1]); i++) code.push(lines[i]);
      i++;
      nodes.push(codeBlock(match[2], code));
    } else if ((match = /^(#{1,4})\s+(.*)/.exec(line))) {
      nodes.push(el("h" + match[1].length, {}, ...inline(match[2])));
      i++;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      nodes.push(el("hr"));
      i++;
    } else if (/^\s*>/.test(line)) {
      const quoted = [];
      while (i < lines.length && /^\s*>/.test(lines[i])) quoted.push(lines[i++].replace(/^\s*> ?/, ""));
      nodes.push(el("blockquote", {}, ...markdown(quoted.join("\n"))));
    } else if (LIST.test(line)) {
      const items = [];
      while (i < lines.length && (LIST.test(lines[i]) || (/^\s+\S/.test(lines[i]) && items.length))) items.push(lines[i++]);
      nodes.push(list(items));
    } else if (line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[i + 1] ?? "") && (lines[i + 1] ?? "").includes("|")) {
      const rows = [];
      const head = cells(line);
      for (i += 2; i < lines.length && lines[i].includes("|"); i++) rows.push(cells(lines[i]));
      nodes.push(el("div", { class: "wide", tabindex: "0" }, el("table", {},
        el("thead", {}, el("tr", {}, ...head.map((cell) => el("th", { scope: "col" }, ...inline(cell))))),
        el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, ...inline(cell)))))))));
    } else if (!line.trim()) {
      i++;
    } else {
      const paragraph = [line];
      const ends = /^\s*(```|~~~|#{1,4}\s|>|$)/;
      for (i++; i < lines.length && !ends.test(lines[i]) && !LIST.test(lines[i]); i++) paragraph.push(lines[i]);
      nodes.push(el("p", {}, ...paragraph.flatMap((each, n) => (n ? [el("br"), ...inline(each)] : inline(each)))));
    }
  }
  return nodes;
}

async function copied(button, text) {
  await navigator.clipboard?.writeText(text);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1200);
}

// ---------------------------------------------------------------- the conversation

let turns = []; // {message, thought, stats, failed}: message as the API takes it
let running = null; // AbortController of the answer that is being written

const mode = () => document.querySelector('input[name="mode"]:checked').value;
const headers = () => ({
  "content-type": "application/json",
  ...($("key").value ? { authorization: `Bearer ${$("key").value}` } : {}),
});

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function parsed(id, name) {
  try { return JSON.parse($(id).value); } catch (error) { throw new Error(`${name} is not valid JSON: ${error.message}`); }
}

function body() {
  const messages = turns.map((turn) => turn.message);
  if ($("system").value.trim()) messages.unshift({ role: "system", content: $("system").value });
  const made = { model: $("model").value, messages, stream: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"])
    if ($(name).value !== "") made[name] = Number($(name).value);
  const stops = $("stops").value.split("\n").filter(Boolean);
  if (stops.length) made.stop = stops;
  if (mode() === "schema")
    made.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: parsed("schema", "The schema") } };
  if (mode() === "tools") made.tools = parsed("tools", "The list of tools");
  return made;
}

function apply(turn, delta) {
  const message = turn.message;
  if (delta.content) message.content = (message.content ?? "") + delta.content;
  if (delta.reasoning_content) turn.thought = (turn.thought ?? "") + delta.reasoning_content;
  for (const part of delta.tool_calls ?? []) {
    message.tool_calls ??= [];
    const call = (message.tool_calls[part.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    call.id ||= part.id ?? "";
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
  }
}

async function* events(response) {
  const decoder = new TextDecoder();
  let rest = "";
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    rest += decoder.decode(value ?? new Uint8Array(), { stream: !done });
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
    if (done) return;
  }
}

async function problem(response) {
  const text = await response.text();
  try { return JSON.parse(text).error.message; } catch { return `${response.status} ${response.statusText}`; }
}

async function answer() {
  notice("");
  const turn = { message: { role: "assistant", content: "" } };
  let asked;
  try { asked = body(); } catch (error) { return notice(error.message); }
  turns.push(turn);
  const control = (running = new AbortController());
  render();
  const node = $("chat").lastElementChild;
  const began = performance.now();
  let first = null, drawn = false;
  const draw = () => { drawn = false; if (turns.includes(turn)) fill(node, turn); follow(); };
  try {
    const response = await fetch(api("v1/chat/completions"), { method: "POST", headers: headers(), body: JSON.stringify(asked), signal: control.signal });
    if (!response.ok) throw new Error(await problem(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) turn.usage = event.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      first ??= performance.now();
      apply(turn, choice.delta ?? {});
      if (choice.finish_reason) turn.reason = choice.finish_reason;
      if (!drawn) { drawn = true; requestAnimationFrame(draw); }
    }
  } catch (error) {
    if (error.name === "AbortError") turn.reason = "stopped";
    else turn.failed = error.message;
  }
  const seconds = (performance.now() - (first ?? began)) / 1000;
  const tokens = turn.usage?.completion_tokens;
  const cached = turn.usage?.prompt_tokens_details?.cached_tokens;
  turn.stats = [
    tokens && `${tokens} tokens`,
    tokens > 1 && seconds > 0.05 && `${Math.round((tokens - 1) / seconds)}/s`, // else all came as one
    first && `first after ${Math.round(first - began)} ms`, cached && `${cached} cached`,
    turn.reason && !["stop", "tool_calls"].includes(turn.reason) && turn.reason,
  ].filter(Boolean).join(" · ");
  if (!turn.message.tool_calls?.length) delete turn.message.tool_calls;
  else if (!turn.message.content) turn.message.content = null;
  if (running === control) running = null;
  render();
  const result = document.querySelector(".call textarea");
  (result ?? $("prompt")).focus();
}

function send(text) {
  if (running || !text.trim()) return;
  while (turns.length && (turns.at(-1).failed || unanswered().length)) turns.pop();
  turns.push({ message: { role: "user", content: text } });
  $("prompt").value = "";
  grow();
  answer();
}

function stop() { running?.abort(); }

function unanswered() {
  // The calls of the last answer that have no result yet.
  const at = turns.findLastIndex((turn) => turn.message.role === "assistant");
  const calls = at < 0 || turns.slice(at + 1).some((turn) => turn.message.role === "user") ? [] : turns[at].message.tool_calls ?? [];
  const answered = turns.slice(at + 1).map((turn) => turn.message.tool_call_id);
  return calls.filter((call) => !answered.includes(call.id));
}

function resolve(call, text) {
  turns.push({ message: { role: "tool", tool_call_id: call.id, content: text } });
  if (unanswered().length) render(); else answer();
}

function again(turn) {
  if (running) return;
  turns.length = turns.indexOf(turn);
  answer();
}

function edit(turn, node) {
  if (running) return;
  const area = el("textarea", { rows: "3", "aria-label": "Edited message" });
  area.value = turn.message.content;
  const save = () => { turns.length = turns.indexOf(turn); send(area.value); };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); save(); }
    if (event.key === "Escape") { event.stopPropagation(); render(); $("prompt").focus(); }
  });
  node.replaceChildren(el("div", { class: "edit" }, area, el("div", { class: "tools" },
    el("button", { type: "button", onclick: save }, "Send"), el("button", { type: "button", onclick: render }, "Cancel"))));
  area.focus();
}

// ---------------------------------------------------------------- drawing

const NAMES = { user: "You", assistant: "Answer", tool: "Tool result" };

function drawCall(call, open) {
  let shown = call.function.arguments;
  try { shown = JSON.stringify(JSON.parse(shown), null, 2); } catch { /* still being written */ }
  const node = el("div", { class: "call", role: "group", "aria-label": `Call of ${call.function.name}` }, el("b", {}, call.function.name), el("pre", {}, shown));
  if (open) {
    const area = el("textarea", { rows: "2", class: "code", "aria-label": `Result of ${call.function.name}`, placeholder: "Type what the tool returns" });
    const done = () => resolve(call, area.value);
    area.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); done(); } });
    node.append(el("div", { class: "answer" }, area, el("button", { type: "button", onclick: done }, "Return")));
  }
  return node;
}

function fill(node, turn) {
  const { message } = turn;
  const active = running && turn === turns.at(-1);
  const content = el("div", { class: "body" });
  if (message.role === "assistant") content.append(...markdown(message.content ?? ""));
  else content.textContent = message.content;
  if (active) (content.lastElementChild?.matches("p, ul, ol, h1, h2, h3, h4") ? content.lastElementChild : content).classList.add("caret");
  if (turn.failed) content.append(el("p", { class: "failed" }, turn.failed));
  const open = running ? [] : unanswered();
  const calls = (message.tool_calls ?? []).filter(Boolean).map((call) => drawCall(call, open.includes(call)));
  const tools = el("div", { class: "tools" });
  if (!active && message.role === "assistant") {
    tools.append(el("button", { type: "button", onclick: () => again(turn) }, "Regenerate"));
    if (message.content) tools.append(el("button", { type: "button", onclick: (event) => copied(event.target, message.content) }, "Copy"));
    tools.append(el("span", { class: "quiet" }, turn.stats ?? ""));
  } else if (message.role === "user") tools.append(el("button", { type: "button", onclick: () => edit(turn, node) }, "Edit"));
  const thought = turn.thought && el("details", { class: "thought" }, el("summary", {}, "Thoughts"), turn.thought);
  if (thought && (active || node.querySelector("details[open]"))) thought.open = true;
  node.replaceChildren(el("div", { class: "who" }, NAMES[message.role]), ...(thought ? [thought] : []), content, ...calls, tools);
}

function follow() {
  const chat = $("chat");
  if (chat.scrollHeight - chat.scrollTop - chat.clientHeight < 160) chat.scrollTop = chat.scrollHeight;
}

function render() {
  const chat = $("chat");
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  chat.setAttribute("aria-busy", String(Boolean(running)));
  if (!turns.length) {
    const tries = TRIES.map((text) => el("button", { type: "button", onclick: () => send(text) }, text));
    chat.replaceChildren(el("div", { class: "empty" }, el("h2", {}, "What shall it answer?"),
      el("p", { class: "quiet" }, "Everything stays on this server."), el("div", { class: "tries" }, ...tries)));
    return;
  }
  chat.replaceChildren(...turns.map((turn) => {
    const node = el("article", { class: `turn ${turn.message.role}`, "aria-label": NAMES[turn.message.role] });
    fill(node, turn);
    return node;
  }));
  chat.scrollTop = chat.scrollHeight;
}

// ---------------------------------------------------------------- the live view

const samples = []; // tokens per second, one a second
let before = null;

function total(text, name, wanted = "") {
  let sum = 0, seen = false;
  for (const line of text.split("\n"))
    if (line.startsWith(name) && (line[name.length] === "{" || line[name.length] === " ") && line.includes(wanted)) {
      sum += Number(line.slice(line.lastIndexOf(" ")));
      seen = true;
    }
  return seen ? sum : null;
}

function read(text) {
  return {
    at: performance.now() / 1000,
    tokens: total(text, "pyengine_generation_tokens_total"),
    running: total(text, "pyengine_requests_running"),
    waiting: total(text, "pyengine_requests_waiting"),
    cache: total(text, "pyengine_kv_cache_usage_ratio"),
    accepted: total(text, "pyengine_draft_tokens_total", 'outcome="accepted"'),
    rejected: total(text, "pyengine_draft_tokens_total", 'outcome="rejected"'),
    busy: total(text, "pyengine_device_busy_seconds_total"),
    idle: total(text, "pyengine_idle_seconds_total"),
    wall: total(text, "pyengine_accounted_seconds_total"),
    overhead: total(text, "pyengine_cpu_overhead_ratio"),
  };
}

const percent = (share) => (share === null || !isFinite(share) ? "–" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`);

function show(now) {
  if (before && now.tokens !== null) {
    const grown = now.tokens - before.tokens;
    samples.push(grown < 0 ? 0 : grown / Math.max(now.at - before.at, 0.001));
    if (samples.length > 120) samples.shift();
    $("m-rate").textContent = Math.round(samples.at(-1)).toLocaleString("en");
    const busy = now.busy - before.busy, work = now.wall - before.wall - (now.idle - before.idle);
    $("m-cpu").textContent = busy > 0.005 ? percent(Math.max(0, work / busy - 1)) : percent(now.overhead);
  }
  const drafted = (now.accepted ?? 0) + (now.rejected ?? 0);
  $("m-running").textContent = now.running ?? "–";
  $("m-waiting").textContent = now.waiting ?? "–";
  $("m-cache").textContent = percent(now.cache);
  $("m-drafts").textContent = drafted ? percent(now.accepted / drafted) : "–";
  before = now;
  const most = Math.max(1, ...samples);
  const points = samples.map((value, i) => `${(240 - 2 * (samples.length - 1 - i)).toFixed(1)} ${(46 - 42 * (value / most)).toFixed(1)}`);
  document.querySelector("#spark .line").setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
  document.querySelector("#spark .area").setAttribute("d", points.length > 1 ? `M${points.join("L")}L240 48L${240 - 2 * (points.length - 1)} 48Z` : "");
}

async function watch() {
  if (!document.hidden) {
    try {
      const response = await fetch(api("metrics"), { headers: headers() });
      if (response.ok) show(read(await response.text()));
      const closed = [401, 403, 404].includes(response.status);
      $("live-note").textContent = closed ? "The metrics of this server are not open to this key." : "";
      $("live-note").hidden = !closed;
      state(response.ok || closed ? "ready" : "wait", response.ok || closed ? "ready" : "not ready");
      if ((response.ok || closed) && !$("model").value) models();
    } catch { state("down", "not reachable"); }
  }
  setTimeout(watch, 1000);
}

function state(kind, text) {
  const node = $("state");
  if (node.className === kind) return;
  node.className = kind;
  node.lastElementChild.textContent = text;
}

async function models() {
  try {
    const response = await fetch(api("v1/models"), { headers: headers() });
    if (response.status === 401) return notice("This server wants an API key: see the settings.");
    if (!response.ok) return;
    const names = (await response.json()).data.map((model) => model.id);
    const chosen = $("model").value;
    $("model").replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    if (names.includes(chosen)) $("model").value = chosen;
    notice("");
  } catch { /* the live view says so */ }
}

// ---------------------------------------------------------------- controls

function grow() {
  const area = $("prompt");
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`;
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  document.documentElement.style.colorScheme = name;
}

function panel(open) {
  document.body.classList.toggle("narrow", !open);
  $("panel").setAttribute("aria-expanded", String(open));
}

function fresh() {
  stop();
  turns = [];
  render();
  $("prompt").focus();
}

function modes() {
  $("schema-box").hidden = mode() !== "schema";
  $("tools-box").hidden = mode() !== "tools";
}

const dark = matchMedia("(prefers-color-scheme: dark)");
theme(localStorage.getItem("pyengine-theme") ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => localStorage.getItem("pyengine-theme") ?? theme(dark.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("pyengine-theme", name);
  theme(name);
});
$("schema").value = SCHEMA;
$("tools").value = TOOLS;
$("key").value = sessionStorage.getItem("pyengine-key") ?? "";
$("key").addEventListener("change", () => { sessionStorage.setItem("pyengine-key", $("key").value); models(); });
$("compose").addEventListener("submit", (event) => { event.preventDefault(); send($("prompt").value); });
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send($("prompt").value); }
  const last = turns.findLastIndex((turn) => turn.message.role === "user");
  if (event.key === "ArrowUp" && !$("prompt").value && last >= 0) { event.preventDefault(); edit(turns[last], $("chat").children[last]); }
});
$("stop").addEventListener("click", stop);
$("clear").addEventListener("click", fresh);
$("panel").addEventListener("click", () => panel(document.body.classList.contains("narrow")));
for (const choice of document.getElementsByName("mode")) choice.addEventListener("change", modes);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.altKey && event.code === "KeyN") { event.preventDefault(); fresh(); }
  if (event.altKey && event.code === "KeyS") { event.preventDefault(); $("panel").click(); }
});
panel(innerWidth > 820);
render();
models();
watch();
