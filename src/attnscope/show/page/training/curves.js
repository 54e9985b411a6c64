// What happened over time: a measure of some heads, the loss beside it, and all measures of the chosen head.

const STEP_AXIS = { title: "step", short: "step", format: (value) => whole(Math.round(value)) };

/** The heads in the charts: the chosen one and those that were kept, each with its color. */
function charted() {
  const kept = view.kept.map((head, k) => ({ ...head, role: KEPT_ROLES[k] }));
  return [...kept.filter((head) => !sameHead(head, view.selected)), { ...view.selected, role: "focus" }];
}

/** The axis of all charts: from the first to the last step of any number. */
function stepAxis(run) {
  const steps = [run.groups, ...Object.values(run.data.scalars).map((points) => points.step)].flatMap((one) => [one[0], one.at(-1)]).filter((step) => step !== undefined);
  const [low, high] = [Math.min(...steps), Math.max(...steps)];
  return { ...STEP_AXIS, range: low < high ? [low, high] : null };
}

/** The alarms as marks on the axis: those of the heads in a chart, and the others in soft color before them. */
function alarmMarks(run, heads) {
  const shown = run.alarmsOf(heads);
  const mark = (alarm, name, role) => ({ x: alarm.step, name, role, words: `alarm: ${headName(alarm.layer, alarm.head)} ${kindWords(alarm.kind)}` });
  return [
    ...run.data.alarms.filter((alarm) => !shown.includes(alarm)).map((alarm) => mark(alarm, "alarm of another head", "soft")),
    ...shown.map((alarm) => mark(alarm, heads.length > 1 ? "alarm of one of these heads" : "alarm of this head", "alarm")),
  ];
}

/** A chart over steps, with the step of the map marked; a click on it moves the map there. */
function courseFigure(run, { title, note, name, spec }) {
  const description = `${title} against the step. ${(spec.lines ?? []).map((line) => ends({ ...line, points: line.points.filter(({ y }) => y !== null) }, { x: STEP_AXIS, y: spec.y })).join(" ")}`;
  const whole = { ...spec, x: stepAxis(run) };
  return figure({
    title, note, name,
    draw: (colors, width) => chart({ ...whole, description, now: run.groups[run.within(view.group)], pick: (step) => showStep(run.nearest(step)), ...recolored(whole, colors) }, colors, width),
    numbers: () => chartNumbers(whole),
  });
}

function measureAxis(measure) {
  return { range: measure.fixed ? [0, 1] : null, format: (value) => written(measure, value) };
}

/** A measure of the charted heads, before the range over all heads. */
function measureFigure(run) {
  const measure = measureOf(view.curve);
  const heads = charted();
  const lines = heads.map(({ layer, head, role }) => ({ name: headName(layer, head), role, bare: run.groups.length > 40, points: run.course(view.curve, run.index(layer, head)) }));
  const bands = [{ name: "all heads", role: "soft", faint: true, points: run.range(view.curve) }];
  return courseFigure(run, {
    title: measure.label, name: `${view.curve.replaceAll("_", "-")}-over-steps`, note: measure.sentence,
    spec: { y: measureAxis(measure), lines, bands, events: alarmMarks(run, heads) },
  });
}

/** A number of the whole model, such as the loss: means over runs of steps, and their range. */
function scalarFigure(run, name) {
  const points = run.data.scalars[name];
  const series = (column) => points.step.map((step, k) => ({ x: step, y: points[column][k] }));
  const band = points.step.map((step, k) => ({ x: step, low: points.low[k], high: points.high[k] })).filter((point) => point.low !== null);
  const grouped = points.measured > points.step.length;
  const note = [
    grouped ? `Means over about ${whole(Math.round(points.measured / points.step.length))} values each; the band is their range.` : `As it was given to the monitor.`,
    points.broken === null ? "" : `Not a number, or infinite, at step ${whole(points.broken)}.`,
  ];
  return courseFigure(run, {
    title: capitalized(visible(name).replaceAll("_", " ")), name: "loss", note: note.join(" "),
    spec: { y: {}, lines: [{ name: visible(name), role: "measured", bare: points.step.length > 40, points: series("value") }], bands: grouped ? [{ name: "range", role: "proved", points: band }] : [], events: alarmMarks(run, charted()) },
  });
}

/** The measure and the loss side by side. */
function drawCurves() {
  const run = runs[0];
  const names = Object.keys(run.data.scalars);
  view.scalar = names.includes(view.scalar) ? view.scalar : names.find((name) => name === "loss") ?? names[0] ?? null;
  const chooser = names.length > 1 ? select("scalar", "Beside it", names.map((name) => [name, visible(name).replaceAll("_", " ")]), view.scalar, (name) => { view.scalar = name; drawCurves(); }) : null;
  const beside = view.scalar === null ? element("p", { class: "soft" }, "No loss was given to the monitor: monitor.step(loss=...) records it.") : scalarFigure(run, view.scalar);
  byId("curves").replaceChildren(...[keptHeads(run), chooser, element("div", { class: "charts" }, measureFigure(run), beside)].filter(Boolean));
  fitPictures(byId("curves"));
}

/** Which heads are in the charts, and a way to keep or drop them. */
function keptHeads(run) {
  const { selected, kept } = view;
  const drop = (head) => () => { view.kept = kept.filter((one) => !sameHead(one, head)); drawCurves(); };
  const chips = kept.map((head) => element("span", { class: "chip" }, headLink(run, head.layer, head.head), element("button", { type: "button", class: "link", "aria-label": `Drop ${headName(head.layer, head.head)}`, onclick: drop(head) }, "×")));
  const name = headName(selected.layer, selected.head);
  const known = kept.some((head) => sameHead(head, selected));
  const keep = known ? null : element("button", { type: "button", id: "keep", disabled: kept.length >= MOST_KEPT, onclick: () => { kept.push({ layer: selected.layer, head: selected.head }); drawCurves(); } }, `Keep ${name} in the charts`);
  return element("div", { class: "controls" }, element("span", {}, "In the charts: ", element("b", {}, name), kept.length ? " and" : ""), chips, keep, kept.length ? null : element("span", { class: "soft small" }, "Click heads on the map to compare them."));
}

const BESIDE = { separability: "null_random", jacobian_norm: "jacobian_bound" }; // drawn dashed in the same chart

/** All measures of the chosen head. */
function allMeasures(run, i) {
  const place = { layer: run.layer(i), head: run.head(i) };
  const { measures } = run.data;
  const bare = run.groups.length > 40;
  const made = Object.entries(measures).filter(([name]) => !Object.values(BESIDE).includes(name)).map(([name, measure]) => {
    const other = measures[BESIDE[name]] && BESIDE[name];
    return courseFigure(run, {
      title: measure.label, name: `${name.replaceAll("_", "-")}-${run.title(i)}`, note: null,
      spec: {
        y: measureAxis(measure),
        lines: [
          { name: run.title(i), role: "focus", bare, points: run.course(name, i) },
          ...(other ? [{ name: measures[other].label.toLowerCase().replace(/ \(n = \d+\)/, ""), role: "measured", dash: "5 3", bare: true, points: run.course(other, i) }] : []),
        ],
        bands: [{ name: "all heads", role: "soft", faint: true, points: run.range(name) }],
        events: alarmMarks(run, [place]).filter(({ role }) => role === "alarm"),
      },
    });
  });
  return element("div", { class: "charts" }, made);
}
