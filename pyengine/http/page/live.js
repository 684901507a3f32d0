// The live view: counters of /metrics once a second, the state of the server, its models.

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
  };
}

// A window in which the device worked for less of the time says nothing of the CPU's part in steps.
const LEAST_BUSY = 0.05;

// CPU time while the device had nothing to do, over the time that it worked, in the window between two samples.
function exposed(before, now) {
  const wall = now.wall - before.wall, busy = now.busy - before.busy, idle = now.idle - before.idle;
  return busy > LEAST_BUSY * wall ? Math.max(0, (wall - idle) / busy - 1) : null;
}

const percent = (share) => (share === null || !isFinite(share) ? "–" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`);

function show(now) {
  if (before && now.tokens !== null) {
    const grown = now.tokens - before.tokens;
    samples.push(grown < 0 ? 0 : grown / Math.max(now.at - before.at, 0.001));
    if (samples.length > 120) samples.shift();
    $("m-rate").textContent = Math.round(samples.at(-1)).toLocaleString("en");
    $("m-cpu").textContent = percent(exposed(before, now));
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
