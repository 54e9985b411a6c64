// The alarms of a run: how many, the state of the heads at the end, and the list with evidence and advice.

const FIRST_ALARMS = 12; // lines shown until more are asked for
let allAlarms = false;

function kindWords(kind) {
  return visible(kind).replaceAll("-", " ");
}

/** What raised an alarm: the value and the limit that it crossed. */
function evidenceWords(run, { kind, value, limit }) {
  const measure = run.data.measures[run.data.kinds[kind]];
  const words = [measure?.label ?? "", value === null ? "not a number" : written(measure, value), limit === null ? "" : `(limit ${written(measure, limit)})`];
  return words.filter(Boolean).join(" ");
}

function alarmTable(run, alarms, named = true) {
  const header = ["Step", ...(named ? ["Head"] : []), "Alarm", "Evidence", "Advice"];
  const line = (alarm) => element(
    "tr", {},
    element("td", {}, element("button", { type: "button", class: "link", "aria-label": `Show step ${whole(alarm.step)}`, onclick: () => { showStep(run.nearest(alarm.step)); choose(alarm.layer, alarm.head); } }, whole(alarm.step))),
    named ? element("th", { scope: "row" }, headLink(run, alarm.layer, alarm.head)) : null,
    element("td", { class: "words" }, kindWords(alarm.kind)),
    element("td", { class: "words" }, evidenceWords(run, alarm)),
    element("td", { class: "words advice" }, capitalized(visible(alarm.advice))),
  );
  return element("div", { class: "scroll" }, element("table", { class: "alarms" }, element("thead", {}, element("tr", {}, header.map((text) => element("th", { scope: "col", class: text === "Step" ? null : "words" }, text)))), element("tbody", {}, alarms.map(line))));
}

function drawAlarms() {
  const run = runs[0];
  const { alarms, alarm_count: count } = run.data;
  const lines = allAlarms || printing ? alarms : alarms.slice(0, FIRST_ALARMS);
  const rest = alarms.length - lines.length;
  const left_out = count > alarms.length ? ` These are the first ${whole(alarms.length)} of ${whole(count)}; alarms.jsonl has all.` : "";
  byId("alarms").replaceChildren(
    element("h2", { id: "alarms-title" }, "Alarms"),
    element("p", { class: "soft" }, count ? `An alarm is raised when a measure crosses its limit, and again only after it has come back.${left_out}` : `None in ${plural(run.data.measured_steps, "measured step")}.`),
    ...(count ? [alarmTable(run, lines)] : []),
    ...(rest > 0 ? [element("button", { type: "button", class: "more", onclick: () => { allAlarms = true; drawAlarms(); } }, `Show all ${whole(alarms.length)}`)] : []),
  );
}

/** The alarms in a sentence. */
function headline(run) {
  const { alarms, alarm_count: count, measured_steps: steps } = run.data;
  if (!count) return `No alarm in ${plural(steps, "measured step")}`;
  const heads = new Set(alarms.map((alarm) => headName(alarm.layer, alarm.head)));
  const [first] = alarms;
  return `${plural(count, "alarm")} in ${count > alarms.length ? "at least " : ""}${heads.size} of ${plural(run.count, "head")}, the first at step ${whole(first.step)}: ${headName(first.layer, first.head)}, ${kindWords(first.kind)}`;
}

/** The end of the run, or where it is now: alarms, loss, and the reading of every head. */
function drawVerdict() {
  const run = runs[0];
  const { status, scalars } = run.data;
  const last = whole(run.groups.at(-1));
  const loss = scalars.loss;
  const values = (loss?.value ?? []).filter((value) => value !== null);
  const course = values.length > 1 ? `Loss ${number(values[0])} at first, ${number(values.at(-1))} at last.` : "";
  const broken = loss && loss.broken !== null ? element("p", { class: "warning" }, `The loss was not a number, or infinite, at step ${whole(loss.broken)}.`) : null;
  const { errors, last_error: error } = run.data;
  const failures = errors ? element("p", { class: "warning" }, `The monitor met ${plural(errors, "error")} of its own; the training went on. The last: ${visible(error)}`) : null;
  byId("verdict").replaceChildren(
    element("h2", { id: "verdict-title" }, status === "training" ? `So far, at step ${last}` : `At the end, step ${last}`),
    element(
      "div", { class: "verdict" },
      element("p", { class: "headline" }, headline(run)),
      broken, failures,
      course ? element("p", {}, course) : null,
      stateBar(run, run.readings(run.last)),
      element("p", { class: "soft small" }, `What the heads' numbers say at step ${last}: each head has the first reading, from left to right, whose limit its measures cross. A reading is no diagnosis of the model: `, element("code", {}, "attnscope scan MODEL --diagnose"), " makes one from many rows of a text."),
    ),
  );
}
