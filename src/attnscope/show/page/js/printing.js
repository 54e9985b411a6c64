// Paper: light, unfolded, with all heads in the list; and it says what only the page has.

/** What is left out on paper. */
function onPaper() {
  const run = runs[0];
  if (!run.count) return "";
  const hidden = Object.values(run.data.measures).filter((_, k) => !PRINTED.includes(Object.keys(run.data.measures)[k])).map((measure) => measure.label);
  const panels = view.compare === "runs" || run.count === 1 ? "" : ` the panels of the other ${plural(run.count - 1, "head")};`;
  return `On paper: the panel of ${view.selected ? headName(view.selected.layer, view.selected.head) : "no head"}. Left out:${panels} single rows (rows.parquet has them); in the list of heads ${hidden.join(", ")}. report.html shows all of it.`;
}

/** Draw for paper, or for the screen again. */
function print(started) {
  printing = started;
  drawPictures();
  byId("on-paper").textContent = started ? onPaper() : "";
  if (!started) return;
  document.querySelectorAll("details:not(.rows):not(.filters)").forEach((one) => { one.open = true; });
  fitPictures(document);
}
