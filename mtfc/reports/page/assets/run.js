"use strict";
// The page about a training run.

const { curves: figures, checkpoints, last } = data;
const number = (value) => digits(value, 6), rate = Object.keys(figures).find((name) => name.endsWith("_per_second"));

// Known figures, each with the curves of its chart; every other figure has a chart of its own.
const CHARTS = [
  ["loss", "Loss", ["loss", "eval/loss"], number],
  ["learning-rate", "Learning rate", ["learning_rate"], number],
  ["gradient-norm", "Norm of the gradients", ["grad_norm"], number],
  ["step-time", "Time of a step", ["seconds", "predicted_seconds"], secondsText],
  ["throughput", "Throughput", rate ? [rate] : [], countText],
  ["mfu", "Share of the machine's peak FLOP/s", ["mfu"], (share) => `${digits(100 * share, 3)}%`],
];
const NAMES = { seconds: "measured", predicted_seconds: "predicted", "eval/loss": "evaluation" };
const HIDDEN = new Set(["predicted_share", ...CHARTS.flatMap(([, , names]) => names)]);

function others() {
  const groups = new Map();
  for (const name of Object.keys(figures)) if (!HIDDEN.has(name)) {
    const group = /^(eval|report)\//.test(name) ? name : name.replace(/\/\d+$/, "");
    groups.set(group, [...(groups.get(group) ?? []), name]);
  }
  return [...groups].map(([group, names], i) => [`figure-${i}`, group.replace(/^eval\//, "Evaluation: "), names, number]);
}

// Curves of several lengths over all of their steps.
function joined(names) {
  const steps = [...new Set(names.flatMap((name) => figures[name][0]))].sort((a, b) => a - b), at = new Map(steps.map((step, i) => [step, i]));
  return [steps, names.map((name) => {
    const values = new Array(steps.length).fill(null);
    figures[name][0].forEach((step, i) => { values[at.get(step)] = figures[name][1][i]; });
    return values;
  })];
}

// The median of the values that are finite.
const middle = (values) => { const sorted = values.filter((each) => each !== null).sort((a, b) => a - b); return sorted[Math.floor(sorted.length / 2)]; };

function chart([id, title, names, text]) {
  const found = names.filter((name) => figures[name]);
  if (!found.length) return null;
  const place = el("div"), [steps, values] = joined(found), bad = found.flatMap((name) => figures[name][0].filter((_, i) => figures[name][1][i] === null)).sort((a, b) => a - b);
  const log = id === "step-time" && Math.max(...values.flat().filter(Number.isFinite)) > 20 * middle(values[0]);
  curve(place, { name: title, x: steps, xName: "step", xText: (step) => String(Math.round(step * 100) / 100), text, log, free: true,
    series: found.map((name, i) => ({ name: NAMES[name] ?? name, color: (i % 8) + 1, values: values[i], points: figures[name][0].length < 60, dash: name === "predicted_seconds" ? [6, 4] : undefined })),
    marks: id === "loss" ? checkpoints.map((step) => [step, ""]) : [] });
  return [id, title, place, bad.length ? el("p", { class: "note bad" }, bad.length === 1 ? `The value at step ${bad[0]} is not finite.` : `${bad.length} values are not finite, from step ${bad[0]} on.`) : null,
    id === "loss" && checkpoints.length ? el("p", { class: "note" }, "Dashed lines are checkpoints.") : null];
}

const summary = [["steps", `${data.first} to ${last.step}`], ["loss", last.loss === null ? "not finite" : number(last.loss)],
  ...Object.entries(last).filter(([name]) => name.startsWith("eval/")).map(([name, value]) => [name, value === null ? "not finite" : number(value)]),
  ["step time", data.median_seconds === null ? "" : `${secondsText(data.median_seconds)} (median)`],
  ...(figures.predicted_seconds ? [["predicted step time", secondsText(figures.predicted_seconds[1].at(-1))]] : []),
  ["checkpoints", checkpoints.length ? checkpoints.join(", ") : "none"]];

frame(`run ${data.name}`, `${data.steps.toLocaleString("en")} step${data.steps === 1 ? "" : "s"}`, "", [
  ["summary", "At the end", table(["", ""], summary)], ...[...CHARTS, ...others()].map(chart).filter(Boolean),
]);
