// A run as the page uses it, and what is being looked at.

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const NO_LABEL = "no label"; // of heads whose label did not hold inside the model

class Run {
  constructor(data) {
    this.data = data;
    const heads = data.heads ?? { layer: [], head: [] };
    this.count = heads.layer.length;
    this.indices = new Map(heads.layer.map((layer, i) => [`${layer}.${heads.head[i]}`, i]));
    this.layers = [...new Set(heads.layer)];
    this.width = Math.max(0, ...heads.head.map((head) => head + 1));
    this.groups = data.groups ?? [];
    this.findings = [...(data.horizon ? [data.horizon.finding] : []), ...(data.findings?.findings ?? data.notes ?? [])];
    this.judged = new Map((data.findings?.heads ?? []).map((entry) => [`${entry.layer}.${entry.head}`, entry]));
    this.statesCounted = new Map();
    for (const judgment of this.judged.values()) {
      const state = judgment.state ?? NO_LABEL;
      this.statesCounted.set(state, (this.statesCounted.get(state) ?? 0) + 1);
    }
    this.addEvidence();
    if (data.horizon && this.count) this.addHorizon();
  }

  /** The numbers of the diagnosis beside those of the scan; they are the same for every length. */
  addEvidence() {
    const known = Object.entries(this.data.evidence ?? {}).filter(([name]) => [...this.judged.values()].some((entry) => (entry.evidence?.[name] ?? entry[name] ?? null) !== null));
    for (const [name, measure] of known) {
      this.data.measures[name] = { ...measure, whole: "diagnosis" };
      this.data.by_group[name] = Array.from({ length: this.count }, (_, i) => this.judgment(i)).flatMap((entry) => Array(this.groups.length).fill(entry?.evidence?.[name] ?? entry?.[name] ?? null));
    }
  }

  /** The numbers of a prediction for longer inputs, if there is one. */
  addHorizon() {
    const { heads, measures, source } = this.data.horizon;
    this.horizonIndices = new Map(heads.layer.map((layer, k) => [`${layer}.${heads.head[k]}`, k]));
    this.data.sources.horizon = source;
    for (const [name, measure] of Object.entries(measures)) {
      this.data.measures[name] = { ...measure, whole: "horizon" };
      this.data.by_group[name] = Array.from({ length: this.count }, (_, i) => horizonIndex(this, i)).flatMap((k) => Array(this.groups.length).fill(k === undefined ? null : heads[name][k]));
    }
  }

  index(layer, head) {
    return this.indices.get(`${layer}.${head}`);
  }

  layer(i) {
    return this.data.heads.layer[i];
  }

  head(i) {
    return this.data.heads.head[i];
  }

  title(i) {
    return headName(this.layer(i), this.head(i));
  }

  value(measure, i, group = 0) {
    return this.data.by_group[measure]?.[i * this.groups.length + group] ?? null;
  }

  values(measure, group = 0) {
    return Array.from({ length: this.count }, (_, i) => this.value(measure, i, group));
  }

  /** The values that the colors of a map range over. */
  scaled(measure, group) {
    return this.values(measure, group);
  }

  /** What the labels of heads are called. */
  get labeling() {
    return "State";
  }

  /** Where a map's numbers are from, as the end of its title. */
  where(measure, group) {
    return this.groups.length > 1 && measure !== "state" && !this.data.measures[measure].whole ? `, length ${this.groups[group]}` : "";
  }

  /** What a mark in the corner of a head's cell says, if it has one. */
  remark() {
    return "";
  }

  /** The diagnosis of a head, if there is one. */
  judgment(i) {
    return this.judged.get(`${this.layer(i)}.${this.head(i)}`);
  }

  state(i) {
    const judgment = this.judgment(i);
    return judgment && (judgment.state ?? NO_LABEL);
  }

  /** The label that a head nearly has. */
  edge(i) {
    const edge = this.judgment(i)?.edge;
    return edge && (this.data.states[edge] && edge !== NO_LABEL ? edge : "a label that was withdrawn");
  }

  /** Why a head has no label, in a sentence. */
  withdrawal(i) {
    const label = this.judgment(i)?.withdrawn;
    return label && (this.data.findings.verdict?.withdrawn ?? []).find((one) => one.state === label)?.sentence;
  }

  /** A column against N, as points. */
  curve(column, i, group) {
    const { n, groups, columns } = this.data.curves;
    const start = (i * groups + group) * n.length;
    return n.map((size, k) => ({ x: size, y: columns[column][start + k] })).filter((point) => point.y !== null);
  }

  band(low, high, i, group) {
    const upper = new Map(this.curve(high, i, group).map((point) => [point.x, point.y]));
    return this.curve(low, i, group).filter((point) => upper.has(point.x)).map((point) => ({ x: point.x, low: point.y, high: upper.get(point.x) }));
  }

  /** The measured rows of a head, each with its window and position. */
  rows(i) {
    const { window, position, columns } = this.data.rows;
    const names = Object.keys(columns);
    return window
      .map((number, k) => {
        const values = names.map((name) => [name, columns[name][i * window.length + k]]);
        return { window: number, position: position[k], ...Object.fromEntries(values) };
      })
      .filter((row) => row.length !== null);
  }

  /** The share of heads with a smaller value. */
  rank(measure, i, group) {
    const value = this.value(measure, i, group);
    const known = this.values(measure, group).filter((other) => other !== null);
    return known.filter((other) => other < value).length / Math.max(1, known.length - 1);
  }

  /** The name of the model; of two runs of one model, also the name of the run, or when it was finished. */
  get short() {
    const model = shortName(this.data.run.model.name);
    const names = runs.map((run) => run.data.run.model.name);
    if (runs.length < 2 || names[0] !== names[1]) return model;
    const named = page.links.names?.[runs.indexOf(this)];
    return `${model} (${named ? visible(named) : visible(this.data.run.finished).slice(0, 16).replace("T", " ")})`;
  }

  /** What was measured on what, in a sentence or two. */
  get facts() {
    const { run, findings } = this.data;
    const { windows, length } = run.settings;
    const diagnosed = findings?.windows ? ` Diagnosis: ${plural(findings.windows, "window")} of ${plural(findings.length, "token")} spread over it.` : "";
    return `${plural(this.layers.length, "layer")}, ${plural(this.count, "head")}. Text: ${shortName(run.text.source)}. Scan: ${plural(windows, "window")} of ${plural(length, "token")}.${diagnosed} ${visible(run.finished).slice(0, 10)}.`;
  }

  /** Which of the two runs of a comparison it is. */
  get letter() {
    return "AB"[runs.indexOf(this)];
  }

  /** A group of lengths that the run has. */
  within(group) {
    return Math.max(0, Math.min(group, this.groups.length - 1));
  }

  /** The rows that a measure's numbers are from, in words. */
  source(measure, group = 0) {
    const { sources } = this.data;
    const whole = measure === "state" ? "diagnosis" : this.data.measures[measure]?.whole;
    return whole ? `${whole}: ${sources[whole]}` : `scan: ${sources.scan[group]}`;
  }

  /** How many heads each layer has, in words. */
  get shape() {
    const heads = [...new Set(this.data.run.model.heads.map((layer) => layer.heads))];
    return `${plural(this.data.run.model.heads.length, "layer")} of ${heads.join(" or ")} heads`;
  }
}

const runs = [];

const view = {
  measure: "participation",
  group: 0,
  secondGroup: 1,
  selected: null, // { layer, head, run }
  compare: "none", // none, heads, lengths, runs
  pinned: null,
  sorted: false,
  marked: null, // the heads of a finding
  filter: { measure: "participation", side: "least", limit: null, state: "" },
  order: { by: "head", down: false },
  hideFirst: false, // the first key of patterns
};

/** A measure that one of the runs has. */
function measureOf(name) {
  return runs.map((run) => run.data.measures?.[name]).find(Boolean);
}

/** The runs on the map: two while they are compared. */
function mappedRuns() {
  return view.compare === "runs" ? runs : runs.slice(0, 1);
}

/** Whether a head of one run is the same head of the other: not if their models have different shapes. */
function paired() {
  return view.compare !== "runs" || sameShape(...runs);
}

function sameShape(one, other) {
  const heads = (run) => JSON.stringify(run.data.run.model.heads.map((layer) => layer.heads));
  return heads(one) === heads(other);
}

/** What the panel shows: one head, or two things side by side. */
function subjects() {
  const { selected, pinned } = view;
  if (!selected) return [];
  const subject = (run, chosen, group) => {
    const i = run.index(chosen.layer, chosen.head);
    return i === undefined ? null : { run, i, group: run.within(group) };
  };
  const compared = {
    none: () => [subject(runs[0], selected, view.group)],
    heads: () => [subject(runs[0], pinned, view.group), sameHead(selected, pinned) ? null : subject(runs[0], selected, view.group)],
    lengths: () => [subject(runs[0], selected, view.group), subject(runs[0], selected, view.secondGroup)],
    runs: () => (paired() ? runs : [runs[selected.run]]).map((run) => subject(run, selected, view.group)),
  }[view.compare]();
  return compared.filter((one) => one !== null);
}

function sameHead(one, other) {
  return one?.layer === other?.layer && one?.head === other?.head;
}

/** Whether a head passes the filter and belongs to the finding that is marked. */
function passes(run, i) {
  const { measure, side, limit, state } = view.filter;
  const value = run.value(measure, i, run.within(view.group));
  if (limit !== null && (value === null || (side === "least" ? value < limit : value > limit))) return false;
  if (state && run.state(i) !== state) return false;
  return !view.marked || view.marked.has(`${run.layer(i)}.${run.head(i)}`);
}
