// Medians over all heads, as curves against the length; of two runs both.

const MEDIANS = ["participation", "max_weight", "entropy_ratio", "jacobian_norm"];

function drawModel() {
  const shown = mappedRuns().filter((run) => run.data.heads);
  if (!shown.length) return;
  const section = byId("model");
  const lengths = [...new Set(shown.flatMap((run) => run.data.by_length.length))].sort((a, b) => a - b);
  const made = MEDIANS.map((name) => {
    const measure = shown[0].data.measures[name];
    const lines = shown.map((run, k) => ({
      name: shown.length > 1 ? `${run.letter}: median over heads` : "median over heads", role: ["measured", "printed"][k],
      points: run.data.by_length.length.map((length, j) => ({ x: length, y: run.data.by_length[name][j] })).filter((point) => point.y !== null),
    }));
    const spec = { x: { title: "length in tokens", short: "length", log: lengths.length > 1, values: lengths }, y: { format: (value) => written(measure, value) }, lines };
    return figure({
      title: `${measure.label}, median head`, name: `median-${name.replaceAll("_", "-")}`, note: measure.sentence,
      draw: (colors, width) => chart({ ...spec, description: `${measure.label} against length`, ...recolored(spec, colors) }, colors, width), numbers: () => chartNumbers(spec),
    });
  });
  const { rows, windows } = shown[0].data.run.settings;
  const from = rows === "last" ? `the row of each length, in ${plural(windows, "window")}` : `rows up to each length, in ${plural(windows, "window")}`;
  section.replaceChildren(element("h2", { id: "model-title" }, "The whole model as the text grows"), element("p", { class: "soft" }, `Scan: ${from}.`), element("div", { class: "charts wide" }, made));
  fitPictures(section);
}
