// Recorded answers of a report, one at a time.
if (stories.length) {
  const by = (id) => document.getElementById(id);
  const tell = () => {
    const told = stories[+by("which").value];
    drawLegend(by("sources"), [...new Set(told.steps.flatMap((step) => step.sources).filter(Boolean))]);
    tellStory(told, by("said"), by("step"), by("at"), by("tree"), by("why"));
  };
  by("stories").hidden = false;
  by("which").append(...stories.map((told, number) =>
    element("option", { value: number }, `${number + 1}: …${told.prompt.trim().slice(-60)}`)));
  by("which").addEventListener("change", tell);
  tell();
}
