"use strict";
const { report, texts } = JSON.parse(document.getElementById("data").textContent);
const KINDS = {
  fused: ["●", "fused", "in a kernel made of a cascade of reductions"],
  map: ["◆", "map kernel", "maps between cascades, in a kernel of their own"],
  library: ["■", "library call", "a product or an attention that stays with torch's library"],
  torch: ["○", "torch", "runs as a torch operation"],
  kept: ["▲", "cascade kept unfused", "found, and not fused for a reason"],
  opaque: ["✕", "opaque call", "unknown to the importer: a torch call nobody looks into"],
};
const BOUNDS = { bytes: "device memory", port: "the way to the cache", shared: "shared memory", matrix: "the matrix units",
  core: "the CUDA cores", special: "the special function units", launch: "launch and latency", chain: "waits of one block" };
const STAGES = { cascade: "Cascade", fused: "Fused form", program: "Segment program", passes: "Passes (a diff each)", tiles: "Tile program",
  source: "Kernel (TileLang)", hip: "Kernel (HIP)", tir: "Kernel (TIR)" };
const cascades = new Map([...report.cascades, ...report.maps].map(c => [c.name, c]));
const steps = report.steps || [];

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (name === "onclick") node.addEventListener("click", value); else if (value !== null) node.setAttribute(name, value);
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const byId = id => document.getElementById(id);
const time = s => s === null || s === undefined ? "" : s >= 1e-3 ? `${(s * 1e3).toPrecision(3)} ms` : `${(s * 1e6).toPrecision(3)} µs`;
function bytes(n) {
  if (!n) return "";
  for (const unit of ["B", "KB", "MB"]) { if (n < 1000) return `${Number(n.toPrecision(3))} ${unit}`; n /= 1000; }
  return `${Number(n.toPrecision(3))} GB`;
}
const sum = (list, f) => list.reduce((total, x) => total + (f(x) || 0), 0);
const kindOf = step => step.of && step.kind !== "fused" && step.kind !== "map" && step.kind !== "opaque" ? "kept" : step.kind;
const glyph = kind => make("span", { class: `glyph ${kind}`, "aria-hidden": "true" }, KINDS[kind][0]);

// -- head -------------------------------------------------------------------------------------------------------------

const fused = report.cascades.filter(c => c.fused);
document.title = `${report.model} – RedFuser`;
byId("title").textContent = `${report.model} on ${report.target}`;
byId("summary").textContent = `${fused.length} of ${report.cascades.length} cascades fused, ${report.maps.length} map kernels` +
  (report.built ? "" : " (planned, not built)") +
  Object.entries(report.versions).map(([name, version]) => ` · ${name} ${version}`).join("");
for (const [kind, [, name, meaning]] of Object.entries(KINDS))
  byId("legend").append(make("li", { title: meaning }, glyph(kind), make("span", { class: kind }, name)));
byId("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  byId("theme").setAttribute("aria-pressed", String(!dark));
});

// -- tree -------------------------------------------------------------------------------------------------------------

function grown() {
  const root = { name: report.model, children: new Map(), entries: [] };
  for (const step of steps) {
    let at = root;
    for (const part of step.module ? step.module.split(".") : []) {
      if (!at.children.has(part)) { const child = { name: part, children: new Map(), entries: [] }; at.children.set(part, child); at.entries.push(child); }
      at = at.children.get(part);
    }
    at.entries.push({ step });
  }
  return root;
}
function within(node) { return node.entries.flatMap(e => e.step ? [e.step] : within(e)); }
function counts(list) {
  return Object.keys(KINDS).map(kind => [kind, list.filter(s => kindOf(s) === kind).length]).filter(([, n]) => n)
    .map(([kind, n]) => make("span", { class: `count ${kind}`, title: `${KINDS[kind][1]}: ${n}` }, `${KINDS[kind][0]}${n}`));
}
function drawn(node, depth) {
  const box = make("details", depth < 2 ? { open: "" } : {}, make("summary", {}, node.name, counts(within(node))));
  for (const entry of node.entries) box.append(entry.step ? leaf(entry.step) : drawn(entry, depth + 1));
  return box;
}
function leaf(step) {
  const kind = kindOf(step), facts = [step.of, step.source, time(step.seconds)].filter(Boolean).join(" · ");
  const node = make("button", { class: `step ${kind}`, type: "button", "data-of": step.of || null, title: KINDS[kind][1],
    onclick: () => show(step, node) }, glyph(kind), make("span", { class: "name" }, step.op), " ", make("small", {}, facts));
  node.words = `${step.module} ${step.op} ${step.source} ${step.of} ${step.code}`.toLowerCase();
  return node;
}
byId("tree").append(steps.length ? drawn(grown(), 0) : make("p", {}, "This report has no list of operations; its cascades are:"));
if (!steps.length) for (const c of cascades.values())
  byId("tree").append(leaf({ module: "", op: c.name, source: (c.ops[0] || {}).source || "", code: "", kind: c.fused ? (c.strategy === "map" ? "map" : "fused") : "torch", of: c.name }));
for (const [id, open] of [["open", true], ["close", false]])
  byId(id).addEventListener("click", () => document.querySelectorAll("#tree details").forEach(d => { d.open = open; }));
byId("filter").addEventListener("input", () => {
  const wanted = byId("filter").value.toLowerCase();
  document.querySelectorAll("#tree .step").forEach(s => { s.hidden = !s.words.includes(wanted); });
  document.querySelectorAll("#tree details").forEach(d => { d.hidden = !d.querySelector(".step:not([hidden])"); if (wanted) d.open = true; });
});

// -- detail -----------------------------------------------------------------------------------------------------------

function listed(title, pairs) {
  const found = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return found.length ? [...(title ? [make("h3", {}, title)] : []), make("dl", {}, found.flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, v)]))] : [];
}
function text(title, value) { return value ? [make("h3", {}, title), make("pre", { tabindex: "0" }, value)] : []; }
function diff(value) {
  return make("pre", { tabindex: "0" }, value.split("\n").map(line => {
    const kind = line.startsWith("# ") || line.startsWith("@@") ? "head" : line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : null;
    return [kind ? make("span", { class: kind }, line) : line, "\n"];
  }));
}
function show(step, from) {
  document.querySelectorAll(".step[aria-current]").forEach(s => s.removeAttribute("aria-current"));
  if (from) from.setAttribute("aria-current", "true");
  const kind = kindOf(step), c = cascades.get(step.of), box = byId("detail");
  box.replaceChildren(make("h2", {}, glyph(kind), c ? `${c.name}: ${c.fused ? "fused" : "kept unfused"}` : step.op),
    ...listed("", [["operation", step.op], ["module", step.module], ["line", step.source], ["what", KINDS[kind][2]],
      ["bytes moved", bytes(step.moved)], ["time, modelled", time(step.seconds)]]), ...text("Source", step.code),
    ...(c ? cascade(c) : why(step)));
}
function reasons(step) {
  const about = `${step.op} (${step.source})`;
  return [...report.opaque.filter(o => o.op === step.op && o.source === step.source).map(o => o.why),
    ...report.notes.filter(n => step.source && n.text.includes(about)).map(n => `${n.code} ${n.text}`)].filter(Boolean);
}
function why(step) {
  const known = reasons(step);
  return known.length ? [make("h3", {}, "Why"), make("ul", {}, known.map(k => make("li", {}, k)))] : [];
}
function cascade(c) {
  const own = steps.filter(s => s.of === c.name && s.code);
  const lines = [...new Map([...own.map(s => [s.source, `${s.source}  ${s.code}`])]).values()];
  const r = c.reason, modelled = c.modelled || [], stages = Object.entries(texts[c.kernel] || {});
  const left = sum(steps.filter(s => s.of === c.name && !c.fused), s => s.seconds);
  return [
    ...listed("", [["kernel", c.kernel], ["strategy", c.strategy + (c.splits > 1 ? ` x${c.splits}` : "")], ["configuration", c.config],
      ["certificate", c.certificate], ["checks", c.checks.join("; ")],
      ["traffic, predicted", c.traffic ? `${bytes(c.traffic.fused)} for ${bytes(c.traffic.unfused)} unfused` : ""],
      ["numerics", c.numerics ? `error ${c.numerics.ratio === null ? "?" : c.numerics.ratio.toPrecision(2)}x the unfused program's` : ""],
      ["time, measured", c.measured ? `${time(c.measured.fused)} fused, ${time(c.measured.unfused)} unfused on ${c.measured.device} (${c.measured.source} record)` : ""],
      ["time unfused, modelled", left ? time(left) : ""]]),
    ...(r ? listed("Why not", [["code", r.code], ["condition", r.condition], ["why", r.why], ["what would help", r.help]]) : []),
    ...(modelled.length ? [make("h3", {}, "Time, modelled and not measured"), make("table", {},
      make("tr", {}, make("th", {}, "kernel"), make("th", {}, "time"), make("th", {}, "bound by")),
      modelled.map(m => make("tr", {}, make("td", {}, m.kernel), make("td", { class: "number" }, time(m.seconds)), make("td", {}, BOUNDS[m.bound] || m.bound))))] : []),
    ...text("Source lines", lines.join("\n") || c.ops.map(o => `${o.source}  ${o.name}`).join("\n")),
    ...text("Mathematics", c.cascade), ...text("State", c.fused_form),
    ...(c.prefix.length ? text("Fuses up to", c.prefix.join("\n")) : []),
    ...(c.fused ? [make("h3", {}, "Roundings moved"), c.roundings.length ? make("ul", {}, c.roundings.map(x => make("li", {}, x))) : make("p", {}, "none")] : []),
    ...(stages.length ? [make("h3", {}, "Stages"), ...stages.filter(([name]) => name !== "cascade" && name !== "fused").map(([name, value]) =>
      make("details", { class: "stage" }, make("summary", {}, STAGES[name] || name), name === "passes" ? diff(value) : make("pre", { tabindex: "0" }, value)))] : []),
  ];
}

// -- what is left -----------------------------------------------------------------------------------------------------

function leftovers() {
  const groups = new Map();
  const add = (key, row) => { const g = groups.get(key) || { ...row, seconds: 0, moved: 0, count: 0 }; groups.set(key, g); return g; };
  for (const c of report.cascades.filter(c => !c.fused)) add(`c ${c.name}`, { name: c.name, kind: "kept", step: { module: "", op: (c.ops[0] || {}).name || "", source: c.reason.source, code: "", kind: "torch", of: c.name },
    why: `${c.reason.code} ${c.reason.why || c.reason.condition}`, help: c.reason.help });
  for (const s of steps) {
    if (s.kind === "fused" || s.kind === "map") continue;
    const known = s.of && groups.get(`c ${s.of}`);
    const g = known || add(`${s.kind} ${s.op} ${s.source}`, { name: s.op, kind: s.kind, step: s, why: reasons(s)[0] || KINDS[s.kind][2], help: s.kind === "opaque" ? "write it with operators that the importer knows" : s.kind === "library" ? "nothing to change" : "" });
    g.seconds += s.seconds || 0; g.moved += s.moved; g.count += 1;
  }
  return [...groups.values()].sort((a, b) => b.seconds - a.seconds || b.moved - a.moved);
}
const left = leftovers();
byId("left").append(make("h2", {}, "Not fused, by what it costs"), left.length ? make("table", {},
  make("tr", {}, ["", "operation", "line", "calls", "time, modelled", "bytes", "why", "what would help"].map(h => make("th", { scope: "col" }, h))),
  left.map(g => make("tr", { "data-seconds": g.seconds, "data-moved": g.moved }, make("td", {}, glyph(g.kind)), make("td", {}, make("button", { type: "button", class: "link", onclick: () => { show(g.step); byId("detail").focus(); } }, g.name)),
    make("td", {}, g.step.source), make("td", { class: "number" }, g.count || ""), make("td", { class: "number" }, time(g.seconds || null)), make("td", { class: "number" }, bytes(g.moved)),
    make("td", {}, g.why), make("td", {}, g.help)))) : make("p", {}, "Nothing."));
if (report.notes.length) byId("notes").append(make("h2", {}, "Notes"), make("ul", {}, report.notes.map(n => make("li", {}, `${n.level}: ${n.code} ${n.text}`))));
else byId("notes").hidden = true;
const first = document.querySelector("#tree .step.fused") || document.querySelector("#tree .step");
if (first) first.click(); else byId("detail").append(make("p", {}, "Nothing to show."));
