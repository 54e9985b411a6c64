// The charts of a head: separability, top mass and distance against N, measures against the length.

const N_AXIS = { title: "N, the number of tokens in the top set", short: "N", log: true };
const LENGTH_AXIS = { title: "length: how many tokens the row sees", short: "length" };
const NARROW_BAND = 1.03; // upper over lower end of a band that a line covers
const DISTANCES = ["distance", "distance_lower", "distance_bound_printed", "expected_lower", "expected_printed", "distance_upper"];

function hasCurves({ run, group }) {
  return group < run.data.curves.groups;
}

/** Axes that the subjects share, so that two curves can be compared by eye. */
function sharedLimits(compared) {
  const limits = {};
  if (compared.length < 2) return limits;
  for (const name of ["participation", "jacobian_norm"]) {
    const values = compared.flatMap(({ run, i }) => run.rows(i).flatMap((row) => [row[name], name === "jacobian_norm" ? row.jacobian_bound : null]));
    limits[name] = extent(values, false);
  }
  const distances = compared.filter(hasCurves).flatMap(({ run, i, group }) => DISTANCES.flatMap((name) => run.curve(name, i, group).map((point) => point.y)));
  limits.distance = extent(distances, true);
  return limits;
}

function chartFigure(subject, title, name, chartSpec, note) {
  // Columns that were not measured have no points, and no entry in the legend.
  const measured = (series) => (series ?? []).filter((one) => one.points.length);
  const spec = { ...chartSpec, bands: measured(chartSpec.bands), lines: measured(chartSpec.lines), dots: measured(chartSpec.dots) };
  const where = `${subject.run.title(subject.i)}, length ${subject.run.groups[subject.group]}`;
  const description = `${title}, ${where}. ${spec.lines.map((line) => ends(line, spec)).join(" ")}`;
  return figure({
    title, note, name: `${name}-${subject.run.title(subject.i)}`,
    draw: (colors, width) => chart({ ...spec, description, ...recolored(spec, colors) }, colors, width), numbers: () => chartNumbers(spec),
  });
}

function noCurves(title) {
  return element("figure", {}, element("figcaption", {}, element("span", { class: "figure-title" }, title)), element("p", { class: "figure-note" }, "The report of a model with this many heads holds these curves for the longest length only; topn.parquet has all of them."));
}

function separabilityFigure(subject) {
  const { run, i, group } = subject;
  if (!hasCurves(subject)) return noCurves("Separability");
  const lines = [
    { name: "measured", role: "measured", points: run.curve("separability", i, group) },
    { name: "printed upper bound", role: "printed", dash: "5 3", bare: true, points: run.curve("separability_upper_printed", i, group) },
    { name: "printed lower bound", role: "printedToo", dash: "2 3", bare: true, points: run.curve("separability_lower_printed", i, group) },
  ];
  const bounds = run.data.run.settings.bounds === null
    ? "A scan with --bounds paper shows the lower bounds too."
    : "The band is what mathematics allows; dashed: the paper's bounds as printed.";
  const evidence = (group === 0 && run.judgment(i)?.evidence) || {};
  const n = run.data.findings?.thresholds?.separability_n ?? run.data.usual_n;
  const dots = [["separability", "diagnosis, all rows"], ["null_uniform", "equal weights"], ["null_random", "random tokens"], ["separability_without_sink", "without the first token"]]
    .filter(([key]) => known(evidence[key]))
    .map(([key, name], k, all) => ({ name, role: ["printed", "random", "focus", "soft"][k], shift: 7 * (k - (all.length - 1) / 2), points: [{ x: n, y: evidence[key] }] }));
  return chartFigure(subject, "Separability", "separability", {
    x: { ...N_AXIS, values: run.data.curves.n }, y: { range: [0, 1], format: share },
    bands: [{ name: "proved range", role: "proved", points: run.band("separability_lower", "separability_upper", i, group) }], lines, dots,
  }, `The share of the top set that lies nearer to its weighted sum than every other token. ${bounds}${dots.length ? ` Dots beside each other at N = ${n}: the diagnosis, and what chance gives.` : ""}`);
}

function distanceFigure(subject, limits) {
  const { run, i, group } = subject;
  if (!hasCurves(subject)) return noCurves("Distance");
  const proved = run.band("distance_lower", "distance_upper", i, group);
  const covered = proved.every(({ low, high }) => high <= NARROW_BAND * low) ? " The proved range is so narrow that the line covers it." : "";
  return chartFigure(subject, "Distance", "distance", {
    x: { ...N_AXIS, values: run.data.curves.n }, y: { log: true, range: limits.distance },
    bands: [
      { name: "proved range", role: "proved", points: proved },
      { name: "random tokens", role: "random", points: run.band("expected_lower", "expected_upper", i, group) },
    ],
    lines: [
      { name: "measured", role: "measured", points: run.curve("distance", i, group) },
      { name: "printed bound", role: "printed", dash: "5 3", bare: true, points: run.curve("distance_bound_printed", i, group) },
      { name: "random, as printed", role: "printedToo", dash: "2 3", bare: true, points: run.curve("expected_printed", i, group) },
    ],
  }, `Summed distance of all other tokens to the weighted sum of the top set. Green: what as many tokens chosen at random would give.${covered}`);
}

function topMassFigure(subject) {
  const { run, i, group } = subject;
  if (!hasCurves(subject)) return noCurves("Top mass");
  return chartFigure(subject, "Top mass", "top-mass", {
    x: { ...N_AXIS, values: run.data.curves.n }, y: { range: [0, 1], format: share },
    lines: [{ name: "measured", role: "measured", points: run.curve("top_mass", i, group) }],
  }, "The share of the weight on the top set. A steep rise to 100%: few tokens matter. A slow one: the weight is spread thin.");
}

/** A measure of every row against its length; the Jacobian norm with its bound. */
function alongFigure(subject, name, limits) {
  const { run, i } = subject;
  const rows = run.rows(i);
  const windows = [...new Set(rows.map((row) => row.window))];
  const points = (column, chosen) => chosen.map((row) => ({ x: row.length, y: row[column] })).sort((a, b) => a.x - b.x);
  const many = new Set(rows.map((row) => row.length)).size > 12;
  const roles = ["measured", "printed", "random", "printedToo"];
  const series = windows.slice(0, roles.length).map((window, k) => ({
    name: windows.length > 1 ? `window ${window + 1}` : "measured", role: roles[k],
    points: points(name, rows.filter((row) => row.window === window)),
  }));
  const bound = name === "jacobian_norm" ? [{ name: "upper bound", role: "soft", dash: "5 3", bare: true, points: points("jacobian_bound", rows.filter((row) => row.window === windows[0])) }] : [];
  const drawn = many ? { dots: [...series, ...bound] } : { lines: [...series, ...bound] };
  const left_out = [
    run.data.rows.of > run.data.rows.window.length ? ` ${run.data.rows.window.length.toLocaleString("en-US")} of ${run.data.rows.of.toLocaleString("en-US")} rows are in this report.` : "",
    windows.length > roles.length ? ` The first ${roles.length} of ${windows.length} windows are drawn.` : "",
  ];
  const measure = run.data.measures[name];
  const lengths = [...new Set(rows.map((row) => row.length))].sort((a, b) => a - b);
  return chartFigure(subject, `${measure.label} by length`, name.replaceAll("_", "-"), {
    x: { ...LENGTH_AXIS, log: !many, values: many ? undefined : lengths }, y: { range: measure.fixed ? [0, 1] : limits[name], format: (value) => written(measure, value) }, ...drawn,
  }, `Each point is one row of the scan. ${measure.sentence}${left_out.join("")}`);
}
