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
function drawTree(place, tree, path = null) {
  const roots = element("div", { class: "kids" });
  const kids = [];
  tree.text.forEach((text, node) => {
    const token = element("span", {
      class: path && !path.includes(node) ? "token rejected" : "token",
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
function drawMatch(place, match, completions = null) {
  if (!match || !match.length) {
    place.replaceChildren(element("span", { class: "faint" }, "The end of this text does not occur in the corpus."));
    return;
  }
  const times = match.count === 1 ? "once" : `${match.count.toLocaleString("en")} times`;
  const about = match.length === 1 ? `The last token occurs ${times}:` : `The last ${match.length} tokens occur ${times}:`;
  const words = completions ? [element("div", { class: "faint", id: "words" },
    `${JSON.stringify(completions.unfinished)} is continued as ` + completions.words.map((word) =>
      `${JSON.stringify(word.text)} (${word.count.toLocaleString("en")})`).join(", ") + ". With the first of these:")] : [];
  place.replaceChildren(...words, element("div", { class: "faint" }, about), ...match.passages.map((passage) =>
    element("pre", { class: "panel" },
      element("span", { class: "faint" }, `${passage.source || `document ${passage.document.toLocaleString("en")}`}\n`),
      passage.before, element("mark", {}, passage.match), passage.after)));
}

// An answer that grows with each step: its tokens by source, the draft of the step and what was accepted.
function drawReplay(by, load) {
  let found = { prompt: "", steps: [] }, timer = 0;
  function show() {
    const step = +by("step").value, done = found.steps.slice(0, step + 1);
    by("step-shown").value = step + 1;
    by("written").replaceChildren(
      element("span", { class: "faint" }, found.prompt),
      ...done.flatMap((each) => each.tokens.map((text, index) => {
        const source = each.sources[index];
        return element("span", source ? { class: "drafted", style: colour(source), title: source } : {}, text);
      })));
    const tokens = done.reduce((sum, each) => sum + each.tokens.length, 0);
    by("rate").textContent = `${tokens} tokens in ${done.length} forward passes: ` +
      `${(tokens / Math.max(done.length, 1)).toFixed(2)} tokens per pass so far`;
    const last = found.steps[step];
    if (last) drawTree(by("step-tree"), last.tree, last.path);
  }
  async function choose() {
    found = await load(+by("answer").value);
    by("step").max = found.steps.length - 1;
    by("step").value = 0;
    show();
  }
  function play() {
    clearInterval(timer);
    by("step").value = 0;
    show();
    timer = setInterval(() => {
      if (+by("step").value >= found.steps.length - 1) clearInterval(timer);
      by("step").value = +by("step").value + 1;
      show();
    }, 400);
  }
  by("answer").addEventListener("change", choose);
  by("step").addEventListener("input", () => { clearInterval(timer); show(); });
  by("play").addEventListener("click", play);
  return (count) => {
    by("replay").hidden = by("to-replay").hidden = count === 0;
    for (let number = 0; number < count; number++) {
      by("answer").append(element("option", { value: number }, `${number + 1}`));
    }
    if (count) choose();
  };
}
