// Tells an answer step by step: its text by source, the draft of a step, and where that is known from.
function tellStory(told, text, slider, shown, tree, why) {
  const spans = told.steps.map((step, number) => {
    const parts = step.tokens.map((token, place) => element("span", {
      class: step.sources[place] ? "drafted" : "",
      style: colour(step.sources[place]),
      title: step.sources[place] ? `drafted by ${step.sources[place]}` : "the model's own",
    }, token));
    const span = element("span", {}, ...parts);
    span.addEventListener("click", () => { slider.value = number; show(); });
    return span;
  });
  text.replaceChildren(element("span", { class: "prompt" }, told.prompt), ...spans);
  if (!told.is_whole) text.append(element("span", { class: "prompt" }, " …"));
  slider.max = told.steps.length - 1;
  // Where most was accepted there is most to see.
  const accepted = told.steps.map((step) => step.path.length);
  slider.value = accepted.indexOf(Math.max(...accepted));
  let last;
  const show = () => {
    const number = +slider.value, step = told.steps[number];
    shown.value = `${number + 1} of ${told.steps.length}: ${step.path.length} of ${step.tree.text.length} nodes accepted`;
    last?.classList.remove("now");
    (last = spans[number]).classList.add("now");
    drawTree(tree, step.tree, step.path);
    if (step.match) drawMatch(why, step.match);
  };
  slider.oninput = show;
  show();
}
