"use strict";
// The page about a model's placements.

const { steps: records, placements, texts, target } = data;
const MEMORY = [["parameters", 1], ["optimizer", 2], ["gradients", 3], ["activations_peak", 4]];
const MEMORY_NAMES = { activations_peak: "activations at their peak", optimizer: "optimizer state" };
const state = { placement: 0, operator: 0, device: null, line: null };
const record = () => records[state.placement], operators = () => placements[state.placement].operators;
const choose = (placement) => change({ placement, operator: 0, device: null }, "placement", "operator", "device");

function overview(place) {
  const rows = records.map((step, i) => el("tr", { tabindex: "0", class: i === state.placement ? "chosen" : null, "data-placement": step.layout, onclick: () => choose(i), onkeydown: (event) => { if (event.key === "Enter") choose(i); } },
    el("td", {}, el("b", {}, step.layout)),
    ...[["devices", String(step.devices)], ["step", secondsText(step.step_seconds)], ["exposed", secondsText(step.exposed_communication_seconds)], ["utilisation", percent(step.utilisation)], ["sent", bytesText(step.bytes_sent)]]
      .map(([name, text]) => el("td", { class: "n", "data-figure": name }, text)),
    el("td", { class: `n${step.fits ? "" : " bad"}`, "data-figure": "memory" }, bytesText(step.memory_per_device.total))));
  const heads = ["placement", "devices", "a step", "waits", "of peak", "sent", "memory"], named = (step) => ({ name: step.layout });
  place.replaceChildren(
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((each, i) => el("th", { class: i ? "n" : null }, each)))), el("tbody", {}, rows))),
    el("p", { class: "note" }, `Bytes sent are those of all devices together. Memory is that of the device that holds the most; ${target.kinds ? `${target.name} has ${target.kinds}` : `a device of ${target.name} has ${bytesText(target.memory)}`}.`),
    el("div", { class: "charts" },
      bars("Time of a step", records.map((step) => ({ ...named(step), parts: [["computing", step.compute_seconds, 1], ["waiting for communication", step.exposed_communication_seconds, 2]] })), secondsText, choose),
      bars("Memory", records.map((step) => ({ ...named(step), parts: MEMORY.map(([name, number]) => [MEMORY_NAMES[name] ?? name, step.memory_per_device[name], number]) })), bytesText, choose)));
}

// Source

const HEAT = [["compute_seconds", "computes", secondsText, "flops"], ["exposed_communication_seconds", "waits", secondsText, "sent"], ["bytes_sent", "sent", bytesText, "sent"], ["memory", "memory", bytesText, "memory"]];

function source(place) {
  const figures = new Map(record().lines.filter((each) => each.file === data.own).map((each) => [each.line, each]));
  const largest = Object.fromEntries(HEAT.map(([key]) => [key, Math.max(...[...figures.values()].map((each) => each[key]), 0)]));
  const lines = (data.sources[data.own] ?? "").replace(/\n$/, "").split("\n");
  const rows = lines.map((text, i) => {
    const line = i + 1, found = figures.get(line), comment = text.indexOf("#");
    return el("tr", { "data-line": line, class: line === state.line ? "chosen" : null },
      HEAT.map(([key, , write, heat]) => el("td", { class: "h", "data-figure": key, style: found?.[key] ? { background: `rgba(var(--heat-${heat}), ${0.06 + 0.6 * Math.sqrt(found[key] / largest[key])})` } : null }, found?.[key] ? write(found[key]) : "")),
      el("td", { class: "l", onclick: () => change({ line }, "line") }, String(line)),
      el("td", { class: "c code" }, comment < 0 ? text : [text.slice(0, comment), el("span", { class: "comment" }, text.slice(comment))]));
  });
  const rest = record().lines.filter((each) => each.file !== data.own);
  place.replaceChildren(el("p", { class: "note" }, "Time is that of the longest path through the step; memory is that of the fullest device. A line has the figures of the functions that it calls."),
    el("div", { class: "source", tabindex: "0" }, el("table", {}, el("thead", {}, el("tr", {}, HEAT.map(([, name]) => el("th", { class: "n" }, name)), el("th", {}, ""), el("th", {}, data.own ?? ""))), el("tbody", {}, rows))),
    rest.length ? table(["elsewhere", ...HEAT.map(([, name]) => name)], rest.map((each) => [each.line ? `${fileName(each.file)}:${each.line}` : "added by the compiler", ...HEAT.map(([key, , write]) => (each[key] ? write(each[key]) : ""))]), [1, 2, 3, 4]) : "");
}

// Operators and devices

// A hue for each device; neighbours of many devices differ in lightness, too.
const deviceColor = (device, devices) => `hsl(${(360 * device) / devices} 58% ${devices > 6 ? [50, 64, 40][device % 3] : 55}%)`;
const degreesText = (degrees) => degrees.map(([dim, degree]) => `${dim} in ${degree}`).join(" × ") || "whole";

function operatorList(place) {
  const rows = operators().map(([name, degrees, devices, line], i) => el("tr", { tabindex: "0", class: i === state.operator ? "chosen" : null, "data-operator": name, onclick: () => change({ operator: i }, "operator"), onkeydown: (event) => { if (event.key === "Enter") change({ operator: i }, "operator"); } },
    el("td", { class: "code" }, name), el("td", {}, degreesText(degrees)),
    el("td", { class: "code", "data-devices": devices.join(",") }, devices.length > 12 ? `${new Set(devices).size} devices` : devices.join(", ")), el("td", {}, placeLink(line))));
  place.replaceChildren(el("div", { class: "source", tabindex: "0" }, el("table", {}, el("thead", {}, el("tr", {}, ["operator", "split", "devices of its parts", "line"].map((each) => el("th", {}, each)))), el("tbody", {}, rows))));
}

function markOperators(place) {
  place.querySelectorAll("tr[data-operator]").forEach((row, i) => {
    row.classList.toggle("chosen", i === state.operator);
    row.classList.toggle("faint", state.device !== null && !operators()[i][2].includes(state.device));
  });
}

function partsPanel(place) {
  const [name, degrees, devices] = operators()[state.operator] ?? [null, [], []], count = record().devices;
  if (name === null) return place.replaceChildren(el("p", { class: "note" }, "The model has no operators."));
  const columns = degrees.length ? degrees.at(-1)[1] : 1, rows = devices.length / columns, cell = Math.max(14, Math.min(46, Math.floor(360 / columns)));
  const drawn = svg("svg", { width: columns * cell + 2, height: rows * cell + 2, role: "img", "aria-label": `The parts of ${name}` });
  devices.forEach((device, i) => {
    const x = (i % columns) * cell, y = Math.floor(i / columns) * cell, at = [];
    let rest = i;
    for (const [dim, degree] of [...degrees].reverse()) { at.unshift(`${dim} ${(rest % degree) + 1} of ${degree}`); rest = Math.floor(rest / degree); }
    drawn.append(tipped(svg("rect", { x, y, width: cell, height: cell, fill: deviceColor(device, count), class: `device${device === state.device ? " chosen" : ""}`, "data-part": i, "data-device": device, onclick: () => change({ device: device === state.device ? null : device }, "device") }), [...at, `on device ${device}`].join(", ")),
      cell >= 22 ? svg("text", { x: x + cell / 2, y: y + cell / 2 + 4, "text-anchor": "middle", class: "bar-label" }, String(device)) : "");
  });
  place.replaceChildren(el("h3", { class: "code", "data-shown": name }, name), el("p", { class: "note" }, `${degreesText(degrees)}: a square is a part, on the device of its number and colour.`), el("div", { class: "scroll" }, drawn));
}

function devices(place) {
  const { by_device: found, step_seconds: seconds } = record();
  const most = Math.max(...found.map((each) => each.memory), 1), bar = (share, number) => el("div", { class: "bar" }, el("div", {}, el("i", { class: `s${number}`, style: { width: `${100 * share}%` } })));
  const rows = found.map((each) => el("tr", { tabindex: "0", class: each.device === state.device ? "chosen" : null, "data-device": each.device, onclick: () => pick(each.device), onkeydown: (event) => { if (event.key === "Enter") pick(each.device); } },
    el("td", {}, el("i", { class: "swatch", style: { background: deviceColor(each.device, found.length) } }), ` device ${each.name ?? each.device}`),
    el("td", { class: "n", "data-figure": "compute" }, secondsText(each.compute_seconds)), el("td", { class: "n" }, seconds ? percent(each.compute_seconds / seconds) : ""), el("td", { class: "wide" }, bar(seconds ? each.compute_seconds / seconds : 0, 1)),
    el("td", { class: "n", "data-figure": "memory" }, bytesText(each.memory)), el("td", { class: "wide" }, bar(each.memory / most, 4))));
  const ports = Object.entries(record().links);
  place.replaceChildren(el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["device", "computes", "of the step", "", "memory", ""].map((each, i) => el("th", { class: [1, 2, 4].includes(i) ? "n" : null }, each)))), el("tbody", {}, rows))),
    ports.length ? el("p", { class: "note" }, `Busiest ports: ${ports.map(([link, busy]) => `${link} ${secondsText(busy)}`).join(", ")}.`) : el("p", { class: "note" }, "Nothing is sent."));
}

const pick = (device) => change({ device: device === state.device ? null : device }, "device");

// Timeline

function drawTimeline(place) {
  const { lanes, events, events_left_out: rest } = placements[state.placement], seconds = record().step_seconds;
  if (!seconds) return place.replaceChildren(el("p", { class: "note" }, "A step computes and sends nothing."));
  const shown = events.map(([lane, name, start, length, stage, file, line, task]) => ({
    lane, start, end: start + length, name: texts[name], stage, line: texts[file] === data.own ? line : 0, color: lanes[lane].startsWith("device ") ? STAGES[stage] ?? 8 : 5,
    tip: `${texts[name]} (${task}), ${stage}\n${texts[file] && line ? `${fileName(texts[file])}:${line}` : "added by the compiler"}\n${secondsText(length)} from ${secondsText(start)}`,
  }));
  place.redraw = timeline(place, lanes, shown, seconds, (each) => goTo(each.line));
  place.append(legend([...Object.entries(STAGES), ["communication", 5]]), el("p", { class: "note" }, `Drag over the timeline to zoom, double-click for all of it; or focus it and use + − ← → 0. ${rest ? `${rest.toLocaleString("en")} shorter tasks are left out.` : ""}`));
}

// The page

KEYS.push(["+ − ← → 0", "zoom and move the focused timeline"]);

const sourcePlace = live(["placement"], source), listPlace = live(["placement"], operatorList), timelinePlace = live(["placement"], drawTimeline, { class: "timeline" });
listeners.push([["line"], () => markSource(sourcePlace)], [["operator", "device", "placement"], () => markOperators(listPlace)]);
frame(`${records[0].model}`, `placements on ${target.name}`, records.length > 1 ? switcher("placement", records.map((each) => each.layout), records.map((each) => `${each.devices} devices`), choose) : "", [
  ["placements", records.length > 1 ? "Placements side by side" : `Placement ${records[0].layout}`, live(["placement"], overview)],
  ["source", "Source", sourcePlace],
  ["operators", "Operators", el("div", { class: "columns" }, listPlace, el("aside", {}, live(["operator", "device", "placement"], partsPanel)))],
  ["devices", "Devices", live(["placement", "device"], devices), el("p", { class: "note" }, "A click on a device marks its parts, and dims the operators that have none on it.")],
  ["timeline", "Timeline", timelinePlace],
  ...(target.caveat ? [["caveat", "About the machine", el("p", { class: "note" }, target.caveat)]] : []),
]);
for (const [, draw] of listeners) draw();
window.addEventListener("resize", () => timelinePlace.redraw?.());
