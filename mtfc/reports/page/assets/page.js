"use strict";
// What every page shares: the record, elements, numbers as text, the theme, keys and the tip under the pointer.

const data = JSON.parse(document.getElementById("data").textContent);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else node.setAttribute(name, value === true ? "" : value);
  }
  // texts become text nodes, so no text of a file is ever read as HTML
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// Numbers, as `mtfc cost` writes them

// Four digits as Python's `.4g`: ties go to the even digit.
function digits(x, count = 4) {
  if (!Number.isFinite(x)) return x === null || x === undefined ? "" : String(x);
  if (x === 0) return "0";
  const [mantissa, power] = Math.abs(x).toExponential(60).split("e");
  const all = mantissa.replace(".", "");
  let kept = BigInt(all.slice(0, count)), exponent = Number(power);
  const rest = all.slice(count), half = "5".padEnd(rest.length, "0");
  if (rest > half || (rest === half && kept % 2n === 1n)) kept += 1n;
  let text = kept.toString();
  if (text.length > count) { text = text.slice(0, count); exponent += 1; }
  const sign = x < 0 ? "-" : "";
  if (exponent < -4 || exponent >= count) {
    const tail = text.slice(1).replace(/0+$/, "");
    return `${sign}${text[0]}${tail && "."}${tail}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  if (exponent < 0) return `${sign}0.${"0".repeat(-exponent - 1)}${text}`.replace(/0+$/, "");
  const tail = text.slice(exponent + 1).replace(/0+$/, "");
  return `${sign}${text.slice(0, exponent + 1)}${tail && "."}${tail}`;
}

function bytesText(count) {
  if (count < 1024) return `${count} B`;
  let exponent = 0;
  while (exponent < 6 && count >= 1024 ** (exponent + 1)) exponent += 1;
  return `${digits(count / 1024 ** exponent)} ${" KMGTPE"[exponent]}iB`;
}

function countText(count) {
  let thousands = 0;
  while (thousands < 5 && count >= 1000 ** (thousands + 1)) thousands += 1;
  return `${digits(count / 1000 ** thousands)} ${" kMGTP"[thousands]}`.trimEnd();
}

const flopsText = (count) => (/[a-zA-Z]$/.test(countText(count)) ? `${countText(count)}FLOP` : `${countText(count)} FLOP`);

function secondsText(seconds) {
  const units = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
  const [unit, name] = units.find(([least]) => seconds >= least) || units[3];
  return `${digits(seconds / unit)} ${name}`;
}

const percent = (share) => `${(100 * share).toFixed(1)}%`;
const fileName = (file) => file.slice(file.lastIndexOf("/") + 1);

// The theme

const themeListeners = [];
const wanted = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;

function showTheme(theme = chosenTheme ?? (wanted.matches ? "dark" : "light")) {
  if (document.documentElement.dataset.theme === theme) return;
  document.documentElement.dataset.theme = theme;
  for (const each of themeListeners) each();
}

function switchTheme() {
  chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  showTheme();
}

wanted.addEventListener("change", () => showTheme());
window.addEventListener("beforeprint", () => showTheme("light"));
window.addEventListener("afterprint", () => showTheme());
showTheme();

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// The tip under the pointer

const tip = el("div", { id: "tip", role: "status", hidden: true });

function tipped(node, text) {
  node.addEventListener("pointermove", (event) => {
    tip.textContent = typeof text === "function" ? text(event) : text;
    tip.hidden = !tip.textContent;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 8 : event.clientY + 18}px`;
  });
  node.addEventListener("pointerleave", () => { tip.hidden = true; });
  return node;
}

// The frame

const KEYS = [["t", "switch between light and dark"], ["n, p", "go to the next or previous section"], ["?", "show this help"]];
const keys = { t: switchTheme, n: () => goOn(1), p: () => goOn(-1), "?": () => help.showModal() };
const help = el("dialog", { "aria-label": "Keys" });

function goOn(step) {
  const all = [...document.querySelectorAll("main > section")];
  const at = all.findLastIndex((each) => each.getBoundingClientRect().top < 120);
  const next = all[Math.max(0, Math.min(all.length - 1, at + step))];
  next.scrollIntoView();
  next.querySelector("h2").focus({ preventScroll: true });
}

// sections: [id, title, content]; above: what stands in the header beside the title.
function frame(title, subtitle, above, sections) {
  const nav = el("nav", { "aria-label": "Sections" }, sections.map(([id, name]) => el("a", { href: `#${id}` }, name)));
  const tools = el("span", { class: "group push noprint" },
    el("button", { onclick: switchTheme, title: "Light or dark (t)" }, "◐"),
    el("button", { onclick: () => help.showModal(), title: "Keys (?)" }, "?"));
  const parts = sections.map(([id, name, ...content]) =>
    el("section", { id, "aria-label": name }, el("h2", { tabindex: "-1" }, name), content));
  const version = data.version ? `mtfc ${data.version}` : "mtfc";
  document.body.append(
    el("header", {}, el("h1", {}, title), el("span", { class: "note" }, subtitle), above, tools, nav),
    el("main", {}, parts, el("p", { class: "note" }, `Made by ${version}. This page loads nothing.`)), tip, help);
  help.append(el("table", {}, el("tbody", {}, KEYS.map(([key, text]) => el("tr", {}, el("td", {}, el("kbd", {}, key)), el("td", {}, text))))),
    el("form", { method: "dialog" }, el("button", { autofocus: true }, "Close")));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open || event.target.matches("input, select, textarea")) return;
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});

// The state of a page: each page has its own `state`

const listeners = [];

function change(values, ...what) {
  Object.assign(state, values);
  for (const [kinds, draw] of listeners) if (kinds.some((kind) => what.includes(kind))) draw();
}

// A part of the page that is drawn anew when one of some kinds of state changes.
function live(kinds, draw, attributes = {}) {
  const place = el("div", attributes);
  listeners.push([kinds, () => draw(place)]);
  return place;
}

// Buttons for one of several things, by clicks, arrows and the keys 1 to 9. kind: of the state, which has the number chosen.
function switcher(kind, names, titles, choose) {
  const place = live([kind], (each) => each.replaceChildren(...names.map((name, i) => el("button", {
    role: "radio", "aria-checked": String(i === state[kind]), onclick: () => choose(i), title: `${titles[i]} (${i < 9 ? i + 1 : ""})`,
  }, name))), { class: "group", role: "radiogroup", "aria-label": kind });
  place.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose((state[kind] + step + names.length) % names.length);
    place.children[state[kind]].focus();
  });
  for (let i = 0; i < Math.min(9, names.length); i++) keys[i + 1] = () => choose(i);
  if (names.length > 1) KEYS.unshift([`1 – ${Math.min(9, names.length)}`, `choose a ${kind}`]);
  return place;
}

const legend = (entries) => el("div", { class: "legend" }, entries.map(([name, number]) => el("span", {}, el("i", { class: `s${number}` }), name)));

// rows: arrays of cells; numbers: the columns that are aligned to the right.
function table(heads, rows, numbers = []) {
  const cell = (tag, content, i) => el(tag, { class: numbers.includes(i) ? "n" : null }, content);
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((each, i) => cell("th", each, i)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((each, i) => cell("td", each, i)))))));
}
