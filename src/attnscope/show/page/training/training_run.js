// A training run as the page uses it: a run whose groups are steps, and what is being looked at.

const MOST_KEPT = 5; // heads in the charts beside the chosen one
const KEPT_ROLES = ["measured", "printed", "random", "printedToo", "proved"]; // their colors

class TrainingRun extends Run {
  constructor(data) {
    super(data);
    this.groups = data.steps;
  }

  /** The index of the last step on the page. */
  get last() {
    return this.groups.length - 1;
  }

  value(measure, i, step = this.last) {
    return this.data.columns[measure]?.[step * this.count + Number(i)] ?? null;
  }

  /** Colors range over all steps, so that a color means the same at each of them. */
  scaled(measure) {
    return this.data.low[measure].concat(this.data.high[measure]);
  }

  get labeling() {
    return "Reading";
  }

  where(measure, step) {
    return `, step ${whole(this.groups[step])}`;
  }

  /** The reading of a head at a step: the first rule that its numbers meet. */
  state(i, step = this.within(view.group)) {
    const { rules, otherwise, unknown } = this.data;
    const values = rules.map(({ measure }) => this.value(measure, i, step));
    if (values.includes(null)) return unknown;
    const crossed = ({ side, limit }, k) => (side === "at least" ? values[k] >= limit : values[k] <= limit);
    return rules.find(crossed)?.state ?? otherwise;
  }

  /** The alarms of a head up to the step of the map. */
  remark(i) {
    const raised = this.alarmsOf([{ layer: this.layer(i), head: this.head(i) }]).filter(({ step }) => step <= this.groups[this.within(view.group)]);
    return raised.map(({ step, kind }) => `alarm at step ${whole(step)}: ${kindWords(kind)}`).join("\n");
  }

  /** How many heads have each reading at a step. */
  readings(step) {
    const counts = new Map();
    for (let i = 0; i < this.count; i += 1) counts.set(this.state(i, step), (counts.get(this.state(i, step)) ?? 0) + 1);
    return counts;
  }

  /** A measure of a head against the step. */
  course(measure, i) {
    return this.groups.map((step, k) => ({ x: step, y: this.value(measure, i, k) }));
  }

  /** The range of a measure over all heads against the step. */
  range(measure) {
    const { low, high } = this.data;
    return this.groups.map((step, k) => ({ x: step, low: low[measure][k], high: high[measure][k] })).filter((point) => point.low !== null);
  }

  /** The index of the step on the page that is nearest to a step. */
  nearest(step) {
    const apart = this.groups.map((one) => Math.abs(one - step));
    return apart.indexOf(Math.min(...apart));
  }

  /** The alarms of some heads, in their order. */
  alarmsOf(heads) {
    const { alarms } = this.data;
    if (this.sorted !== alarms.length) { // more were added
      this.sorted = alarms.length;
      this.alarmsByHead = new Map();
      for (const alarm of alarms) {
        const name = headName(alarm.layer, alarm.head);
        this.alarmsByHead.set(name, [...(this.alarmsByHead.get(name) ?? []), alarm]);
      }
    }
    return heads.flatMap(({ layer, head }) => this.alarmsByHead.get(headName(layer, head)) ?? []);
  }

  /** Add what was measured since; false if the page has too many steps now, or the heads are others. */
  append(update) {
    const { data } = this;
    if (update.steps.length && update.heads !== this.count) return false;
    for (const kind of ["columns", "low", "median", "high"]) {
      for (const [name, values] of Object.entries(data[kind])) values.push(...(update[kind][name] ?? Array(kind === "columns" ? this.count * update.steps.length : update.steps.length).fill(null)));
    }
    data.steps.push(...update.steps);
    data.alarms.push(...update.alarms);
    Object.assign(data, { status: update.status, updated: update.updated, errors: update.errors, last_error: update.last_error, measured_steps: data.measured_steps + update.measured_steps, alarm_count: data.alarm_count + update.alarm_count });
    for (const [name, points] of Object.entries(update.scalars)) {
      const known = (data.scalars[name] ??= { step: [], value: [], low: [], high: [], measured: 0, broken: null });
      for (const column of ["step", "value", "low", "high"]) known[column].push(...points[column]);
      known.measured += points.measured;
      known.broken ??= points.broken;
    }
    return data.steps.length <= 1.25 * data.room && data.alarms.length <= data.most_alarms;
  }

  get short() {
    return shortName(this.data.run.model.name);
  }

  get facts() {
    const { data } = this;
    return `${plural(this.layers.length, "layer")}, ${plural(this.count, "head")}. ${plural(data.measured_steps, "measured step")}${this.count ? `, from ${whole(this.groups[0])} to ${whole(this.groups.at(-1))}` : ""}.`;
  }
}

/** A whole number, as people read it. */
function whole(value) {
  return value.toLocaleString("en-US");
}

Object.assign(view, {
  measure: "state", // the color of the map: the reading of a head, or a measure
  curve: "entropy_ratio", // the measure in the chart
  scalar: null, // which number of the whole model is beside the measure
  kept: [], // heads that stay in the charts
  following: true, // whether the newest step is shown as it comes
});
