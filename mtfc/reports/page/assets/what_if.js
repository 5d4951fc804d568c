"use strict";
// Costs at other sizes: the formulas of the record, evaluated with whole numbers of any length.

const greatest = (a, b) => { while (b) [a, b] = [b, a % b]; return a < 0n ? -a : a; };

// terms: [numerator, denominator, {symbol: power}]; sizes: Map symbol -> BigInt. Returns [numerator, denominator].
function evaluate(terms, sizes) {
  let above = 0n, below = 1n;
  for (const [numerator, denominator, powers] of terms) {
    let n = BigInt(numerator), d = BigInt(denominator);
    for (const [symbol, power] of Object.entries(powers)) {
      if (power > 0) n *= sizes.get(symbol) ** BigInt(power);
      else d *= sizes.get(symbol) ** BigInt(-power);
    }
    [above, below] = [above * d + n * below, below * d];
    const common = greatest(above, below);
    if (common > 1n) [above, below] = [above / common, below / common];
  }
  return [above, below];
}

// A number rounded up, as the commands do.
const ceiling = ([n, d]) => (n >= 0n ? (n + d - 1n) / d : -(-n / d));
const larger = (a, b) => (a[0] * b[1] >= b[0] * a[1] ? a : b);

// The size of a dimension that is computed from others; null if it has none.
function computed(expression, sizes) {
  if (typeof expression === "number") return BigInt(expression);
  if (typeof expression === "string") return sizes.get(expression) ?? null;
  if (!Array.isArray(expression)) return null;
  const [operator, ...operands] = expression, [a, b] = operands.map((each) => computed(each, sizes));
  if (a === null || b === null) return null;
  if (b === undefined) return operator === "-" ? -a : null;
  if (operator === "+") return a + b;
  if (operator === "-") return a - b;
  if (operator === "*") return a * b;
  if (operator === "//" && b !== 0n) return (a - (((a % b) + b) % b)) / b;
  return null;
}

const mentions = (expression) => (typeof expression === "string" ? [expression] : Array.isArray(expression) ? expression.slice(1).flatMap(mentions) : []);

const LIMIT = 2n ** 63n - 1n;

// All sizes when some are chosen: those that are computed from them follow. Returns Map name -> BigInt, or null for one without a size.
function allSizes(declared, chosen) {
  const sizes = new Map();
  const order = [...declared];
  for (let round = 0; order.length && round <= declared.length; round++) {
    for (const each of [...order]) {
      const names = each.expression === null || chosen.has(each.name) ? [] : mentions(each.expression);
      if (names.some((name) => !sizes.has(name) && declared.some((other) => other.name === name))) continue;
      const value = chosen.get(each.name) ?? (names.length ? computed(each.expression, sizes) : BigInt(each.size));
      sizes.set(each.name, value !== null && value >= 1n && value <= LIMIT ? value : null);
      order.splice(order.indexOf(each), 1);
    }
  }
  return sizes;
}

// The costs of a layout at these sizes, or {problem}. axes: Map axis -> BigInt; changed: names of sizes and axes that differ from the file.
// Blocks of positions follow no formula: they are known at the sizes of the file alone.
function costAt(formulas, sizes, axes, changed) {
  const symbols = new Map([...sizes, ...Object.entries(formulas.positions).map(([name, size]) => [name, BigInt(size)])]);
  const fixed = new Set(Object.keys(formulas.positions).map((name) => name.split(".")[0])), moved = changed.find((name) => fixed.has(name) || (fixed.size && axes.has(name)));
  if (moved) return { problem: `positions of ${[...fixed].join(", ")} are split, which no formula follows: mtfc cost has the figures` };
  for (const [axis, size] of axes) symbols.set(formulas.symbols[axis] ?? axis, size);
  const missing = [...sizes].find(([, size]) => size === null);
  if (missing) return { problem: `${missing[0]} has no size` };
  for (const [dim, split] of formulas.divisible) {
    const parts = split.reduce((all, axis) => all * axes.get(axis), 1n);
    if (sizes.has(dim) && sizes.get(dim) % parts) return { problem: `${dim} (${sizes.get(dim)}) is no multiple of ${split.join(" × ")} (${parts})` };
  }
  const memory = Object.fromEntries(Object.entries(formulas.memory).map(([name, terms]) => [name, evaluate(terms, symbols)]));
  memory.activations_peak = formulas.activations.map((terms) => evaluate(terms, symbols)).reduce(larger);
  const total = Object.values(memory).reduce(([a, b], [c, d]) => [a * d + c * b, b * d]);
  const [flops, sent, wire] = [formulas.flops, formulas.sent, formulas.wire].map((terms) => ceiling(evaluate(terms, symbols)));
  const parts = Object.fromEntries(Object.entries(memory).map(([name, amount]) => [name, ceiling(amount)]));
  return { flops, sent, wire, memory: { ...parts, total: ceiling(total) } };
}
