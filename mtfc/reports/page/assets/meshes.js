"use strict";
// The page about a model's layouts of several meshes.

const { steps: records, costs, layouts, texts, target } = data;
const MEMORY = [["parameters", 1], ["optimizer", 2], ["activations_peak", 4]];
const MEMORY_NAMES = { activations_peak: "activations at their peak", optimizer: "optimizer state" };
const state = { layout: 0, mesh: 0, array: 0, part: null, line: null };
const current = () => layouts[state.layout], record = () => records[state.layout], cost = () => costs[state.layout];
const choose = (layout) => change({ layout, mesh: 0, array: 0, part: null }, "layout");
const chooseMesh = (mesh) => change({ mesh, array: 0, part: null }, "array");
const chosenRow = (attributes, is, onchoose, ...cells) => el("tr", { tabindex: "0", class: is ? "chosen" : null, ...attributes, onclick: onchoose, onkeydown: (event) => { if (event.key === "Enter") onchoose(); } }, cells);
const figure = (name, text, bad) => el("td", { class: `n${bad ? " bad" : ""}`, "data-figure": name }, text);
const headed = (heads, numbers, rows) => el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((each, i) => el("th", { class: numbers.includes(i) ? "n" : null }, each)))), el("tbody", {}, rows)));
const sentOn = (mesh) => Object.values(mesh.step.collectives).reduce((sum, each) => sum + each.bytes_per_device, 0);

function overview(place) {
  const rows = records.map((step, i) => chosenRow({ "data-layout": step.layout }, i === state.layout, () => choose(i), el("td", {}, el("b", {}, step.layout)),
    figure("devices", String(step.devices)), figure("step", secondsText(step.step_seconds)), figure("utilisation", percent(step.utilisation)),
    figure("between", bytesText(step.bytes_between_meshes)), figure("memory", bytesText(Math.max(...step.by_mesh.map((each) => each.memory))), !step.fits)));
  place.replaceChildren(headed(["layout", "devices", "a step", "of peak", "between meshes", "memory"], [1, 2, 3, 4, 5], rows),
    el("p", { class: "note" }, `Bytes between meshes are those of a step. Memory is that of the device that holds the most; a device of ${target.name} has ${bytesText(target.memory)}.`));
}

function meshes(place) {
  const step = record();
  const rows = current().meshes.map((mesh, i) => chosenRow({ "data-mesh": mesh.name }, i === state.mesh, () => chooseMesh(i),
    el("td", {}, el("b", {}, mesh.name), el("div", { class: "code note" }, mesh.rules)), el("td", {}, mesh.axes.map(([name, size]) => `${name}: ${size}`).join(", ")),
    figure("busy", secondsText(step.by_mesh[i].seconds)), figure("share", step.step_seconds ? percent(step.by_mesh[i].seconds / step.step_seconds) : ""),
    figure("flops", flopsText(cost().meshes[i].step.flops_per_device)), figure("sent", bytesText(sentOn(cost().meshes[i]))),
    figure("memory", bytesText(step.by_mesh[i].memory), step.by_mesh[i].memory > target.memory)));
  const named = current().meshes.map(({ name }) => ({ name }));
  place.replaceChildren(headed(["mesh", "axes", "busy", "of the step", "computed", "sent", "memory"], [2, 3, 4, 5, 6], rows),
    el("p", { class: "note" }, "Figures are of one device of the mesh. Bytes sent are those to devices of the same mesh."),
    el("div", { class: "charts" },
      bars("Time", named.map((each, i) => ({ ...each, parts: [["busy", step.by_mesh[i].seconds, 1], ["idle", Math.max(0, step.step_seconds - step.by_mesh[i].seconds), 2]] })), secondsText, chooseMesh),
      bars("Memory", named.map((each, i) => ({ ...each, parts: MEMORY.map(([name, number]) => [MEMORY_NAMES[name] ?? name, cost().meshes[i].memory_per_device[name], number]) })), bytesText, chooseMesh)));
}

// Source

const HEAT = [["FLOPs", "computed", flopsText, "flops"], ["sent", "sent", bytesText, "sent"], ["between", "between meshes", bytesText, "sent"], ["memory", "memory", bytesText, "memory"]];

function source(place) {
  const figures = new Map(current().lines.filter((each) => each.file === data.own).map((each) => [each.line, each]));
  const largest = Object.fromEntries(HEAT.map(([key]) => [key, Math.max(...[...figures.values()].map((each) => each[key] ?? 0), 0)]));
  const lines = (data.sources[data.own] ?? "").replace(/\n$/, "").split("\n");
  const rows = lines.map((text, i) => {
    const line = i + 1, found = figures.get(line), comment = text.indexOf("#");
    return el("tr", { "data-line": line, class: line === state.line ? "chosen" : null },
      HEAT.map(([key, , write, heat]) => el("td", { class: "h", "data-figure": key, style: found?.[key] ? { background: `rgba(var(--heat-${heat}), ${0.06 + 0.6 * Math.sqrt(found[key] / largest[key])})` } : null }, found?.[key] ? write(Math.round(found[key])) : "")),
      el("td", { class: "l", onclick: () => change({ line }, "line") }, String(line)),
      el("td", { class: "c code" }, comment < 0 ? text : [text.slice(0, comment), el("span", { class: "comment" }, text.slice(comment))]));
  });
  place.replaceChildren(el("p", { class: "note" }, "Figures of a line are means of all devices; bytes between meshes are those of all together. A click on a line number lists what the line sends."),
    el("div", { class: "source", tabindex: "0" }, el("table", {}, el("thead", {}, el("tr", {}, HEAT.map(([, name]) => el("th", { class: "n" }, name)), el("th", {}, ""), el("th", {}, data.own ?? ""))), el("tbody", {}, rows))));
}

function lineSends(place) {
  const found = current().lines.find((each) => each.file === data.own && each.line === state.line);
  place.replaceChildren(state.line === null ? "" : found?.sends.length ? table([`line ${state.line} sends`, "bytes"], found.sends, [1]) : el("p", { class: "note" }, `Line ${state.line} sends nothing.`));
}

function between(place) {
  const travels = record().travels;
  if (!travels.length) return place.replaceChildren(el("p", { class: "note" }, "Nothing travels between the meshes."));
  place.replaceChildren(table(["value", "line", "from", "to", "link", "bytes", "seconds"], travels.map((each) => [el("span", { class: "code" }, each.value), placeLink(each.line), each.from, each.to, each.link, bytesText(each.bytes), secondsText(each.seconds)]), [5, 6]));
}

// Arrays

const ARRAYS = layouts.map((layout) => layout.meshes.map((mesh) => mesh.arrays.map(([name, role, file, line, ownLines, dtype, dims, splits, pending, bytes]) =>
  ({ name: texts[name], role, line: ownLines[0] ?? (texts[file] === data.own ? line : 0), dtype, dims, splits, pending, bytes }))));

function arrays(place) {
  const rows = ARRAYS[state.layout].flatMap((found, mesh) => found.map((each, i) => chosenRow({ "data-array": each.name, "data-on": current().meshes[mesh].name }, mesh === state.mesh && i === state.array, () => change({ mesh, array: i, part: null }, "array"),
    el("td", { class: "code" }, each.name), el("td", {}, each.role), el("td", {}, current().meshes[mesh].name),
    el("td", { class: "code" }, `${each.dtype}[${each.dims.map(([dim], k) => (each.splits[k].length ? `${dim}{${each.splits[k].join(", ")}}` : dim)).join(", ")}]`),
    el("td", { class: "n" }, bytesText(each.bytes)), el("td", {}, placeLink(each.line)))));
  place.replaceChildren(el("div", { class: "source", tabindex: "0" }, headed(["array", "", "mesh", "split", "of a device", "line"], [4], rows)));
}

function arrayPanel(place) {
  const mesh = current().meshes[state.mesh], array = ARRAYS[state.layout][state.mesh][state.array], onpart = (part) => change({ part }, "array");
  if (!array) return place.replaceChildren(el("p", { class: "note" }, `Mesh ${mesh.name} has no array with a name.`));
  place.replaceChildren(el("h3", { class: "code", "data-shown": array.name }, `${array.name} on ${mesh.name}`), arrayDrawing(array, mesh.axes, state.part, onpart), meshDrawing(array, mesh.axes, state.part, onpart),
    state.part ? el("p", { class: "note" }, `Chosen: ${rangeText(array, degreesOf(array, mesh.axes), state.part).replaceAll("\n", ", ")}`) : "");
}

// Timeline

function drawTimeline(place) {
  const { lanes, between: links, events } = current(), seconds = record().step_seconds;
  if (!seconds) return place.replaceChildren(el("p", { class: "note" }, "A step computes and sends nothing."));
  const shown = events.map(([lane, name, start, length, stage, file, line]) => ({
    lane, start, end: start + length, name: texts[name], line: texts[file] === data.own ? line : 0, color: links.includes(lane) ? 5 : STAGES[stage] ?? 8,
    tip: `${texts[name]}, ${stage}\n${texts[file] && line ? `${fileName(texts[file])}:${line}` : "added by the compiler"}\n${secondsText(length)} from ${secondsText(start)}`,
  }));
  place.redraw = timeline(place, lanes, shown, seconds, (each) => goTo(each.line));
  place.append(legend([...Object.entries(STAGES), ["between meshes", 5]]), el("p", { class: "note" }, "Drag over the timeline to zoom, double-click for all of it; or focus it and use + − ← → 0."));
}

// The page

KEYS.push(["+ − ← → 0", "zoom and move the focused timeline"]);

const sourcePlace = live(["layout"], source), timelinePlace = live(["layout"], drawTimeline, { class: "timeline" });
listeners.push([["line"], () => markSource(sourcePlace)]);
frame(`${records[0].model}`, `several meshes on ${target.name}`, records.length > 1 ? switcher("layout", records.map((each) => each.layout), records.map((each) => `${each.devices} devices`), choose) : "", [
  ["layouts", records.length > 1 ? "Layouts side by side" : `Layout ${records[0].layout}`, live(["layout"], overview)],
  ["meshes", "Meshes", live(["layout", "array"], meshes)],
  ["between", "Between meshes", live(["layout"], between)],
  ["source", "Source", sourcePlace, live(["line", "layout"], lineSends)],
  ["arrays", "Arrays", el("div", { class: "columns" }, live(["layout", "array"], arrays), el("aside", {}, live(["layout", "array"], arrayPanel)))],
  ["timeline", "Timeline", timelinePlace],
  ...(target.caveat ? [["caveat", "About the machine", el("p", { class: "note" }, target.caveat)]] : []),
]);
for (const [, draw] of listeners) draw();
window.addEventListener("resize", () => timelinePlace.redraw?.());
