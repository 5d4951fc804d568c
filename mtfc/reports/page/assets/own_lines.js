"use strict";
// Lines of a page that shows one file: links to them, and the chosen one in the source.

const STAGES = { forward: 1, backward: 2, update: 3 };
const placeText = (line) => (line ? `line ${line}` : "added by the compiler");
const placeLink = (line) => (line ? el("button", { class: "place code", onclick: () => goTo(line) }, placeText(line)) : placeText(line));
const goTo = (line) => {
  if (!line) return;
  change({ line }, "line");
  document.querySelector(`#source tr[data-line="${line}"]`)?.scrollIntoView({ block: "nearest" });
};

function markSource(place) {
  for (const row of place.querySelectorAll("tr[data-line]")) row.classList.toggle("chosen", Number(row.dataset.line) === state.line);
}
