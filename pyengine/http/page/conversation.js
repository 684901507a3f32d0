// One conversation, kept in memory: a list of messages as the API takes them, and what belongs to
// their display; what is sent of it, and the answer as it comes.

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
  const asked = body();
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

// Whether a request can be made of the settings; if not, the notice says why.
function sound() {
  try { body(); } catch (error) { notice(error.message); return false; }
  return true;
}

function send(text, from = turns.length) {
  if (running || !text.trim() || !sound()) return;
  turns.length = from;
  while (turns.length && (turns.at(-1).failed || unanswered().length)) turns.pop();
  turns.push({ message: { role: "user", content: text } });
  if (text === $("prompt").value) $("prompt").value = "";
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
  if (!sound()) return;
  turns.push({ message: { role: "tool", tool_call_id: call.id, content: text } });
  if (unanswered().length) render(); else answer();
}

function again(turn) {
  if (running || !sound()) return;
  turns.length = turns.indexOf(turn);
  answer();
}

function edit(turn, node) {
  if (running) return;
  const area = el("textarea", { rows: "3", "aria-label": "Edited message" });
  area.value = turn.message.content;
  const save = () => send(area.value, turns.indexOf(turn));
  area.addEventListener("keydown", (event) => {
    if (sends(event)) { event.preventDefault(); save(); }
    if (event.key === "Escape") { event.stopPropagation(); render(); $("prompt").focus(); }
  });
  node.replaceChildren(el("div", { class: "edit" }, area, el("div", { class: "tools" },
    el("button", { type: "button", onclick: save }, "Send"), el("button", { type: "button", onclick: render }, "Cancel"))));
  area.focus();
}
