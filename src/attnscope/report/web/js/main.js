// The page: header, the section of the map with its controls, tables of the whole model, how it was run.

function choose(layer, head) {
  view.selected = { layer, head };
  history.replaceState(null, "", `#head=${headName(layer, head)}`);
  outline();
  drawDetail();
}

function select(name, text, options, current, onchange) {
  const list = element("select", { id: name, onchange: (event) => onchange(event.target.value) }, options.map(([value, words]) => element("option", { value, selected: String(value) === String(current) }, words)));
  return element("label", { class: "control" }, element("span", {}, text), list);
}

function drawTop() {
  const { run } = runs[0].data;
  const links = page.links;
  const windows = plural(run.settings.windows, "window");
  const judged = runs[0].data.findings;
  const facts = `${plural(runs[0].layers.length, "layer")}, ${plural(runs[0].count, "head")}. Measured on ${shortName(run.text.source)}, ${windows} of ${run.settings.length.toLocaleString("en-US")} tokens, ${run.finished.slice(0, 10)}.${judged?.windows ? ` Diagnosed on ${plural(judged.windows, "window")} of ${judged.length.toLocaleString("en-US")} spread over the text.` : ""}`;
  const brand = links.home ? element("a", { class: "brand", href: links.home }, "attnscope: all runs") : element("span", { class: "brand" }, "attnscope");
  const themes = select("theme", "Colors", [["", "as the system"], ["light", "light"], ["dark", "dark"]], document.documentElement.dataset.theme ?? "", setTheme);
  byId("top").replaceChildren(
    element("div", { class: "bar" }, brand, themes),
    element("h1", {}, shortName(run.model.name)),
    element("p", { class: "lead" }, facts),
  );
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  drawHeads();
  drawModel();
}

function drawLeftOut() {
  const left_out = runs[0].data.run.skipped_heads;
  const section = byId("left-out");
  section.hidden = !left_out.length;
  section.replaceChildren(element("div", { class: "warning" }, element("h2", {}, `${plural(left_out.length, "head")} left out`), element("ul", {}, left_out.map((head) => element("li", {}, `${headName(head.layer, head.head)}: ${visible(head.reason)}`)))));
}

/** The controls above the map. */
function controls() {
  const run = runs[0];
  const measures = Object.entries(run.data.measures).map(([name, measure]) => [name, measure.label]);
  const colored = run.judged.size ? [["state", "State"], ...measures] : measures;
  const lengths = run.groups.map((words, group) => [group, words]);
  const kinds = [["none", "nothing"], ["heads", "two heads"], ...(lengths.length > 1 ? [["lengths", "two lengths"]] : []), ["runs", "another run…"]];
  const redraw = (change) => (value) => { change(value); drawHeads(); };
  const made = [select("measure", "Color by", colored, view.measure, redraw((value) => { view.measure = value; }))];
  if (lengths.length > 1) made.push(select("length", "Length", lengths, view.group, redraw((value) => { view.group = Number(value); })));
  made.push(select("compare", "Compare", kinds, view.compare, setCompare));
  if (view.compare === "lengths") made.push(select("second-length", "with length", lengths, view.secondGroup, redraw((value) => { view.secondGroup = Number(value); })));
  if (view.compare === "runs") made.push(element("button", { type: "button", onclick: chooseReport }, "Choose another report…"));
  made.push(element("label", { class: "control check" }, element("input", { type: "checkbox", id: "sorted", checked: view.sorted, onchange: redraw((event) => { view.sorted = event.target.checked; }) }), element("span", {}, "Sort each layer")));
  return element("div", { class: "controls" }, made);
}

function filterControls() {
  const run = runs[0];
  const { filter } = view;
  const measures = Object.entries(run.data.measures).map(([name, measure]) => [name, measure.label]);
  const update = (change) => (value) => { change(value); drawHeads(); };
  const percent = run.data.measures[filter.measure].style === "share";
  const limit = element("input", {
    id: "limit", type: "number", step: "any", "aria-label": percent ? "limit in percent" : "limit", placeholder: percent ? "%" : "any",
    value: filter.limit === null ? null : percent ? 100 * filter.limit : filter.limit,
    onchange: (event) => { filter.limit = event.target.value === "" ? null : Number(event.target.value) / (percent ? 100 : 1); drawHeads(); },
  });
  const passing = Array.from({ length: run.count }, (_, i) => i).filter((i) => passes(run, i)).length;
  const active = filter.limit !== null || filter.state || view.marked;
  const clear = () => { Object.assign(filter, { limit: null, state: "" }); view.marked = null; drawHeads(); };
  return element(
    "div", { class: "controls filter" },
    select("filter-measure", "Only heads with", measures, filter.measure, update((value) => { filter.measure = value; filter.limit = null; })),
    select("filter-side", "", [["least", "at least"], ["most", "at most"]], filter.side, update((value) => { filter.side = value; })),
    limit,
    run.judged.size ? select("filter-state", "and state", [["", "any"], ...Object.keys(run.data.states).map((state) => [state, state])], filter.state, update((value) => { filter.state = value; })) : null,
    active ? element("span", { class: "passing" }, `${view.marked ? `${visible(view.markedTitle)}: ` : ""}${plural(passing, "head")} shown `, element("button", { type: "button", id: "clear", onclick: clear }, "Show all")) : null,
  );
}

function drawHeads() {
  const section = byId("heads");
  const run = runs[0];
  if (!run.count) return;
  const focused = document.activeElement?.id;
  const measure = view.measure === "state" ? "Which simpler rule would give nearly the same output as the head." : run.data.measures[view.measure].sentence;
  const maps = mappedRuns().map((one) => mapFigure(one));
  if (view.compare === "runs" && view.measure !== "state") maps.push(differenceFigure());
  section.replaceChildren(
    element("h2", { id: "heads-title" }, "Every head at a glance"),
    element("p", { class: "soft", id: "measure-sentence" }, measure),
    controls(),
    filterControls(),
    element("div", { class: run.width > 24 ? "stacked" : maps.length > 1 ? "stacked narrow" : "beside" }, element("div", { class: "maps" }, maps), element("div", { id: "panel", "aria-live": "off" })),
  );
  outline();
  drawDetail();
  drawList();
  if (focused && byId(focused) && focused !== document.activeElement.id) byId(focused).focus({ preventScroll: true });
}

/** Medians over heads, as curves against the length. */
function drawModel() {
  const { data } = runs[0];
  if (!data.heads) return;
  const several = data.by_length.length.length > 1;
  const made = ["participation", "max_weight", "entropy_ratio", "jacobian_norm"].map((name) => {
    const title = data.measures[name].label;
    const points = data.by_length.length.map((length, k) => ({ x: length, y: data.by_length[name][k] })).filter((point) => point.y !== null);
    const spec = { x: { title: "length in tokens", log: several, values: data.by_length.length }, y: {}, lines: [{ name: "median over heads", role: "measured", points }] };
    return figure({ title: `${title}, median head`, name: `median-${name.replace("_", "-")}`, note: data.measures[name].sentence, draw: (colors) => chart({ ...spec, description: `${title} against length`, ...recolored(spec, colors) }, colors), numbers: () => chartNumbers(spec) });
  });
  byId("model").replaceChildren(element("h2", { id: "model-title" }, "The whole model as the text grows"), element("div", { class: "charts wide" }, made));
}

function drawHow() {
  const { run } = runs[0].data;
  const { model, text, settings } = run;
  const facts = {
    model: `${visible(model.name)} (${visible(model.family)})`,
    revision: visible(model.revision ?? "local"),
    weights: `${model.parameters.toLocaleString("en-US")} parameters in ${model.dtype} on ${model.device}`,
    text: `${visible(text.source)}, ${text.tokens.toLocaleString("en-US")} tokens, SHA-256 ${text.sha256.slice(0, 16)}`,
    windows: `${settings.windows} of ${settings.length.toLocaleString("en-US")} tokens`,
    lengths: settings.lengths.join(", "),
    rows: settings.rows === "last" ? "the last of each length" : String(settings.rows),
    vectors: settings.vectors,
    normalizers: ["own", ...(settings.normalizers ?? []), ...(settings.temperatures ?? []).map((value) => `temperature ${value}`)].map(visible).join(", "),
    time: `${run.timings.scan_seconds.toFixed(1)} s, finished ${run.finished}`,
    versions: `attnscope ${run.attnscope}, ${Object.entries(run.versions ?? {}).map((pair) => pair.join(" ")).join(", ")}`,
  };
  const thresholds = Object.entries(runs[0].data.findings?.thresholds ?? {});
  if (thresholds.length) facts.thresholds = thresholds.map(([name, value]) => `${visible(name)} ${visible(value)}`).join(", ");
  byId("how").replaceChildren(
    element("h2", { id: "how-title" }, "How it was run"),
    element("dl", {}, Object.entries(facts).map(([name, words]) => [element("dt", {}, name), element("dd", {}, words)])),
  );
}

/** The head to show first: the one in the address, one of the first finding, or the one that uses most tokens. */
function firstHead() {
  const run = runs[0];
  const asked = /^#head=L?(\d+)[H.](\d+)$/.exec(location.hash);
  if (asked && run.index(Number(asked[1]), Number(asked[2])) !== undefined) return { layer: Number(asked[1]), head: Number(asked[2]) };
  const named = run.findings.find((finding) => finding.severity !== "note" && finding.heads?.length)?.heads[0];
  if (named && run.index(...named) !== undefined) return { layer: named[0], head: named[1] };
  const values = run.values("participation");
  const i = Math.max(0, values.indexOf(Math.max(...values.map((value) => value ?? -Infinity))));
  return { layer: run.layer(i), head: run.head(i) };
}

/** Draw for paper, with everything unfolded, or for the screen again. */
function print(started) {
  printing = started;
  drawHeads();
  drawModel();
  if (started) document.querySelectorAll("details").forEach((one) => { one.open = true; });
}

const page = { links: {} };

async function start() {
  runs[0] = new Run(await unpack(byId("data").textContent));
  page.links = await unpack(byId("links").textContent);
  if (byId("other").textContent.trim()) {
    runs[1] = readRun(await unpack(byId("other").textContent));
  }
  if (runs[0].judged.size) view.measure = "state";
  if (runs[1]) showRuns();
  document.body.append(element("input", { type: "file", id: "other-file", accept: ".html,text/html", hidden: true, "aria-label": "Report to compare with", onchange: (event) => event.target.files[0] && loadReport(event.target.files[0]) }));
  if (runs[0].count) view.selected = firstHead();
  drawTop();
  drawLeftOut();
  drawFindings();
  drawHeads();
  drawModel();
  drawClaims();
  drawHow();
  darkSystem.addEventListener("change", () => setTheme(document.documentElement.dataset.theme ?? ""));
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  announce(typeof DecompressionStream === "undefined" ? "This browser is too old for the page; any browser since 2023 can show it." : `The data of this page cannot be read: ${error.message}`);
});
