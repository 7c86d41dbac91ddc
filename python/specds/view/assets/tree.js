"use strict";
// Draws drafts, coloured by what drafted them.
const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const colour = (source) => `color: var(--${source || "ink"})`;
const shownToken = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ | $/g, "␣") || "∅";

// A draft from left to right: each token beside those that may follow it.
function drawTree(place, tree) {
  const roots = element("div", { class: "kids" });
  const kids = [];
  tree.text.forEach((text, node) => {
    const token = element("span", {
      class: "token",
      style: colour(tree.sources[node]),
      title: `${tree.sources[node]}, probability ${tree.probs[node]}`,
    }, shownToken(text), element("small", {}, `${Math.round(100 * tree.probs[node])} %`));
    kids[node] = element("div", { class: "kids" });
    const parent = tree.parents[node] < 0 ? roots : kids[tree.parents[node]];
    parent.append(element("div", { class: "node" }, token, kids[node]));
  });
  place.replaceChildren(tree.text.length ? roots : element("span", { class: "faint" }, "nothing is drafted"));
}

function drawLegend(place, sources) {
  place.replaceChildren(...sources.map((source) =>
    element("span", { style: colour(source) }, element("span", { class: "drafted" }, source))));
}

// Where the end of a context occurs, with what stands around it.
function drawMatch(place, match) {
  if (!match || !match.length) {
    place.replaceChildren(element("span", { class: "faint" }, "The end of this text does not occur in the corpus."));
    return;
  }
  const times = match.count === 1 ? "once" : `${match.count.toLocaleString("en")} times`;
  const about = `The last ${match.length} token${match.length === 1 ? "" : "s"} occur ${times}:`;
  place.replaceChildren(element("div", { class: "faint" }, about), ...match.passages.map((passage) =>
    element("pre", { class: "panel" },
      element("span", { class: "faint" }, `document ${passage.document.toLocaleString("en")}\n`),
      passage.before, element("mark", {}, passage.match), passage.after)));
}
