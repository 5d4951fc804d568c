"use strict";
// Curves over a common x, by uPlot: drag to zoom, double-click to see all. They are drawn again when the theme or the width changes.

const curves = [];
const WHOLE = Array.from({ length: 36 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));

// series: [{name, values, color: 1..8, dash, width, points}]; text: a value as text; xText, xName: of the x axis.
// stacked: the series are areas on top of each other. log: the y axis is logarithmic. binary: its ticks are powers of two. free: it need not begin at 0.
function curve(place, { name, x, series, text, xName = "", xText = (v) => String(v), stacked = false, log = false, binary = false, free = false, height = 260, onchoose = null, marks = [] }) {
  let plot = null;
  const shown = stacked ? sums(series.map((each) => each.values)) : series.map((each) => each.values);
  function draw() {
    if (plot) plot.destroy();
    const width = Math.max(300, place.clientWidth);
    const axis = { stroke: color("faint"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const options = {
      width, height,
      scales: { x: { time: false }, y: log ? { distr: 3 } : free ? {} : { range: (u, low, high) => [Math.min(0, low ?? 0), (high ?? 1) * 1.05 || 1] } },
      axes: [{ ...axis, label: xName, labelSize: 20, size: 34, labelFont: axis.font, ...(x.every(Number.isInteger) ? { incrs: WHOLE } : {}), values: (u, ticks) => ticks.map(xText) },
        { ...axis, size: 78, ...(binary ? { incrs: Array.from({ length: 60 }, (_, i) => 2 ** i) } : {}), values: (u, ticks) => ticks.map((v) => (v === null ? "" : text(v))) }],
      series: [{ label: xName, value: (u, v) => (v === null ? "" : xText(v)) }, ...series.map((each, i) => ({
        label: each.name,
        stroke: color(`c${each.color}`), width: each.width ?? (stacked ? 1 : 1.75), dash: each.dash, spanGaps: true,
        fill: stacked ? `${color(`c${each.color}`)}b0` : undefined,
        points: { show: each.points ?? false, size: 6 },
        value: (u, v, s, at) => (at === null || at === undefined ? "" : each.values[at] === null ? "–" : text(each.values[at])),
      }))],
      bands: stacked ? series.slice(1).map((_, i) => ({ series: [i + 1, i + 2] })) : undefined,
      hooks: { draw: [(u) => drawMarks(u, marks)] },
      cursor: { drag: { x: true, y: false } },
    };
    plot = new uPlot(options, [x, ...shown], place);
    plot.root.setAttribute("role", "img");
    plot.root.setAttribute("aria-label", name);
    if (onchoose) plot.over.addEventListener("click", () => { if (plot.cursor.idx !== null) onchoose(plot.cursor.idx); });
  }
  const entry = { place, draw, x, series, get plot() { return plot; } };
  curves.push(entry);
  requestAnimationFrame(draw);
  return entry;
}

// marks: [[x, text]], vertical lines.
function drawMarks(u, marks) {
  const { ctx } = u, { top, height, left, width } = u.bbox;
  ctx.save();
  ctx.fillStyle = ctx.strokeStyle = color("faint");
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.setLineDash([4, 4]);
  for (const [at, text] of marks) {
    const x = u.valToPos(at, "x", true);
    if (x < left || x > left + width) continue;
    ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
    if (text) ctx.fillText(text, x + 4, top + 12 * devicePixelRatio);
  }
  ctx.restore();
}

// The areas of a stack from the top: each is the sum of itself and of all after it, so that the first is drawn behind.
function sums(all) {
  const found = all.map((values) => [...values]);
  for (let i = all.length - 2; i >= 0; i--) for (let k = 0; k < found[i].length; k++) found[i][k] += found[i + 1][k];
  return found;
}

function redrawCurves() {
  for (const each of curves.filter((entry) => entry.place.isConnected)) each.draw();
}

themeListeners.push(redrawCurves);
let resizing = 0;
window.addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redrawCurves, 150); });
