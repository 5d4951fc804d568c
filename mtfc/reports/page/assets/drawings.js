"use strict";
// Drawings that no library of charts has: bars by part, an array's parts on a mesh, the timeline of a step, a roofline.

// rows: [{name, parts: [[name, value, color]], chosen}]; text: a value as text.
function bars(title, rows, text, onchoose) {
  const largest = Math.max(...rows.map((row) => row.parts.reduce((sum, [, value]) => sum + value, 0)), 0);
  const names = new Map(rows.flatMap((row) => row.parts.map(([name, , number]) => [name, number])));
  return el("div", { "data-chart": title }, el("h3", {}, title), rows.map((row, i) => {
    const sum = row.parts.reduce((total, [, value]) => total + value, 0);
    const described = row.parts.filter(([, value]) => value).map(([name, value]) => `${name} ${text(value)}`).join("\n");
    return tipped(el("div", { class: "bar", role: "img", "aria-label": `${row.name}: ${text(sum)}`, onclick: () => onchoose && onchoose(i) },
      el("span", {}, row.name),
      el("div", {}, row.parts.map(([, value, number]) => el("i", { class: `s${number}`, style: { width: `${largest ? (100 * value) / largest : 0}%` } }))),
      el("b", {}, row.missing ?? text(sum))), `${row.name}\n${described}`);
  }), names.size > 1 ? legend([...names]) : null);
}

// An array on a mesh

const product = (numbers) => numbers.reduce((a, b) => a * b, 1);

// The coordinates of each device, in the order of the mesh: the last axis changes fastest.
function coordinates(axes) {
  return axes.reduce((found, [, size]) => found.flatMap((each) => Array.from({ length: size }, (_, i) => [...each, i])), [[]]);
}

// The number of the part along each dimension that a device holds.
function partOf(array, axes, at) {
  const place = new Map(axes.map(([name], i) => [name, at[i]])), sizes = new Map(axes);
  return array.splits.map((split) => split.reduce((part, axis) => part * sizes.get(axis) + place.get(axis), 0));
}

const degreesOf = (array, axes) => array.splits.map((split) => product(split.map((axis) => new Map(axes).get(axis))));

function rangeText(array, degrees, part) {
  return array.dims.map(([dim, size], i) => {
    const step = size / degrees[i];
    return degrees[i] === 1 ? `${dim} all ${size}` : `${dim} ${part[i] * step}:${(part[i] + 1) * step} of ${size}`;
  }).join("\n") || "a scalar";
}

// A colour for each part: neighbours along the first split dimension differ in hue, along the second in lightness.
function partColor(part, degrees) {
  const split = degrees.map((degree, i) => [degree, part[i]]).filter(([degree]) => degree > 1);
  const [first, second] = [split[0] ?? [1, 0], split[1] ?? [1, 0]];
  const rest = split.slice(2).reduce((sum, [degree, i]) => sum * degree + i, 0), all = product(split.slice(2).map(([degree]) => degree));
  const hue = 205 + (first[0] > 1 ? (300 * first[1]) / first[0] : 0) + (rest / Math.max(all, 1)) * (300 / first[0]);
  return `hsl(${hue % 360} 52% ${second[0] > 1 ? 38 + (34 * second[1]) / (second[0] - 1) : 56}%)`;
}

const MOST_CELLS = 4096;

// Devices as a grid: the last axis from left to right, all others from top to bottom. onpart: called with the part of a device.
function meshDrawing(array, axes, chosen, onpart) {
  const count = product(axes.map(([, size]) => size));
  if (count > MOST_CELLS) return el("p", { class: "note" }, `The mesh has ${count} devices, too many to draw.`);
  const columns = axes.length === 1 ? Math.min(axes[0][1], 32) : axes.at(-1)[1], rows = Math.ceil(count / columns);
  const cell = Math.max(3, Math.min(34, Math.floor(360 / columns))), left = 26, top = 18, degrees = degreesOf(array, axes);
  const drawn = svg("svg", { width: left + columns * cell + 2, height: top + rows * cell + 4, role: "img", "aria-label": "The devices of the mesh" });
  const names = axes.map(([name, size]) => `${name}: ${size}`);
  drawn.append(svg("text", { x: left, y: 12, class: "faint" }, `${axes.at(-1)[0]} →`));
  if (axes.length > 1) drawn.append(svg("text", { x: 12, y: top, class: "faint", transform: `rotate(90 12 ${top})` }, `${axes.slice(0, -1).map(([name]) => name).join(", ")} →`));
  coordinates(axes).forEach((at, i) => {
    const part = partOf(array, axes, at), name = axes.map(([axis], k) => `${axis} ${at[k]}`).join(", ");
    const device = svg("rect", {
      x: left + (i % columns) * cell, y: top + Math.floor(i / columns) * cell, width: cell, height: cell, rx: cell > 12 ? 2 : 0,
      fill: partColor(part, degrees), class: `device${String(part) === String(chosen) ? " chosen" : ""}`,
      "data-device": i, "data-part": part.join(","), onclick: () => onpart(part),
    });
    drawn.append(tipped(device, `device ${i}: ${name}\n${rangeText(array, degrees, part)}`));
    if (cell >= 22 && count <= 64) drawn.append(svg("text", { x: left + (i % columns) * cell + cell / 2, y: top + Math.floor(i / columns) * cell + cell / 2 + 4, "text-anchor": "middle", class: "bar-label" }, String(i)));
  });
  return el("div", { class: "scroll", "data-mesh": names.join(", ") }, drawn);
}

// The array as a rectangle with its parts: the two dimensions that are split most stand for the sides.
function arrayDrawing(array, axes, chosen, onpart) {
  const degrees = degreesOf(array, axes), order = array.dims.map((_, i) => i).sort((a, b) => degrees[b] - degrees[a] || a - b);
  const sides = order.slice(0, 2).sort((a, b) => a - b), [down, across] = sides.length === 2 ? sides : [undefined, sides[0]];
  const rows = down === undefined ? 1 : degrees[down], columns = across === undefined ? 1 : degrees[across];
  const width = 300, height = down === undefined ? 46 : 130, left = 26, top = 18;
  const drawn = svg("svg", { width: left + width + 4, height: top + height + 6, role: "img", "aria-label": "The parts of the array" });
  if (across !== undefined) drawn.append(svg("text", { x: left, y: 12, class: "faint" }, `${array.dims[across].join(" ")}${columns > 1 ? ` in ${columns}` : ""}`));
  if (down !== undefined) drawn.append(svg("text", { x: 12, y: top, class: "faint", transform: `rotate(90 12 ${top})` }, `${array.dims[down].join(" ")}${rows > 1 ? ` in ${rows}` : ""}`));
  for (let r = 0; r < Math.min(rows, 512); r++) for (let c = 0; c < Math.min(columns, 512); c++) {
    const part = degrees.map((_, i) => (i === down ? r : i === across ? c : chosen?.[i] ?? 0));
    const cell = svg("rect", {
      x: left + (c * width) / columns, y: top + (r * height) / rows, width: width / columns, height: height / rows,
      fill: partColor(part, degrees), class: `part${Math.min(width / columns, height / rows) < 4 ? " thin" : ""}${String(part) === String(chosen) ? " chosen" : ""}`, "data-part": part.join(","), onclick: () => onpart(part),
    });
    drawn.append(tipped(cell, rangeText(array, degrees, part)));
  }
  return drawn;
}

// The timeline

// lanes: names; events: [{lane, start, end, name, tip, stage, color}]. Bars of one lane that lie in each other stand below each other.
function timeline(place, lanes, events, total, onchoose) {
  const ROW = 17, LEFT = 118, sorted = [...events].sort((a, b) => a.lane - b.lane || a.start - b.start || b.end - a.end);
  const depths = lanes.map(() => 1), open = lanes.map(() => []);
  for (const each of sorted) {
    const stack = open[each.lane];
    while (stack.length && stack.at(-1) <= each.start + total * 1e-7) stack.pop();
    each.depth = stack.length;
    stack.push(each.end);
    depths[each.lane] = Math.max(depths[each.lane], stack.length);
  }
  const tops = [];
  let height = 22;
  for (const depth of depths) { tops.push(height); height += depth * ROW + 7; }
  let view = [0, total], drag = null;
  const root = svg("svg", { height, tabindex: "0", role: "application", "aria-label": "Timeline: arrows move, plus and minus zoom, 0 shows all" });
  const status = el("span", { class: "note", "data-view": true });
  function look(from, to) {
    const span = Math.min(total, Math.max(to - from, total * 1e-7));
    const start = Math.max(0, Math.min(from, total - span));
    view = [start, start + span];
    draw();
  }
  const zoom = (factor, at = (view[0] + view[1]) / 2) => look(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
  const move = (share) => look(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));
  function draw() {
    const width = Math.max(320, place.clientWidth), inner = width - LEFT - 6, scale = inner / (view[1] - view[0]);
    const at = (time) => LEFT + (time - view[0]) * scale;
    root.setAttribute("width", width);
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const parts = [];
    for (let i = 0; i <= 6; i++) {
      const time = view[0] + ((view[1] - view[0]) * i) / 6, x = at(time);
      parts.push(svg("line", { x1: x, x2: x, y1: 16, y2: height, class: "axis" }),
        svg("text", { x, y: 11, class: "faint", "text-anchor": i === 6 ? "end" : i ? "middle" : "start" }, secondsText(time)));
    }
    lanes.forEach((name, i) => parts.push(svg("text", { x: 0, y: tops[i] + 12 }, name)));
    const last = new Map();
    let shown = 0;
    for (const each of sorted) {
      if (each.end < view[0] || each.start > view[1]) continue;
      const x = Math.max(LEFT, at(each.start)), right = Math.min(LEFT + inner, at(each.end)), row = `${each.lane} ${each.depth}`;
      if (right - x < 0.7 && last.get(row) > x - 0.7) continue;  // as good as on the bar before
      last.set(row, Math.max(right, x + 0.7));
      shown += 1;
      const y = tops[each.lane] + each.depth * ROW;
      parts.push(tipped(svg("rect", { x, y, width: Math.max(0.7, right - x), height: ROW - 2, class: `event f${each.color}`, onclick: () => onchoose(each) }), each.tip));
      if (right - x > 46) parts.push(svg("text", { x: x + 3, y: y + 11, class: "bar-label" }, each.name.slice(0, Math.floor((right - x - 6) / 6))));
    }
    if (drag) parts.push(svg("rect", { class: "select", x: Math.min(...drag), y: 16, width: Math.abs(drag[1] - drag[0]), height: height - 16 }));
    root.replaceChildren(...parts);
    status.textContent = `${secondsText(view[0])} to ${secondsText(view[1])} of ${secondsText(total)}, ${shown} bars`;
  }
  const xOf = (event) => event.clientX - root.getBoundingClientRect().left;
  const timeAt = (x) => view[0] + ((x - LEFT) / (root.getAttribute("width") - LEFT - 6)) * (view[1] - view[0]);
  root.addEventListener("pointerdown", (event) => { if (event.button === 0) drag = [xOf(event), xOf(event)]; });
  root.addEventListener("pointermove", (event) => {
    if (!drag) return;
    drag[1] = xOf(event);
    if (Math.abs(drag[1] - drag[0]) > 4) { root.setPointerCapture(event.pointerId); draw(); }
  });
  root.addEventListener("pointerup", () => {
    const [from, to] = drag ?? [0, 0];
    drag = null;
    if (Math.abs(to - from) > 4) look(timeAt(Math.min(from, to)), timeAt(Math.max(from, to)));
  });
  root.addEventListener("dblclick", () => look(0, total));
  root.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(xOf(event)));
  }, { passive: false });
  const byKey = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.7), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), 0: () => look(0, total) };
  root.addEventListener("keydown", (event) => {
    if (!byKey[event.key]) return;
    event.preventDefault(); event.stopPropagation();
    byKey[event.key]();
  });
  const buttons = [["−", () => zoom(1.7), "Zoom out"], ["+", () => zoom(0.6), "Zoom in"], ["←", () => move(-0.2), "Earlier"], ["→", () => move(0.2), "Later"], ["all", () => look(0, total), "Show all"]];
  place.replaceChildren(el("div", { class: "group noprint" }, buttons.map(([name, onclick, title]) => el("button", { onclick, title, "aria-label": title }, name)), status), root);
  draw();
  return draw;
}

// The roofline

// points: [{x: FLOPs per byte, y: FLOP/s, share, name, tip, color}]; roofs: [[dtype, FLOP/s]]; bandwidth: bytes/s.
function roofline(points, roofs, bandwidth, onchoose) {
  const WIDTH = 760, HEIGHT = 340, LEFT = 62, BOTTOM = 34, TOP = 14, RIGHT = 20;
  const most = Math.max(...roofs.map(([, rate]) => rate)), ridge = bandwidth ? most / bandwidth : 1;
  const xs = points.map((each) => each.x), ys = points.map((each) => each.y);
  const span = (low, high) => [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high) + 0.05)];
  const [x0, x1] = span(Math.min(...xs, ridge / 10), Math.max(...xs, ridge * 10)), [y0, y1] = span(Math.min(...ys, most / 1e3), most * 1.2);
  const atX = (x) => LEFT + ((Math.log10(x) - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT), atY = (y) => HEIGHT - BOTTOM - ((Math.log10(y) - y0) / (y1 - y0)) * (HEIGHT - BOTTOM - TOP);
  const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": "Roofline of the kernels" });
  for (let i = x0; i <= x1; i++) drawn.append(svg("line", { class: "axis", x1: atX(10 ** i), x2: atX(10 ** i), y1: TOP, y2: HEIGHT - BOTTOM }), svg("text", { class: "faint", x: atX(10 ** i), y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, 10 ** i < 1 ? digits(10 ** i, 3) : countText(10 ** i)));
  for (let i = y0; i <= y1; i++) drawn.append(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: atY(10 ** i), y2: atY(10 ** i) }), svg("text", { class: "faint", x: LEFT - 6, y: atY(10 ** i) + 4, "text-anchor": "end" }, countText(10 ** i)));
  drawn.append(svg("text", { class: "faint", x: WIDTH - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, "FLOPs per byte of memory moved"), svg("text", { class: "faint", x: LEFT, y: 10 }, "FLOP/s"));
  let free = TOP - 16;
  for (const [dtype, rate] of [...roofs].sort((a, b) => b[1] - a[1])) {
    free = atY(rate) - 4 < free + 12 ? Math.max(atY(rate), free) + 12 : atY(rate) - 4;
    const corner = bandwidth ? Math.max(10 ** x0, rate / bandwidth) : 10 ** x0;
    drawn.append(svg("path", { class: "roof", d: `M${atX(corner)},${atY(rate)} H${WIDTH - RIGHT}` }), svg("text", { class: "faint", x: WIDTH - RIGHT - 4, y: free, "text-anchor": "end" }, `${dtype} ${countText(rate)}FLOP/s`));
  }
  if (bandwidth) {
    const from = Math.max(10 ** x0, 10 ** y0 / bandwidth);
    drawn.append(svg("path", { class: "roof", d: `M${atX(from)},${atY(from * bandwidth)} L${atX(ridge)},${atY(most)}` }));
  }
  for (const each of points) drawn.append(tipped(svg("circle", { cx: atX(each.x), cy: atY(Math.max(each.y, 10 ** y0)), r: 3 + 15 * Math.sqrt(each.share), class: `f${each.color}`, onclick: () => onchoose(each) }), each.tip));
  return drawn;
}
