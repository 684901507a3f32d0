// Buttons, keys and settings; the page begins at the end of this file.

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
  if (sends(event)) { event.preventDefault(); send($("prompt").value); }
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
