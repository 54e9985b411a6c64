// The horizon of a head: its top-5 mass at longer inputs, predicted from short windows, with the band of the prediction.

/** The index of a head in the numbers of the prediction; undefined if there is none. */
function horizonIndex(run, i) {
  return run.horizonIndices?.get(`${run.layer(i)}.${run.head(i)}`);
}

/** What becomes of a head, in words. */
function horizonWords(run, i) {
  const k = horizonIndex(run, i);
  if (k === undefined) return null;
  const { heads, settings } = run.data.horizon;
  const { base, to, length } = settings;
  const whole = (value) => Math.round(value).toLocaleString("en-US");
  const words = {
    holds: `keeps at least half of the top-5 mass that it has at ${whole(base)} tokens up to ${whole(to)}`,
    thins: `loses more than half of its top-5 mass before ${whole(to)} tokens`,
    diluted: `loses more than three quarters of its top-5 mass before ${whole(to)} tokens`,
    undecided: `may or may not lose half of its top-5 mass before ${whole(to)} tokens: the prediction cannot tell`,
  }[heads.verdict[k]];
  const half = heads.half_length[k] === null ? "" : ` Half is lost at about ${whole(heads.half_length[k])} tokens.`;
  const reach = heads.reach[k] === null ? "" : ` Keys more than ${whole(heads.reach[k])} tokens away hardly compete${heads.verdict[k] === "holds" && heads.reach[k] < length ? ": it may hold only because it does not look there" : ""}.`;
  return `Horizon: ${heads.verdict[k]}. It ${words}.${half}${reach}`;
}

function horizonFigure(subject) {
  const { run, i } = subject;
  const k = horizonIndex(run, i);
  if (k === undefined) return null;
  const { lengths, curves, settings } = run.data.horizon;
  const points = (columns, name) => lengths.map((length, at) => ({ x: length, y: columns[name][k * lengths.length + at] })).filter((point) => point.y !== null);
  const own = curves.own;
  const band = lengths.map((length, at) => ({ x: length, low: own.lower[k * lengths.length + at], high: own.upper[k * lengths.length + at] }));
  const all = points(own, "predicted");
  const others = Object.entries(curves).filter(([name]) => name !== "own");
  const roles = ["random", "printedToo", "focus", "soft"];
  const seen = (point) => point.x <= settings.length;
  const lines = [
    { name: "measured in the windows", role: "measured", points: all.filter(seen) },
    { name: "predicted", role: "measured", dash: "5 3", points: all.filter((point) => point.x >= settings.length) },
    ...others.slice(0, roles.length).map(([name, columns], at) => ({ name: visible(name), role: roles[at], dash: "2 3", bare: true, points: points(columns, "predicted") })),
  ];
  const left_out = others.length > roles.length ? ` The first ${roles.length} of ${others.length} other normalizers are drawn.` : "";
  return chartFigure(subject, "Top-5 mass at longer inputs", "horizon", {
    x: { ...LENGTH_AXIS, log: true, values: lengths }, y: { range: [0, 1], format: share },
    bands: [{ name: "90% interval", role: "proved", points: band }],
    lines, dots: [{ name: "measured on long inputs", role: "printed", points: points(own, "measured") }],
  }, `The weight of the 5 largest keys. Up to ${settings.length.toLocaleString("en-US")} tokens it is measured; beyond, the window's keys are moved to longer distances.${left_out}`);
}
