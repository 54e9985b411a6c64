// A second run to compare with: the report of any other run, chosen from disk, or put into the page by the server.

const LARGEST_FILE = 20_000_000;

function announce(text) {
  byId("status").textContent = text;
}

/** The data inside another report. */
async function readReport(file) {
  if (file.size > LARGEST_FILE) throw new Error("the file is too large to be a report of attnscope");
  const packed = /<script type="application\/octet-stream" id="data">([A-Za-z0-9+/=]+)<\/script>/.exec(await file.text());
  if (!packed) throw new Error("it is no report.html of attnscope");
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
    announce(`Comparing A: ${shortName(runs[0].name)} with B: ${shortName(runs[1].name)}.`);
  } catch (error) {
    announce(`${visible(file.name)} cannot be compared: ${error.message}.`);
  }
  drawHeads();
}

/** Two runs side by side; a state can only be compared if both were diagnosed. */
function showRuns() {
  view.compare = "runs";
  if (runs.some((run) => !run.judged.size) && view.measure === "state") view.measure = "participation";
}

function setCompare(kind) {
  if (kind === "runs" && runs.length < 2) {
    chooseReport();
    drawHeads();
    return;
  }
  if (kind === "runs") showRuns();
  view.compare = kind;
  view.pinned = kind === "heads" ? { ...view.selected } : null;
  drawHeads();
}

/** B minus A on the heads that both have. */
function differenceFigure() {
  const [one, other] = runs;
  const measure = one.data.measures[view.measure];
  const group = Math.min(view.group, one.groups.length - 1, other.groups.length - 1);
  const value = (i) => {
    const j = other.index(one.layer(i), one.head(i));
    const [a, b] = [one.value(view.measure, i, group), j === undefined ? null : other.value(view.measure, j, group)];
    return a === null || b === null ? null : b - a;
  };
  const values = Array.from({ length: one.count }, (_, i) => value(i));
  const scale = differenceScale(values);
  const title = `B minus A: ${measure.label.toLowerCase()}`;
  const draw = (colors) => {
    const drawn = mapPicture(one, colors, title);
    for (const cell of drawn.querySelectorAll(".cell")) {
      cell.removeAttribute("id");
      const by = values[cell.dataset.i];
      cell.firstChild.setAttribute("fill", scale.color(by) ?? colors.empty);
      cell.append(shape("title", {}, `${one.title(cell.dataset.i)}: ${by === null ? "missing in one run" : number(by)}`));
    }
    return drawn;
  };
  const note = `Blue: larger in B. Orange: larger in A. From ${number(scale.ends[0])} to ${number(scale.ends.at(-1))}.`;
  const lines = () => csv(["layer", "head", "difference"], values.map((by, i) => [one.layer(i), one.head(i), by]));
  return figure({ title, note, name: "difference", draw, numbers: lines });
}
