// The controls above the map: what colors it, which length, what is compared, which heads are shown.

/** Whether all runs on the map have a measure, or states. */
function allHave(name) {
  return mappedRuns().every((run) => (name === "state" ? run.judged.size : run.data.measures[name]));
}

/** The measures to choose from, those of the scan, of the diagnosis and of the horizon apart. */
function measureOptions(run) {
  const named = (whole) => Object.entries(run.data.measures).filter(([name, measure]) => measure.whole === whole && allHave(name)).map(([name, measure]) => [name, measure.label]);
  const groups = [[undefined, "From the scan"], ["diagnosis", "From the diagnosis"], ["horizon", "At longer inputs"]].map(([whole, label]) => ({ label, options: named(whole) })).filter(({ options }) => options.length);
  return groups.length > 1 ? groups : groups[0].options;
}

function controls() {
  const run = runs[0];
  const measures = measureOptions(run);
  const colored = allHave("state") ? [["state", "State"], ...measures] : measures;
  const lengths = run.groups.map((words, group) => [group, words]);
  const kinds = [["none", "nothing"], ["heads", "two heads"], ...(lengths.length > 1 ? [["lengths", "two lengths"]] : []), ["runs", runs.length > 1 ? "two runs" : "another run…"]];
  const redraw = (change) => (value) => { change(value); drawHeads(); };
  const made = [select("measure", "Color by", colored, view.measure, redraw((value) => { view.measure = value; }))];
  if (lengths.length > 1) made.push(select("length", "Length", lengths, view.group, redraw((value) => { view.group = Number(value); })));
  made.push(select("compare", "Compare", kinds, view.compare, setCompare));
  if (view.compare === "lengths") made.push(select("second-length", "with length", lengths, view.secondGroup, redraw((value) => { view.secondGroup = Number(value); })));
  if (view.compare === "runs") made.push(element("button", { type: "button", onclick: chooseReport }, "Choose another report…"));
  return element("div", { class: "controls" }, made);
}

let filtersOpen = false;

/** Which heads are shown in full color, and in which order; folded until it is asked for. */
function filterControls() {
  const run = runs[0];
  const { filter } = view;
  const update = (change) => (value) => { change(value); drawHeads(); };
  const percent = run.data.measures[filter.measure].style === "share";
  const limit = element("input", {
    id: "limit", type: "number", step: "any", "aria-label": percent ? "limit in percent" : "limit", placeholder: percent ? "%" : "any",
    value: filter.limit === null ? null : percent ? 100 * filter.limit : filter.limit,
    onchange: (event) => { filter.limit = event.target.value === "" ? null : Number(event.target.value) / (percent ? 100 : 1); drawHeads(); },
  });
  const holder = element(
    "details", { class: "filters", open: filtersOpen },
    element("summary", {}, "Filter and sort"),
    element(
      "div", { class: "controls" },
      select("filter-measure", "Only heads with", measureOptions(run), filter.measure, update((value) => { filter.measure = value; filter.limit = null; })),
      select("filter-side", "", [["least", "at least"], ["most", "at most"]], filter.side, update((value) => { filter.side = value; })),
      limit,
      run.judged.size ? select("filter-state", "and state", [["", "any"], ...Object.keys(run.data.states).map((state) => [state, state])], filter.state, update((value) => { filter.state = value; })) : null,
      element("label", { class: "control check" }, element("input", { type: "checkbox", id: "sorted", checked: view.sorted, onchange: (event) => { view.sorted = event.target.checked; drawHeads(); } }), element("span", {}, "Sort each layer by the measure")),
    ),
  );
  holder.addEventListener("toggle", () => { if (!printing) filtersOpen = holder.open; });
  return holder;
}

function drawHeads() {
  const section = byId("heads");
  const run = runs[0];
  if (!run.count) return;
  const focused = document.activeElement?.id;
  const measure = view.measure === "state" ? "Which simpler rule would give nearly the same output as the head." : measureOf(view.measure).sentence;
  const sources = [...new Set(mappedRuns().map((one) => one.source(view.measure, one.within(view.group))))];
  const maps = mappedRuns().map((one) => mapFigure(one));
  if (view.compare === "runs" && view.measure !== "state" && paired()) maps.push(differenceFigure());
  section.replaceChildren(...[
    element("h2", { id: "heads-title" }, "Every head at a glance"),
    controls(),
    filterControls(),
    filterResult(),
    element("p", { class: "soft", id: "measure-sentence" }, `${measure} From the ${sources.join("; B from the ")}. L3H5 is head 5 of layer 3, counted from 0.`),
    element("div", { class: run.width > 24 ? "stacked" : maps.length > 1 ? "stacked narrow" : "beside" }, element("div", { class: "maps" }, maps), element("div", { class: "right" }, view.compare === "runs" ? null : rankedHeads(run), element("div", { id: "panel", "aria-live": "off" }))),
  ].filter(Boolean));
  fitPictures(section);
  outline();
  drawDetail();
  drawList();
  if (focused && byId(focused) && focused !== document.activeElement.id) byId(focused).focus({ preventScroll: true });
}
