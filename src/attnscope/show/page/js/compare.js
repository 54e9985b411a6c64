// A second run to compare with: the report of any other run, chosen from disk, or put into the page by the server.

const LARGEST_FILE = 20_000_000;

/** The data inside another report. */
async function readReport(file) {
  if (file.size > LARGEST_FILE) throw new Error("the file is too large to be a report of attnscope");
  const packed = /<script type="application\/octet-stream" id="data">([A-Za-z0-9+/=]+)<\/script>/.exec(await file.text());
  if (!packed) throw new Error("it is not a report.html of attnscope");
  return readRun(await unpack(packed[1]));
}

function readRun(data) {
  if (data.version !== runs[0].data.version) throw new Error("it was written by another version of attnscope; scan again");
  if (!data.heads) throw new Error("it has no heads to compare");
  return new Run(data);
}

function chooseReport() {
  const input = byId("other-file");
  input.value = "";
  input.click();
}

async function loadReport(file) {
  try {
    runs[1] = await readReport(file);
    showRuns();
    announce("");
    drawAll();
    scrollTo({ top: 0, behavior: "smooth" });
  } catch (error) {
    announce(`${visible(file.name)} cannot be compared: ${error.message}.`);
    drawHeads();
  }
}

/** Two runs side by side; a state or a number of a diagnosis can only be compared if both were diagnosed. */
function showRuns() {
  view.compare = "runs";
  if (!allHave(view.measure)) view.measure = "participation";
}

function setCompare(kind) {
  if (kind === "runs" && runs.length < 2) {
    chooseReport();
    drawHeads();
    return;
  }
  const changed = (kind === "runs") !== (view.compare === "runs");
  view.compare = kind;
  view.pinned = kind === "heads" ? { ...view.selected } : null;
  if (kind === "runs") showRuns();
  else if (view.selected?.run) view.selected = firstHead();
  if (changed) drawAll();
  else drawHeads();
}

/** What differs between the two runs, as lines: what it is, in A, in B. */
function settingsApart() {
  const facts = runs.map(({ data: { run, findings } }) => ({
    model: shortName(run.model.name),
    shape: "",
    text: shortName(run.text.source),
    windows: `${plural(run.settings.windows, "window")} of ${plural(run.settings.length, "token")}`,
    rows: run.settings.rows === "last" ? "the last of each length" : String(run.settings.rows),
    vectors: run.settings.vectors,
    dtype: run.model.dtype,
    swap: run.model.swap ? JSON.stringify(run.model.swap) : "none",
    diagnosis: findings ? `${plural(findings.windows ?? 0, "window")} of ${plural(findings.length ?? 0, "token")}` : "none",
    attnscope: run.attnscope,
  }));
  runs.forEach((run, k) => { facts[k].shape = run.shape; });
  const [one, other] = facts;
  return Object.keys(one).filter((name) => one[name] !== other[name]).map((name) => [name, one[name], other[name]]);
}

/** Both runs at the top of the page: their names, what differs in how they were run, and whether their heads can be paired. */
function comparisonTop() {
  const apart = settingsApart().map(([name, one, other]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", { class: "words" }, visible(one)), element("td", { class: "words" }, visible(other))));
  const [one, other] = runs;
  const others = sameShape(one, other) && one.data.run.model.name !== other.data.run.model.name;
  return [
    element("h1", {}, `A: ${one.short} compared with B: ${other.short}`),
    sameShape(one, other) ? null : element("p", { class: "warning" }, `The models have different shapes: A has ${one.shape}, B has ${other.shape}. Their heads do not correspond, so the page shows both verdicts and both maps, and no differences. Click a head on either map for its panel.`),
    others ? element("p", { class: "notice" }, "Two models of the same shape: heads are compared by their position. That says something only if one model was made from the other, for instance fine-tuned or quantized.") : null,
    apart.length
      ? element("table", { class: "apart" }, element("thead", {}, element("tr", {}, element("th", { class: "words", scope: "col" }, "They differ in"), element("th", { class: "words", scope: "col" }, "A"), element("th", { class: "words", scope: "col" }, "B"))), element("tbody", {}, apart))
      : element("p", { class: "lead" }, `Both: ${one.facts}`),
  ];
}

/** B minus A on the heads that both have. */
function differenceFigure() {
  const [one, other] = runs;
  const measure = measureOf(view.measure);
  const value = (i) => {
    const j = other.index(one.layer(i), one.head(i));
    const [a, b] = [one.value(view.measure, i, one.within(view.group)), j === undefined ? null : other.value(view.measure, j, other.within(view.group))];
    return a === null || b === null ? null : b - a;
  };
  const values = Array.from({ length: one.count }, (_, i) => value(i));
  const scale = differenceScale(values);
  const title = `B minus A: ${measure.label}`;
  const words = (i) => `${one.title(i)}: ${values[i] === null ? "missing in one run" : differenceWords(measure, values[i])}`;
  const draw = (colors, width) => {
    const drawn = mapPicture(one, colors, width, title);
    for (const cell of drawn.querySelectorAll(".cell")) {
      cell.removeAttribute("id");
      cell.firstChild.setAttribute("fill", scale.color(values[cell.dataset.i]) ?? colors.empty);
      cell.setAttribute("aria-label", words(cell.dataset.i));
    }
    return drawn;
  };
  const drawn = (picture) => {
    picture.classList.add("difference");
    picture.addEventListener("pointerover", (event) => {
      const cell = event.target.closest(".cell");
      if (cell) showHint(cell, words(cell.dataset.i));
    });
    picture.addEventListener("pointerout", hideHint);
    picture.addEventListener("click", (event) => {
      const cell = event.target.closest(".cell");
      if (cell) choose(one.layer(cell.dataset.i), one.head(cell.dataset.i), one);
    });
  };
  const tools = scaleStrip(DIFFERENCE, scale.ends.map((by) => differenceWords(measure, by)));
  const lines = () => csv(["layer", "head", "difference"], values.map((by, i) => [one.layer(i), one.head(i), by]));
  return figure({ title, note: "Blue: larger in B. Orange: larger in A.", name: "difference", draw, drawn, tools, numbers: lines });
}
