// The panel of a head: its numbers in words, its curves, its rows; two of them side by side while comparing.

const WHAT_IF = ["separability", "top_mass", "participation", "max_weight", "support", "jacobian_norm"];

function drawDetail() {
  const panel = byId("panel");
  const compared = subjects();
  panel.replaceChildren();
  if (!compared.length) {
    panel.append(element("p", { class: "soft" }, "This head is not in the run: it was left out, or the models differ."));
    return;
  }
  panel.classList.toggle("two", compared.length > 1);
  if (view.compare === "heads" && compared.length < 2) {
    panel.append(element("p", { class: "notice" }, `Comparing with ${compared[0].run.title(compared[0].i)}: now choose the second head on the map.`));
  }
  const limits = sharedLimits(compared);
  if (compared.length > 1) panel.append(differences(compared));
  if (view.compare === "lengths") panel.append(element("p", { class: "soft small" }, "Only what depends on the length is shown."));
  panel.append(element("div", { class: "subjects" }, compared.map((subject) => subjectPanel(subject, limits))));
  // Start each text where the head looks most.
  for (const most of panel.querySelectorAll(".tokens .most")) most.parentElement.scrollTop = most.offsetTop - 60;
}

function subjectTitle({ run, i, group }) {
  const start = run.title(i);
  const length = `, length ${run.groups[group]}`;
  if (view.compare === "runs") return `${"AB"[runs.indexOf(run)]}: ${start}${length}`;
  return view.compare === "lengths" ? `${start}${length}` : start;
}

function subjectPanel(subject, limits) {
  const { run, i } = subject;
  const judgment = run.judgment(i);
  const whole = view.compare !== "lengths"; // what is the same for every length is shown once
  const parts = [
    element("h3", {}, subjectTitle(subject), judgment ? stateBadge(run.state(i)) : null),
    element("p", { class: "in-words" }, inWords(subject)),
    whole && judgment ? judgmentWords(run, i) : null,
    whole ? mentions(run, i) : null,
    whole ? textPanel(run, i) : null,
    element("div", { class: "charts" }, [
      separabilityFigure(subject), spreadFigure(subject), distanceFigure(subject, limits),
      whole ? [alongFigure(subject, "participation", limits), alongFigure(subject, "jacobian_norm", limits), whatIfTable(run, i)] : null,
    ]),
    whole ? numbersTable(subject) : null,
    whole ? rowsTable(run, i) : null,
  ];
  // Missing parts become empty elements, so that two heads side by side stay aligned.
  return element("article", { class: "subject" }, parts.map((part) => part ?? element("div")));
}

/** The head in two sentences. */
function inWords({ run, i, group }) {
  const value = (name) => run.value(name, i, group);
  const length = run.groups[group];
  const rank = run.rank("participation", i, group);
  const others = (part) => (part > 0.995 ? "all other heads" : `${share(part)} of the heads`);
  const than = run.count < 2 ? "" : `, ${rank >= 0.5 ? `higher than ${others(rank)}` : `lower than ${others(1 - rank)}`}`;
  const first = value("sink_weight");
  const { rows, windows } = run.data.run.settings;
  const measured = rows === "last" ? ` (${plural(windows, "row")})` : "";
  return `Participation ${number(value("participation"))} at length ${length}${measured}${than}: the effective number of tokens that share the weight. Its max weight is `
    + `${share(value("max_weight"))}; its sink weight, that of the first token, ${share(first)}. `
    + `${value("separability") === null ? "" : `Of its top ${run.data.usual_n} tokens, ${share(value("separability"))} stay apart from the rest.`}`;
}

/** Why a head has its state, or none: the error of each simpler rule beside its limit. */
function judgmentWords(run, i) {
  const judgment = run.judgment(i);
  const withdrawal = run.withdrawal(i);
  const evidence = judgment.evidence ?? {};
  const thresholds = run.data.findings.thresholds ?? {};
  const known = (value) => value !== undefined && value !== null;
  const rules = run.data.rules ?? runs[0].data.rules; // reports of older versions have none
  const errors = rules.filter((rule) => known(evidence[rule.error])).map((rule) => {
    const [error, limit] = [evidence[rule.error], thresholds[rule.limit]];
    const bar = element("span", { class: "bar" });
    const fill = element("span", { class: "fill" });
    fill.style.width = `${Math.min(100, 100 * error)}%`;
    bar.append(fill);
    if (known(limit)) {
      const line = element("span", { class: "limit" });
      line.style.left = `${Math.min(100, 100 * limit)}%`;
      bar.append(line);
    }
    const enough = withdrawal ? "" : error < limit ? "enough " : "not enough ";
    const verdict = known(limit) ? `${enough}(limit ${share(limit)})` : "";
    return element("tr", {}, element("th", { scope: "row" }, rule.words), element("td", {}, bar), element("td", {}, share(error)), element("td", { class: "soft" }, verdict));
  });
  const sure = [
    withdrawal ? visible(withdrawal) : stateLook(run.state(i)).sentence,
    judgment.edge ? `But it lies near the edge of ${judgment.edge}: other rows would give this label only ${share(judgment.sureness)} of the time.` : "",
    known(judgment.state_share) ? `Taken one by one, ${share(judgment.state_share)} of its rows show this state.` : "",
    judgment.over_sharp_share - judgment.off_share > 0.5 ? `In ${share(judgment.over_sharp_share)} of the rows one token takes nearly all the weight.` : "",
    known(evidence.tokens_needed) ? `It needs ${number(evidence.tokens_needed)} tokens for an error of ${share(thresholds.enough ?? 0.1)}${known(evidence.growth_exponent) ? `, growing like length^${number(evidence.growth_exponent)} (${number(evidence.growth_exponent_low)} to ${number(evidence.growth_exponent_high)})` : ""}.` : "",
  ];
  return element(
    "div", { class: "judgment" },
    element("p", {}, sure.filter(Boolean).join(" ")),
    errors.length
      ? element("table", { class: "errors" },
        element("caption", {}, term("Error if a simpler rule replaced its weights", "How far the head's output moves, relative to its size, when its weights are replaced by the rule. The first rule from the top that is enough gives the head its state; if none is, the head needs more tokens than they keep. A label that does not hold inside the model is withdrawn.")),
        element("tbody", {}, errors))
      : null,
  );
}

/** The findings that name this head and not most others too. */
function mentions(run, i) {
  const specific = (finding) => finding.severity === "act" || finding.severity === "watch" || (finding.heads ?? []).length < run.count / 2;
  const about = run.findings.filter((finding) => specific(finding) && (finding.heads ?? []).some(([layer, head]) => layer === run.layer(i) && head === run.head(i)));
  if (!about.length) return null;
  return element("ul", { class: "mentions" }, about.map((finding) => element("li", {}, element("strong", {}, visible(finding.title)), ` ${visible(finding.advice ?? finding.sentence)}`)));
}

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
  const distances = compared.filter(hasCurves).flatMap(({ run, i, group }) => ["distance", "distance_lower", "distance_bound_printed", "expected_lower", "expected_printed", "distance_upper"].flatMap((name) => run.curve(name, i, group).map((point) => point.y)));
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
    draw: (colors) => chart({ ...spec, description, ...recolored(spec, colors) }, colors), numbers: () => chartNumbers(spec),
  });
}

function ends(line, { x, y }) {
  if (!line.points.length) return "";
  const [first, last] = [line.points[0], line.points.at(-1)];
  const described = (point) => `${(y.format ?? number)(point.y)} at ${(x.format ?? number)(point.x)}`;
  return `${line.name}: ${described(first)}, ${described(last)}.`;
}

/** Series name their color by its role, so that a saved picture can be light on a dark page. */
function recolored(spec, colors) {
  const paint = (series) => series.map((one) => ({ ...one, color: colors[one.role] ?? one.color }));
  return { bands: paint(spec.bands ?? []), lines: paint(spec.lines ?? []), dots: paint(spec.dots ?? []) };
}

const N_AXIS = { title: "N, how many of its top tokens are taken", log: true, format: (value) => number(value) };

function separabilityFigure(subject) {
  const { run, i, group } = subject;
  if (!hasCurves(subject)) return noCurves("Separability");
  const lines = [
    { name: "measured", role: "measured", points: run.curve("separability", i, group) },
    { name: "printed upper bound", role: "printed", dash: "5 3", bare: true, points: run.curve("separability_upper_printed", i, group) },
    { name: "printed lower bound", role: "printedToo", dash: "2 3", bare: true, points: run.curve("separability_lower_printed", i, group) },
  ];
  const bounds = run.data.run.settings.bounds === null
    ? "A scan with --bounds paper shows the bounds too."
    : "The band is what mathematics allows; dashed: the paper's bounds as printed.";
  const evidence = (group === 0 && run.judgment(i)?.evidence) || {};
  const n = run.data.usual_n;
  const dots = [["separability", "mean, all rows"], ["null_uniform", "equal weights"], ["null_random", "random tokens"], ["separability_without_sink", "without the first token"]]
    .filter(([key]) => evidence[key] !== undefined && evidence[key] !== null)
    .map(([key, name], k) => ({ name, role: ["measured", "random", "focus", "soft"][k], points: [{ x: n, y: evidence[key] }] }));
  return chartFigure(subject, "Separability", "separability", {
    x: { ...N_AXIS, values: run.data.curves.n }, y: { range: [0, 1], format: share },
    bands: [{ name: "proved range", role: "proved", points: run.band("separability_lower", "separability_upper", i, group) }], lines, dots,
  }, `How many of its top tokens stay apart from the rest. ${bounds}` + (dots.length ? ` The dots at ${n} are means over all rows of the diagnosis: as it is, and what chance would give.` : ""));
}

function distanceFigure(subject, limits) {
  const { run, i, group } = subject;
  if (!hasCurves(subject)) return noCurves("Distance");
  return chartFigure(subject, "Distance", "distance", {
    x: { ...N_AXIS, values: run.data.curves.n }, y: { log: true, range: limits.distance },
    bands: [
      { name: "proved range", role: "proved", points: run.band("distance_lower", "distance_upper", i, group) },
      { name: "random tokens", role: "random", points: run.band("expected_lower", "expected_upper", i, group) },
    ],
    lines: [
      { name: "measured", role: "measured", points: run.curve("distance", i, group) },
      { name: "printed bound", role: "printed", dash: "5 3", bare: true, points: run.curve("distance_bound_printed", i, group) },
      { name: "random, as printed", role: "printedToo", dash: "2 3", bare: true, points: run.curve("expected_printed", i, group) },
    ],
  }, "Summed distance of all other tokens to the weighted sum of the top N. Green: what as many tokens chosen at random would give.");
}

function spreadFigure(subject) {
  const { run, i, group } = subject;
  if (!hasCurves(subject)) return noCurves("Top mass");
  return chartFigure(subject, "Top mass", "top-mass", {
    x: { ...N_AXIS, values: run.data.curves.n }, y: { range: [0, 1], format: share },
    lines: [{ name: "top mass", role: "measured", points: run.curve("top_mass", i, group) }],
  }, "The share of the weight on its top tokens. A steep rise to 100%: few tokens matter. A slow one: the weight is spread thin.");
}

function noCurves(title) {
  return element("figure", {}, element("figcaption", {}, title), element("p", { class: "soft" }, "The report of a model this large holds these curves for the longest length only."));
}

/** A measure of every row against its length; the Jacobian norm with its bound. */
function alongFigure(subject, name, limits) {
  const { run, i } = subject;
  const rows = run.rows(i);
  const windows = [...new Set(rows.map((row) => row.window))];
  const points = (column, chosen) => chosen.map((row) => ({ x: row.length, y: row[column] })).sort((a, b) => a.x - b.x);
  const many = new Set(rows.map((row) => row.length)).size > 12;
  const roles = ["measured", "printed", "random", "printedToo"];
  const series = windows.slice(0, 4).map((window, k) => ({
    name: windows.length > 1 ? `window ${window + 1}` : "measured", role: roles[k],
    points: points(name, rows.filter((row) => row.window === window)),
  }));
  const lines = many ? [] : series;
  if (name === "jacobian_norm") lines.push({ name: "upper bound", role: "soft", dash: "5 3", bare: true, points: points("jacobian_bound", rows.filter((row) => row.window === windows[0])) });
  const thinned = run.data.rows.of > run.data.rows.window.length ? ` ${run.data.rows.window.length} of ${run.data.rows.of} rows are in this report.` : "";
  const measure = run.data.measures[name];
  return chartFigure(subject, `${measure.label}, as the text grows`, name.replace("_", "-"), {
    x: { title: "length: how many tokens the row sees", log: !many }, y: { range: limits[name] }, lines, dots: many ? series : [],
  }, `Each point is one row. ${measure.sentence}${thinned}`);
}

function whatIfTable(run, i) {
  const tried = run.data.what_if;
  if (!tried) return null;
  const lines = tried.labels.map((name, k) => [name, ...WHAT_IF.map((column) => tried.columns[column][i * tried.labels.length + k])]);
  const body = lines.map(([name, ...values]) => element("tr", {}, element("th", { scope: "row" }, name === "own" ? "as it is" : visible(name)), values.map((value, k) => element("td", {}, written(run.data.measures[WHAT_IF[k]], value)))));
  const saving = element("button", { type: "button", class: "save", "aria-label": "Save what if as CSV", onclick: () => save(`what-if-${run.title(i)}.csv`, csv(["normalizer", ...WHAT_IF], lines), "text/csv") }, "CSV");
  return element(
    "figure", { class: "what-if" },
    element("figcaption", {}, element("span", { class: "figure-title" }, "What if: other normalizers on the same scores"), saving),
    element("p", { class: "figure-note" }, "A normalizer turns the head's scores into weights; softmax is the usual one. The model was not run again. Where fewer tokens get weight than the top set has, it has no separability."),
    element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "normalizer"), WHAT_IF.map((column) => element("th", { scope: "col" }, measureTerm(column))))),
      element("tbody", {}, body))),
  );
}

/** All numbers of a head with their ranks among the heads. */
function numbersTable({ run, i, group }) {
  const lines = Object.entries(run.data.measures).map(([name, measure]) => {
    const spread = group === 0 ? run.data.heads[`${name}_spread`]?.[i] : undefined;
    const rank = run.rank(name, i, group);
    return element("tr", {}, element("th", { scope: "row" }, measureTerm(name)), element("td", {}, written(measure, run.value(name, i, group)), spread === undefined || spread === null ? "" : element("span", { class: "soft" }, ` ± ${written(measure, spread)}`)), element("td", { class: "soft" }, run.value(name, i, group) === null ? "" : `above ${share(rank)} of heads`));
  });
  const caption = `All its numbers at length ${run.groups[group]}${run.data.run.settings.windows > 1 ? ", ± spread over windows" : ""}`;
  return element("details", {}, element("summary", {}, caption), element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, lines))));
}

function rowsTable(run, i) {
  const rows = run.rows(i);
  const columns = Object.keys(rows[0] ?? {});
  const holder = element("details", {}, element("summary", {}, `Its ${plural(rows.length, "row")}`));
  // Long tables are made when they are asked for.
  holder.addEventListener("toggle", () => {
    if (!holder.open || holder.querySelector("table")) return;
    const saving = element("button", { type: "button", class: "save", onclick: () => save(`rows-${run.title(i)}.csv`, csv(columns, rows.map((row) => columns.map((name) => row[name]))), "text/csv") }, "CSV");
    const named = (name) => run.data.measures[name] ? measureTerm(name) : capitalized(name.replaceAll("_", " "));
    holder.append(saving, element("div", { class: "scroll tall" }, element("table", {},
      element("thead", {}, element("tr", {}, columns.map((name) => element("th", { scope: "col" }, named(name))))),
      element("tbody", {}, rows.map((row) => element("tr", {}, columns.map((name) => element("td", {}, number(row[name])))))))));
  });
  return holder;
}

/** The numbers of two subjects and the difference between them. */
function differences([one, other]) {
  const names = Object.keys(one.run.data.measures).filter((name) => view.compare !== "lengths" || !one.run.data.measures[name].whole);
  const lines = names.map((name) => {
    const measure = one.run.data.measures[name];
    const [a, b] = [one, other].map(({ run, i, group }) => run.value(name, i, group));
    const by = a === null || b === null ? null : b - a;
    return element("tr", {}, element("th", { scope: "row" }, measureTerm(name)), element("td", {}, written(measure, a)), element("td", {}, written(measure, b)), element("td", { class: "soft" }, by === null ? "–" : `${by > 0 ? "+" : by < 0 ? "−" : ""}${measure.style === "share" ? `${number(Math.abs(100 * by))} points` : number(Math.abs(by))}`));
  });
  return element("div", { class: "scroll" }, element("table", { class: "differences" },
    element("thead", {}, element("tr", {}, element("th", {}), element("th", { scope: "col" }, subjectTitle(one)), element("th", { scope: "col" }, subjectTitle(other)), element("th", { scope: "col" }, "difference"))),
    element("tbody", {}, lines)));
}
