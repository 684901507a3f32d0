// The turns as they are shown, with their buttons.

const NAMES = { user: "You", assistant: "Answer", tool: "Tool result" };

function drawCall(call, open) {
  let shown = call.function.arguments;
  try { shown = JSON.stringify(JSON.parse(shown), null, 2); } catch { /* still being written */ }
  const node = el("div", { class: "call", role: "group", "aria-label": `Call of ${call.function.name}` }, el("b", {}, call.function.name), el("pre", {}, shown));
  if (open) {
    const area = el("textarea", { rows: "2", class: "code", "aria-label": `Result of ${call.function.name}`, placeholder: "Type what the tool returns" });
    const done = () => resolve(call, area.value);
    area.addEventListener("keydown", (event) => { if (sends(event)) { event.preventDefault(); done(); } });
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
  chat.querySelector(".empty")?.remove();
  for (const node of [...chat.children].slice(turns.length)) node.remove();
  turns.forEach((turn, at) => {
    // What has not changed stays as it is: a screen reader reads a log's new nodes.
    const drawn = JSON.stringify([turn, running && turn === turns.at(-1), unanswered()]);
    const old = chat.children[at];
    if (old?.turn === turn && old.drawn === drawn && !old.querySelector(".edit")) return;
    const node = old?.turn === turn ? old : el("article", { class: `turn ${turn.message.role}`, "aria-label": NAMES[turn.message.role] });
    Object.assign(node, { turn, drawn });
    fill(node, turn);
    if (!old) chat.append(node); else if (old !== node) old.replaceWith(node);
  });
  chat.scrollTop = chat.scrollHeight;
}
