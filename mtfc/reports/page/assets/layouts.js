"use strict";
// The page about a model's layouts.

const { cost, layouts, texts, target } = data;
const costs = cost.layouts;
const STAGES = { forward: 1, backward: 2, update: 3 };
const MEMORY = [["parameters", 1], ["optimizer", 2], ["gradients", 3], ["activations_peak", 4]];
const MEMORY_NAMES = { activations_peak: "activations at their peak", optimizer: "optimizer state" };
const KINDS = Object.keys(costs[0].step.collectives);
const state = { layout: 0, file: data.own ?? Object.keys(data.sources)[0], line: null, array: null, part: null, sizes: new Map(), axes: new Map() };
const current = () => layouts[state.layout];
const choose = (layout) => change({ layout }, "layout");
const goTo = (file, line) => {
  if (!line) return;
  change({ file: data.sources[file] === undefined ? data.own : file, line }, "line", "file");
  document.querySelector(`#source tr[data-line="${line}"]`)?.scrollIntoView({ block: "nearest" });
};

const placeText = (file, line) => (line ? (file === data.own || !file ? `line ${line}` : `${fileName(file)}:${line}`) : "added by the compiler");
const placeLink = (file, line) => (line ? el("button", { class: "place code", onclick: () => goTo(file, line) }, placeText(file, line)) : placeText(file, line));

// Layouts

const meshText = (axes) => axes.map(([name, size]) => `${name}: ${size}`).join(", ");

function overview(place) {
  const rows = layouts.map((layout, i) => {
    const { step, memory_per_device: memory } = costs[i], sent = Object.values(step.collectives).reduce((sum, each) => sum + each.bytes_per_device, 0);
    const room = memory.total > target.memory;
    return el("tr", { tabindex: "0", class: i === state.layout ? "chosen" : null, "data-layout": layout.name, onclick: () => choose(i), onkeydown: (event) => { if (event.key === "Enter") choose(i); } },
      el("td", {}, el("b", {}, layout.name), el("div", { class: "code note" }, layout.rules)), el("td", {}, meshText(layout.axes)),
      ...[["step", layout.step ? secondsText(layout.step.step_seconds) : "no room"], ["exposed", layout.step ? secondsText(layout.step.exposed_communication_seconds) : ""],
        ["utilisation", layout.step ? percent(layout.step.utilisation) : ""],
        ["flops", flopsText(step.flops_per_device)], ["sent", bytesText(sent)], ["wire", bytesText(Math.ceil(step.wire_bytes_per_device))],
      ].map(([name, text]) => el("td", { class: "n", "data-figure": name }, text)),
      el("td", { class: `n${room ? " bad" : ""}`, "data-figure": "memory" }, bytesText(memory.total)));
  });
  const heads = ["layout", "mesh", "a step", "waits", "of peak", "computed", "sent", "on the wire", "memory"];
  const named = (i) => ({ name: layouts[i].name });
  const kinds = KINDS.filter((kind) => costs.some((each) => each.step.collectives[kind].bytes_per_device));
  place.replaceChildren(
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((each, i) => el("th", { class: i > 1 ? "n" : null }, each)))), el("tbody", {}, rows))),
    el("div", { class: "charts" },
      bars("Time of a step", layouts.map((layout, i) => ({ ...named(i), missing: layout.step ? null : "no room", parts: layout.step ? [["computing", layout.step.compute_seconds, 1], ["waiting for communication", layout.step.exposed_communication_seconds, 2]] : [] })), secondsText, choose),
      bars("Computation", layouts.map((layout, i) => ({ ...named(i), parts: Object.keys(STAGES).map((stage) => [stage, layout.lines.reduce((sum, line) => sum + (line.stages[stage] ?? 0), 0), STAGES[stage]]) })), flopsText, choose),
      bars("Bytes sent", layouts.map((_, i) => ({ ...named(i), parts: kinds.map((kind, k) => [kind, costs[i].step.collectives[kind].bytes_per_device, (k % 8) + 1]) })), bytesText, choose),
      bars("Memory", layouts.map((_, i) => ({ ...named(i), parts: MEMORY.map(([name, number]) => [MEMORY_NAMES[name] ?? name, costs[i].memory_per_device[name], number]) })), bytesText, choose)));
}

// Arrays

const ARRAYS = layouts.map((layout) => layout.arrays.map(([name, role, file, line, ownLines, dtype, dims, splits, pending, bytes, times]) =>
  ({ name: texts[name], role, file: texts[file], line, ownLines, dtype, dims, splits, pending, bytes, times, word: texts[name].split(".").at(-1) })));
const arrayNamed = (name) => ARRAYS[state.layout].find((each) => each.name === name);

// Arrays by file and word, in the order of their lines: a name in a line is the array that the nearest line above makes.
const WORDS = new Map();
for (const each of ARRAYS[0]) for (const [file, line] of [[each.file, each.line], ...each.ownLines.map((own) => [data.own, own])]) {
  const key = `${file}\n${each.word}`;
  if (!WORDS.has(key)) WORDS.set(key, []);
  WORDS.get(key).push([line, each.name]);
}
for (const found of WORDS.values()) found.sort((a, b) => a[0] - b[0] || b[1].length - a[1].length);

// The first line of the function around each line of a file.
const BLOCKS = Object.fromEntries(Object.entries(data.sources).map(([file, text]) => {
  let start = 1;
  return [file, text.split("\n").map((line, i) => (/^(fn|model|optimizer|train|\s*(async\s+)?def)\b/.test(line) ? (start = i + 1) : start))];
}));

function arrayOfWord(file, line, word) {
  const found = WORDS.get(`${file}\n${word}`);
  return found?.findLast(([at]) => at <= line && at >= BLOCKS[file][line - 1])?.[1];
}

function arrayPanel(place) {
  const array = state.array === null ? null : arrayNamed(state.array);
  const options = ARRAYS[state.layout].map((each) => el("option", { value: each.name }));
  const field = el("input", { list: "arrays", placeholder: "name of an array", "aria-label": "Name of an array", value: state.array ?? "", onchange: (event) => { if (arrayNamed(event.target.value)) pick(event.target.value); } });
  place.replaceChildren(el("div", { class: "group noprint" }, el("b", {}, "Array"), field, el("datalist", { id: "arrays" }, options)),
    ...(array ? drawnArray(array) : [el("p", { class: "note" }, state.array ? `Layout ${current().name} has no array ${state.array}.` : "Click a name in the source: its parts are drawn on the mesh.")]),
    ...lineDetails());
}

function pick(name) {
  change({ array: name, part: null }, "array");
}

function drawnArray(array) {
  const axes = current().axes, degrees = degreesOf(array, axes), parts = product(degrees), copies = product(axes.map(([, size]) => size)) / parts;
  const onpart = (part) => change({ part }, "array");
  const shape = array.dims.map(([dim], i) => (array.splits[i].length ? `${dim}{${array.splits[i].join(", ")}}` : dim)).join(", ");
  const held = product(array.dims.map(([, size], i) => size / degrees[i]));
  const notes = [
    parts === 1 ? "Every device holds the whole array." : `${parts} parts${copies > 1 ? `, each on ${copies} devices` : ""}.`,
    array.pending.length ? `A sum over ${array.pending.join(", ")} is pending: each device holds one term.` : null,
    array.times > 1 ? `Computed ${array.times} times in a step.` : null,
  ];
  return [el("p", { class: "code", "data-array": array.name }, el("b", {}, array.name), `: ${array.dtype}[${shape}]`),
    el("p", { class: "note" }, `One device holds ${array.dims.length ? array.dims.map(([dim, size], i) => `${dim} ${size / degrees[i]}`).join(" × ") : "a scalar"}: ${held.toLocaleString("en")} numbers, ${bytesText(array.bytes)}. `, notes.filter(Boolean).join(" ")),
    arrayDrawing(array, axes, state.part, onpart), meshDrawing(array, axes, state.part, onpart),
    state.part ? el("p", { class: "note", "data-chosen-part": state.part.join(",") }, `Chosen: ${rangeText(array, degrees, state.part).replaceAll("\n", ", ")}`) : null].filter(Boolean);
}

// Source

const PYTHON = /\.py$/;
const RESERVED = new Set(["dim", "mesh", "layout", "on", "for", "model", "train", "fn", "param", "state", "return", "repeat", "scan", "along", "yield", "import", "minimize", "optimizer", "hardware", "placement", "update", "watch", "report", "precision", "as", "with", "value", "params"]);

function codeCells(text, file, line) {
  const comment = text.indexOf("#"), code = comment < 0 ? text : text.slice(0, comment), found = [];
  let end = 0;
  for (const match of code.matchAll(/[\p{L}_][\p{L}\p{N}_]*/gu)) {
    found.push(code.slice(end, match.index));
    end = match.index + match[0].length;
    const before = code[match.index - 1], name = before === "." ? null : arrayOfWord(file, line, match[0]);
    const isKeyword = /^\s*=(?!=)/.test(code.slice(end)) && code.slice(0, match.index).includes("(");
    if (name && !isKeyword) found.push(el("button", { class: "name", "data-name": name, "aria-pressed": String(name === state.array), onclick: () => pick(name) }, match[0]));
    else if (!PYTHON.test(file) && RESERVED.has(match[0])) found.push(el("span", { class: "word" }, match[0]));
    else found.push(match[0]);
  }
  found.push(code.slice(end));
  if (comment >= 0) found.push(el("span", { class: "comment" }, text.slice(comment)));
  return found;
}

const HEAT = [["flops", "FLOPs", countText], ["sent", "sent", bytesText], ["memory", "memory", bytesText]];

function source(place) {
  const file = state.file, figures = new Map(), from = file === data.own ? current().lines : current().places;
  for (const each of from) if (each.file === file) figures.set(each.line, each);
  const largest = Object.fromEntries(HEAT.map(([key]) => [key, Math.max(1, ...[...figures.values()].map((each) => each[key]))]));
  const select = el("select", { "aria-label": "File", onchange: (event) => change({ file: event.target.value, line: null }, "file", "line") },
    Object.keys(data.sources).map((name) => el("option", { value: name, selected: name === file }, name)));
  const rows = (data.sources[file] ?? "").replace(/\n$/, "").split("\n").map((text, i) => {
    const line = i + 1, found = figures.get(line);
    return el("tr", { "data-line": line, class: line === state.line ? "chosen" : null },
      HEAT.map(([key, , text]) => el("td", {
        class: "h", "data-figure": key, style: found?.[key] ? { background: `rgba(var(--heat-${key}), ${0.06 + 0.6 * Math.sqrt(found[key] / largest[key])})` } : null,
      }, found?.[key] ? text(found[key]) : "")),
      el("td", { class: "l", onclick: () => change({ line }, "line") }, String(line)), el("td", { class: "c code" }, codeCells(text, file, line)));
  });
  const scrolled = place.querySelector(".source")?.scrollTop ?? 0;
  place.replaceChildren(el("div", { class: "group" }, Object.keys(data.sources).length > 1 ? select : el("span", { class: "code" }, file ?? ""),
    el("span", { class: "note" }, file === data.own ? "Each line has the costs of the functions that it calls." : "Costs of all calls together.")),
    el("div", { class: "source", tabindex: "0" }, el("table", {}, el("thead", {}, el("tr", {}, HEAT.map(([, name]) => el("th", { class: "n" }, name)), el("th", {}, ""), el("th", {}, `layout ${current().name}`))), el("tbody", {}, rows))));
  place.querySelector(".source").scrollTop = scrolled;
}

// Marks the chosen line and array without drawing the source anew, so that the focus stays.
function markSource(place) {
  for (const row of place.querySelectorAll("tr[data-line]")) row.classList.toggle("chosen", Number(row.dataset.line) === state.line);
  for (const name of place.querySelectorAll("button.name")) name.setAttribute("aria-pressed", String(name.dataset.name === state.array));
}

function lineDetails() {
  if (!state.line) return [];
  const isOwn = state.file === data.own, found = (isOwn ? current().lines : current().places).find((each) => each.file === state.file && each.line === state.line);
  const sent = current().explain.collectives.filter((each) => (each.file === state.file && each.line === state.line) || (isOwn && each.own_lines[0] === state.line));
  const rows = found ? [...Object.entries(found.stages).map(([stage, flops]) => [stage, flopsText(flops)]), ["sent", bytesText(found.sent)], ["memory", bytesText(found.memory)], ["stored", bytesText(found.stored)], ["time", secondsText(found.seconds)]].filter(([, text]) => !/^0( |$)/.test(text)) : [];
  return [el("h3", {}, placeText(state.file, state.line)), rows.length ? table(["", ""], rows, [1]) : el("p", { class: "note" }, "This line costs nothing."), ...sent.map(collectiveText)];
}

function collectiveText(each) {
  const because = each.causes.map((cause) => [el("div", { class: "note" }, el("code", {}, cause.rule), " — ", placeLink(cause.file, cause.line), ` ${cause.what}`)]);
  return el("div", { class: "cause" }, el("div", {}, el("b", {}, `${each.count > 1 ? `${each.count} × ` : ""}${each.kind}{${each.axes.join(", ")}}`), ` ${bytesText(each.bytes_per_device)} in the ${each.stage} pass, `, placeLink(each.file, each.line)),
    because.length ? because : el("div", { class: "note" }, "neighbours along a dimension that is split"));
}

// Memory over the step

const MOMENTS = [["temporaries", 6], ["activations", 4], ["gradients", 3]], ALWAYS = [["inputs", 7], ["optimizer", 2], ["parameters", 1]];

function memory(place) {
  const { always, moments } = current().memory, shown = el("div");
  const starts = [];
  moments.forEach(([, stage], i) => { if (!starts.some(([, each]) => each === stage)) starts.push([i, stage]); });
  const count = (at) => moments.map((each) => each[4 + { gradients: 0, activations: 1, temporaries: 2 }[at]]);
  const series = [...MOMENTS.map(([name, number]) => ({ name, color: number, values: count(name) })), ...ALWAYS.map(([name, number]) => ({ name: MEMORY_NAMES[name] ?? name, color: number, values: moments.map(() => always[name]) }))];
  const total = costs[state.layout].memory_per_device.total;
  const described = el("p", { class: "note", role: "status" }, "Click into the chart for the line of a moment.");
  place.replaceChildren(shown, described, el("p", { class: "note" },
    `mtfc cost counts ${bytesText(total)}: all gradients at once, and the other values at their peak. A loop has one iteration here. One device of ${target.name} has ${bytesText(target.memory)}.`));
  if (!moments.length) return;
  curve(shown, { name: `Memory of one device over the step, layout ${current().name}`, x: moments.map((_, i) => i), series, stacked: true, binary: true, text: bytesText, xName: "equation", xText: (i) => String(Math.round(i)), marks: starts,
    onchoose: (i) => described.replaceChildren(`Equation ${i}: ${texts[moments[i][0]]}, ${moments[i][1]}, `, placeLink(texts[moments[i][2]], moments[i][3])) });
}

// Timeline

function drawTimeline(place) {
  const line = current().timeline;
  if (!line) return place.replaceChildren(el("p", { class: "note" }, `The mesh does not fit on ${target.name}, so no step is predicted.`));
  if (!line.seconds) return place.replaceChildren(el("p", { class: "note" }, "A step computes and sends nothing."));
  const events = line.events.map(([lane, name, start, seconds, stage, file, at, op]) => ({
    lane, start, end: start + seconds, name: texts[name], stage, file: texts[file], line: at, color: lane === 0 ? STAGES[stage] ?? 8 : 5,
    tip: `${texts[name]}${op !== texts[name] ? ` (${op})` : ""}, ${stage}\n${placeText(texts[file], at)}\n${secondsText(seconds)} from ${secondsText(start)}`,
  }));
  const draw = timeline(place, line.lanes, events, line.seconds, (each) => goTo(each.file, each.line));
  place.append(legend([...Object.entries(STAGES), ["communication", 5]]), el("p", { class: "note" }, "Drag over the timeline to zoom, double-click for all of it; or focus it and use + − ← → 0. A loop is one bar with its first iteration inside."));
  place.redraw = draw;
}

// Collectives

function collectives(place) {
  const layout = current(), rows = layout.collectives, lanes = [...new Set(rows.flatMap((each) => Object.keys(each.lanes)))];
  const links = Object.entries(layout.lanes).map(([axis, parts]) => [axis, parts.map(([lane, size, stride]) => `${lane} (${size} members${stride > 1 ? `, ${stride} apart` : ""})`).join(", ") || "within a device"]);
  place.replaceChildren(rows.length ? table(["collective", "axes", "count", "bytes", "on the wire", ...lanes.map((lane) => `time on ${lane}`)],
    rows.map((each) => [each.kind, each.axes.join(", "), String(each.count), bytesText(each.bytes), bytesText(each.wire_bytes), ...lanes.map((lane) => (each.lanes[lane] === undefined ? "" : secondsText(each.lanes[lane])))]), [2, 3, 4, ...lanes.map((_, i) => i + 5)]) : el("p", { class: "note" }, "Nothing is sent."),
    el("div", { class: "charts" },
      rows.length ? bars("Bytes by mesh axes", groupedBars(rows, (each) => [[each.axes.join(", "), each.bytes]], (each) => each.kind), bytesText) : null,
      lanes.length ? bars("Time by link", groupedBars(rows, (each) => Object.entries(each.lanes), (each) => each.kind), secondsText) : null),
    links.length ? table(["mesh axis", `lies on these links of ${target.name}`], links) : "");
}

// rows by a key, with a part for each kind.
function groupedBars(rows, entries, kind) {
  const found = new Map();
  for (const each of rows) for (const [key, value] of entries(each)) {
    if (!found.has(key)) found.set(key, new Map());
    found.get(key).set(kind(each), (found.get(key).get(kind(each)) ?? 0) + value);
  }
  return [...found].map(([name, kinds]) => ({ name, parts: [...kinds].map(([each, value]) => [each, value, (KINDS.indexOf(each) % 8) + 1]) }));
}

// Roofline

function drawRoofline(place) {
  const kernels = current().kernels.map(([name, stage, file, line, flops, bytes, seconds, dtype]) => ({ name: texts[name], stage, file: texts[file], line, flops, bytes, seconds, dtype }));
  const all = kernels.reduce((sum, each) => sum + each.seconds, 0);
  const points = kernels.filter((each) => each.flops && each.bytes).sort((a, b) => b.seconds - a.seconds).map((each) => ({
    ...each, x: each.flops / each.bytes, y: each.flops / each.seconds, share: each.seconds / all, color: STAGES[each.stage] ?? 8,
    tip: `${each.name}, ${each.stage}, ${each.dtype}\n${placeText(each.file, each.line)}\n${flopsText(each.flops)}, ${bytesText(each.bytes)} moved\n${secondsText(each.seconds)}: ${percent(each.seconds / all)} of computing`,
  }));
  const rest = all - points.reduce((sum, each) => sum + each.seconds, 0);
  const used = new Set(points.map((each) => each.dtype)), roofs = Object.entries(target.flops).filter(([dtype]) => used.has(dtype) || !used.size);
  const most = [...points].slice(0, 8).map((each) => [each.name, each.stage, placeLink(each.file, each.line), secondsText(each.seconds), percent(each.share), flopsText(each.flops), bytesText(each.bytes)]);
  place.replaceChildren(points.length ? roofline(points, roofs, target.bandwidth, (each) => goTo(each.file, each.line)) : "", legend(Object.entries(STAGES)),
    el("p", { class: "note" }, `A circle is an equation; its area is its share of computing. Kernels at the slope are bound by memory. Kernels without arithmetic take ${all ? percent(rest / all) : "0%"} and are left out.`),
    table(["longest kernels", "stage", "line", "time", "of computing", "FLOPs", "moved"], most, [3, 4, 5, 6]));
}

// Why

function why(place) {
  const { collectives: sent, separate_attention: separate } = current().explain, rules = new Map();
  for (const each of sent) for (const rule of new Set(each.causes.map((cause) => cause.rule))) rules.set(rule, (rules.get(rule) ?? 0) + each.bytes_per_device);
  const byRule = [...rules].sort((a, b) => b[1] - a[1]);
  place.replaceChildren(sent.length ? table(["rule of the layout", "bytes that it has a part in"], byRule.map(([rule, size]) => [el("code", {}, rule), bytesText(size)]), [1]) : el("p", { class: "note" }, "No rule of this layout causes communication."),
    !sent.length ? "" : el("details", { open: sent.length < 12 }, el("summary", {}, `All ${sent.length} arrays that are sent, the largest first`), [...sent].sort((a, b) => b.bytes_per_device - a.bytes_per_device).map(collectiveText)),
    separate.length ? table(["a softmax between two dots that is not one op", "why"], separate.map((each) => [placeLink(each.file, each.line), each.why])) : "");
}

// What if

const meshKey = (layout) => `${layout.mesh} [${meshText(layout.axes)}]`;
const MESHES = new Map(layouts.map((layout) => [meshKey(layout), layout]));

function steps(size) {
  const found = [];
  for (let i = -10; i <= 10; i++) { const each = i < 0 ? size / 2 ** -i : size * 2 ** i; if (Number.isInteger(each) && each >= 1) found.push(each); }
  return found;
}

function slider(name, size, value, least, onvalue) {
  const values = steps(size).filter((each) => each >= least), at = values.findIndex((each) => BigInt(each) >= value);
  const number = el("input", { type: "number", min: String(least), step: "1", value: String(value), "aria-label": `${name}, a number`, "data-number": name, onchange: (event) => { if (/^\d{1,19}$/.test(event.target.value) && BigInt(event.target.value) >= BigInt(least)) onvalue(BigInt(event.target.value)); else event.target.value = String(value); } });
  return el("label", {}, el("span", { title: name }, name), el("input", { type: "range", min: "0", max: String(values.length - 1), step: "1", value: String(at < 0 ? values.length - 1 : at), "data-size": name, "aria-valuetext": String(value), oninput: (event) => onvalue(BigInt(values[event.target.value])) }), number);
}

function whatIf(place) {
  const sizes = allSizes(data.sizes, state.sizes), used = new Set(layouts.flatMap(({ formulas }) => [formulas.flops, formulas.sent, ...Object.values(formulas.memory), ...formulas.activations].flat().flatMap(([, , powers]) => Object.keys(powers))));
  for (const each of data.sizes) if (used.has(each.name)) for (const name of mentions(each.expression)) used.add(name);
  const free = data.sizes.filter((each) => used.has(each.name) && !mentions(each.expression).length), bound = data.sizes.filter((each) => used.has(each.name) && mentions(each.expression).length);
  const focused = document.activeElement?.dataset?.size ?? null;
  const axesOf = (layout) => new Map(layout.axes.map(([name, size]) => [name, state.axes.get(`${meshKey(layout)} ${name}`) ?? BigInt(size)]));
  const axisSliders = [...MESHES].flatMap(([key, layout]) => layout.axes.filter(([, size]) => size > 1).map(([name, size]) => slider(MESHES.size > 1 ? `${layout.mesh}.${name}` : name, size, axesOf(layout).get(name), 2, (value) => { state.axes.set(`${key} ${name}`, value); change({}, "sizes"); })));
  const cells = (layout, i) => {
    const axes = axesOf(layout), changed = [...data.sizes.filter((each) => sizes.get(each.name) !== BigInt(each.size)).map((each) => each.name), ...layout.axes.filter(([name, size]) => axes.get(name) !== BigInt(size)).map(([name]) => name)];
    const found = costAt(layout.formulas, sizes, axes, changed), before = costs[i];
    const devices = [...axesOf(layout).values()].reduce((a, b) => a * b, 1n);
    if (found.problem) return el("tr", { "data-layout": layout.name }, el("td", {}, layout.name), el("td", { class: "n" }, String(devices)), el("td", { colspan: "4", class: "bad" }, found.problem));
    const sent = KINDS.reduce((sum, kind) => sum + before.step.collectives[kind].bytes_per_device, 0);
    const figures = [["flops", found.flops, before.step.flops_per_device, flopsText], ["sent", found.sent, sent, bytesText], ["wire", found.wire, Math.ceil(before.step.wire_bytes_per_device), bytesText], ["memory", found.memory.total, before.memory_per_device.total, bytesText]];
    return el("tr", { "data-layout": layout.name }, el("td", {}, layout.name), el("td", { class: "n" }, String(devices)), figures.map(([name, value, was, text]) => {
      const ratio = was ? Number(value) / was : 1, parts = name === "memory" ? Object.entries(found.memory).map(([part, size]) => `${MEMORY_NAMES[part] ?? part} ${bytesText(Number(size))}`).join("\n") : "";
      return tipped(el("td", { class: "n", "data-figure": name, "data-exact": String(value) }, `${text(Number(value))}`, el("div", { class: "note" }, `${value.toLocaleString("en")}${Math.abs(ratio - 1) < 1e-12 ? "" : `, × ${digits(ratio, 3)}`}`)), parts);
    }));
  };
  place.replaceChildren(el("div", { class: "sliders noprint" }, free.map((each) => slider(each.name, each.size, sizes.get(each.name), 1, (value) => { state.sizes.set(each.name, value); change({}, "sizes"); })), axisSliders),
    bound.length ? el("p", { class: "note" }, "Computed from these: ", bound.map((each) => `${each.name} = ${sizes.get(each.name) ?? "no size"}`).join(", ")) : "",
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["layout", "devices", "computed", "sent", "on the wire", "memory"].map((each, i) => el("th", { class: i ? "n" : null }, each)))), el("tbody", {}, layouts.map(cells)))),
    el("div", { class: "group noprint" }, el("button", { onclick: () => change({ sizes: new Map(), axes: new Map() }, "sizes") }, "Sizes of the file")),
    el("p", { class: "note" }, "These are the formulas of mtfc cost --symbolic, evaluated exactly. They are those of the program that the compiler makes at the sizes of the file; at other sizes it may choose other collectives, or share other constants. Axes have 2 members at least, since an axis of 1 sends nothing."));
  if (focused) place.querySelector(`[data-size="${CSS.escape(focused)}"]`)?.focus();
}

// The plan

function plan(place) {
  const found = data.search?.name === current().name ? data.search.kinds : [];
  place.replaceChildren(el("p", { class: "code" }, `${current().rules} on [${meshText(current().axes)}]`), table(["", ""], current().plan, []),
    ...(found.length ? [el("p", {}, "The best plans of other kinds, and why they lost:"), el("ul", {}, found.map((each) => el("li", { class: "code" }, each)))] : []));
}

// Search

function searched(place) {
  const { record, points, name } = data.search;
  const chart = el("div"), known = points.filter(([, best, bound]) => best !== null || bound !== null);
  const plain = record.without_forms;
  const proof = plain ? `Without forms, the best takes ${secondsText(plain.objective_seconds)}${plain.optimal ? ", which is proven" : ""}. ${record.lower_bound_seconds ? `No layout with forms takes less than ${secondsText(record.lower_bound_seconds)}.` : "Nothing is proven about layouts with forms."}` : record.optimal ? "It is proven to be the best in its space." : record.lower_bound_seconds ? `No layout of the space takes less than ${secondsText(record.lower_bound_seconds)}.` : "Nothing is proven.";
  place.replaceChildren(el("p", {}, "The search found ", el("button", { class: "code", onclick: () => choose(layouts.findIndex((each) => each.name === name)) }, name), `: ${secondsText(record.objective_seconds)}${record.objective === "serial" ? " without overlap" : ""}, in ${digits(record.search_seconds)} s. ${proof} ${record.evaluated} layouts were compiled.`), chart,
    table(["compared with", record.objective === "serial" ? "a step without overlap" : "a step"], Object.entries(record.baselines).map(([other, seconds]) => [other, seconds === null ? "" : secondsText(seconds)]), [1]));
  curve(chart, { name: "Cost and bound over the time of the search", x: known.map(([at]) => at), xName: "seconds of search", xText: (v) => digits(v), text: secondsText, height: 220,
    series: [{ name: "best so far", color: 1, values: known.map(([, best]) => best), points: true }, { name: "lower bound", color: 2, values: known.map(([, , bound]) => bound), points: true }] });
}

// The page

KEYS.push(["+ − ← → 0", "zoom and move the focused timeline"]);

const sourcePlace = live(["layout", "file"], source);
listeners.push([["line", "array"], () => markSource(sourcePlace)]);
const kind = layouts[0].trains ? "one training step" : "one forward pass";
frame(cost.model, `${kind} on ${target.name}, per device`, layouts.length > 1 ? switcher("layout", layouts.map(({ name }) => name), layouts.map(({ rules }) => rules), choose) : el("span", { class: "code" }, layouts[0].name), [
  ["layouts", "Layouts side by side", live(["layout"], overview), target.caveat ? el("p", { class: "note" }, target.caveat) : null],
  ...(layouts.some((each) => each.plan.length) ? [["plan", "Plan", live(["layout"], plan)]] : []),
  ["source", "Source", el("div", { class: "columns" }, sourcePlace, el("aside", {}, live(["layout", "array", "line"], arrayPanel)))],
  ["memory", "Memory over the step", live(["layout"], memory)],
  ["timeline", "Timeline", live(["layout"], drawTimeline, { class: "timeline" })],
  ["collectives", "Collectives by axis and link", live(["layout"], collectives)],
  ["roofline", "Roofline", live(["layout"], drawRoofline)],
  ["why", "Why it communicates", live(["layout"], why)],
  ["what-if", "What if", live(["sizes"], whatIf)],
  ...(data.search ? [["search", "Search", live([], searched)]] : []),
]);
// at first the largest array of the user's own lines is drawn, and the source shows its first line with a cost
const ownArrays = ARRAYS[0].filter((each) => each.file === data.own && each.role !== "step" && each.dims.length);
state.array = ownArrays.reduce((best, each) => (best === null || each.bytes > best.bytes ? each : best), null)?.name ?? null;
for (const [, draw] of listeners) draw();
const firstLine = Math.min(...current().lines.filter((each) => each.file === state.file && each.flops).map((each) => each.line));
const firstRow = document.querySelector(`#source tr[data-line="${Math.max(1, firstLine - 2)}"]`);
if (firstRow) firstRow.closest(".source").scrollTop = firstRow.offsetTop - 30;
window.addEventListener("resize", () => { for (const each of document.querySelectorAll(".timeline")) each.redraw?.(); });
