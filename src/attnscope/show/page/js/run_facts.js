// Which run it is: the top of the page, the heads left out, and how it was run.

function drawTop() {
  const run = runs[0];
  const { home } = page.links;
  const brand = home ? element("a", { class: "brand", href: home }, "attnscope: all runs") : element("span", { class: "brand" }, "attnscope");
  const words = view.compare === "runs" ? comparisonTop() : [element("h1", {}, run.short), element("p", { class: "lead" }, run.facts)];
  document.title = view.compare === "runs" ? `${runs[0].short} and ${runs[1].short}: attention reports` : `${run.short}: attention report`;
  byId("top").replaceChildren(element("div", { class: "bar" }, brand, themeField(drawPictures)), ...words.filter(Boolean), element("p", { class: "print-only", id: "on-paper" }));
}

/** Draw what has the colors of the theme in its pictures. */
function drawPictures() {
  drawHeads();
  drawModel();
}

function drawLeftOut() {
  const left_out = runs[0].data.run.skipped_heads;
  const section = byId("left-out");
  section.hidden = !left_out.length;
  section.replaceChildren(element("div", { class: "warning" }, element("h2", {}, `${plural(left_out.length, "head")} left out`), element("ul", {}, left_out.map((head) => element("li", {}, `${headName(head.layer, head.head)}: ${visible(head.reason)}`)))));
}

/** The layers by the kind of module that they belong to; empty where there is one kind. */
function layerKinds(layers) {
  const kinds = new Map();
  for (const { layer, module } of layers) {
    const kind = (module ?? "").replaceAll(/\d+/g, "*");
    kinds.set(kind, [...(kinds.get(kind) ?? []), layer]);
  }
  return kinds.size > 1 ? kinds : new Map();
}

/** The module of a layer, where layers are of several kinds: those of an encoder and a decoder. */
function moduleOf(run, layer) {
  const { heads } = run.data.run.model;
  return layerKinds(heads).size ? visible(heads.find((one) => one.layer === layer)?.module ?? "") : "";
}

/** Everything that decided the numbers of a run. */
function runFacts({ data: { run, findings } }) {
  const { model, text, settings } = run;
  const facts = {
    model: `${visible(model.name)} (${visible(model.family)})`,
    revision: visible(model.revision ?? "local"),
    weights: `${model.parameters.toLocaleString("en-US")} parameters in ${model.dtype} on ${model.device}`,
    text: `${visible(text.source)}, ${text.tokens.toLocaleString("en-US")} tokens, SHA-256 ${text.sha256.slice(0, 16)}`,
    windows: `${settings.windows} of ${settings.length.toLocaleString("en-US")} tokens`,
    lengths: settings.lengths.map((length) => length.toLocaleString("en-US")).join(", "),
    rows: settings.rows === "last" ? "the last of each length" : String(settings.rows),
    vectors: settings.vectors,
    normalizers: ["own", ...(settings.normalizers ?? []), ...(settings.temperatures ?? []).map((value) => `temperature ${value}`)].map(visible).join(", "),
    time: `${run.timings.scan_seconds.toFixed(1)} s, finished ${run.finished}`,
    versions: `attnscope ${run.attnscope}, ${Object.entries(run.versions ?? {}).map((pair) => pair.join(" ")).join(", ")}`,
  };
  const kinds = layerKinds(model.heads);
  if (kinds.size) facts.layers = [...kinds].map(([kind, members]) => `${members.join(", ")}: ${visible(kind)}`).join("; ");
  const thresholds = Object.entries(findings?.thresholds ?? {});
  if (thresholds.length) facts.thresholds = thresholds.map(([name, value]) => `${visible(name)} ${visible(value)}`).join(", ");
  return element("dl", { class: "facts" }, Object.entries(facts).map(([name, words]) => [element("dt", {}, name), element("dd", {}, words)]));
}

function drawHow() {
  const shown = mappedRuns().map((run) => [view.compare === "runs" ? element("h3", {}, `${run.letter}: ${run.short}`) : null, runFacts(run)]);
  byId("how").replaceChildren(element("h2", { id: "how-title" }, view.compare === "runs" ? "How they were run" : "How it was run"), ...shown.flat().filter(Boolean));
}
