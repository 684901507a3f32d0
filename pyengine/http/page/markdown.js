// What the model writes, as elements: Markdown becomes nodes. All of it reaches the page as text
// nodes, never as HTML.

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

// Plain HTTP has no clipboard but the selection's.
async function written(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const area = el("textarea", {}, text);
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

async function copied(button, text) {
  button.textContent = (await written(text)) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = "Copy"), 1200);
}
