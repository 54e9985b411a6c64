// Every head at a step: the slider, the map, and the numbers of the chosen head.

Object.assign(HINTED, ["entropy_ratio", "max_weight", "sink_weight", "max_logit"]); // numbers of a cell

const TILES = ["entropy_ratio", "max_weight", "participation", "sink_weight", "max_logit", "logit_std", "top_mass", "separability", "jacobian_norm"];

/** Show another step: what depends on it is redrawn, the charts move their marker. */
function showStep(index) {
  const run = runs[0];
  view.group = run.within(index);
  view.following = view.group === run.last;
  drawSlider();
  drawMap();
  drawNumbers();
  moveNow(run.groups[view.group]);
}

/** The step before or after this one at which an alarm was raised. */
function alarmBeyond(run, forward) {
  const steps = [...new Set(run.data.alarms.map((alarm) => run.nearest(alarm.step)))].sort((a, b) => a - b);
  return forward ? steps.find((index) => index > view.group) : steps.findLast((index) => index < view.group);
}

/** The slider is made once: it may be in use while steps are added. */
function makeSlider() {
  const jump = (id, forward, words) => element("button", { type: "button", id, onclick: () => showStep(alarmBeyond(runs[0], forward)) }, words);
  return element(
    "div", { class: "stepping", id: "stepping" },
    element("label", { class: "control slider" }, element("span", {}, "Step"), element("input", { type: "range", id: "step", min: 0, step: 1, oninput: (event) => showStep(Number(event.target.value)) })),
    element("output", { id: "step-words", for: "step" }),
    element("span", { class: "jumps" }, jump("alarm-before", false, "◂ alarm"), jump("alarm-after", true, "alarm ▸")),
  );
}

function drawSlider() {
  const run = runs[0];
  const slider = byId("step");
  const words = `${whole(run.groups[view.group])} of ${whole(run.groups.at(-1))}`;
  slider.max = run.last;
  slider.value = view.group;
  slider.setAttribute("aria-valuetext", `step ${words}`);
  byId("step-words").textContent = words;
  for (const [id, forward] of [["alarm-before", false], ["alarm-after", true]]) {
    byId(id).hidden = !run.data.alarms.length;
    byId(id).disabled = alarmBeyond(run, forward) === undefined;
  }
}

/** What is drawn of the whole section, when more than the step changes. */
function drawHeads() {
  const run = runs[0];
  const measures = Object.entries(run.data.measures).map(([name, measure]) => [name, measure.label]);
  const color = select("measure", "Color by", [["state", "Reading"], ...measures], view.measure, (name) => { view.measure = name; if (name !== "state") view.curve = name; drawHeads(); drawCurves(); });
  byId("beside").className = run.width > 24 ? "stacked" : "beside training";
  byId("coloring").replaceChildren(color, ...[filterResult()].filter(Boolean));
  drawSlider();
  drawMap();
}

function drawMap() {
  const run = runs[0];
  run.statesCounted = run.readings(view.group);
  const raised = run.data.alarms.some(({ step }) => step <= run.groups[view.group]);
  byId("map-place").replaceChildren(mapFigure(run), ...(raised ? [element("p", { class: "soft small" }, "A corner marks a head with an alarm up to this step.")] : []));
  fitPictures(byId("map-place"));
}

/** The numbers of the chosen head at the step of the map, beside those at the first one. */
function drawNumbers() {
  const run = runs[0];
  const i = run.index(view.selected.layer, view.selected.head);
  const tiles = TILES.filter((name) => run.data.measures[name]).map((name) => {
    const measure = run.data.measures[name];
    const first = run.last ? `${written(measure, run.value(name, i, 0))} at step ${whole(run.groups[0])}` : "";
    return element("div", { class: "tile" }, element("dt", {}, measureTerm(name)), element("dd", {}, element("b", {}, written(measure, run.value(name, i, view.group))), " ", element("span", {}, first)));
  });
  byId("numbers").replaceChildren(
    element("h3", {}, `${run.title(i)} at step ${whole(run.groups[view.group])}`, stateBadge(run.state(i))),
    element("p", { class: "soft small" }, stateLook(run.state(i)).sentence),
    element("dl", { class: "tiles" }, tiles),
  );
}

/** The panel of the chosen head: its numbers at the step, its alarms, all its measures over time. */
function drawDetail() {
  const run = runs[0];
  const i = run.index(view.selected.layer, view.selected.head);
  const alarms = run.alarmsOf([view.selected]);
  byId("panel").replaceChildren(element(
    "article", { class: "subject" },
    element("div", { id: "numbers" }),
    alarms.length ? element("div", {}, element("h3", {}, plural(alarms.length, "alarm")), alarmTable(run, alarms, false)) : null,
    element("h3", { class: "over-time" }, "All its measures over time"),
    allMeasures(run, i),
  ));
  drawNumbers();
  fitPictures(byId("panel"));
}

function choose(layer, head) {
  view.selected = { layer, head, run: 0 };
  history.replaceState(null, "", `#head=${headName(layer, head)}`);
  outline();
  drawCurves();
  drawDetail();
}
