// The page: read its data, draw every part, follow the address.

function choose(layer, head, run = runs[0]) {
  view.selected = { layer, head, run: runs.indexOf(run) };
  history.replaceState(null, "", `#head=${headName(layer, head)}`);
  outline();
  drawDetail();
}

/** The head to show first: the one in the address, the first of the verdict or of a finding, or the one of the largest participation. */
function firstHead() {
  const run = runs[0];
  const asked = headInAddress();
  if (asked) return asked;
  const ranked = (run.data.findings?.verdict?.heads ?? []).map(({ layer, head }) => [layer, head]);
  const found = run.findings.filter((finding) => finding.severity !== "note" && finding.heads?.length).map((finding) => finding.heads[0]);
  const named = [...ranked, ...found].find(([layer, head]) => run.index(layer, head) !== undefined);
  if (named) return { layer: named[0], head: named[1], run: 0 };
  const values = run.values("participation");
  const i = Math.max(0, values.indexOf(Math.max(...values.map((value) => value ?? -Infinity))));
  return { layer: run.layer(i), head: run.head(i), run: 0 };
}

const page = { links: {} };

function drawAll() {
  drawTop();
  drawLeftOut();
  drawVerdict();
  drawHeads();
  drawFindings();
  drawModel();
  drawClaims();
  drawHow();
}

async function start() {
  runs[0] = new Run(await unpack(byId("data").textContent));
  page.links = await unpack(byId("links").textContent);
  if (runs[0].judged.size) view.measure = "state";
  if (byId("other").textContent.trim()) {
    try {
      runs[1] = readRun(await unpack(byId("other").textContent));
      showRuns();
    } catch (error) {
      announce(`The other run cannot be compared: ${error.message}. This is the first run alone.`);
    }
  }
  document.body.append(element("input", { type: "file", id: "other-file", accept: ".html,text/html", hidden: true, "aria-label": "Report to compare with", onchange: (event) => event.target.files[0] && loadReport(event.target.files[0]) }));
  if (runs[0].count) view.selected = firstHead();
  drawAll();
  darkSystem.addEventListener("change", drawPictures);
  addEventListener("hashchange", () => { const asked = headInAddress(); if (asked) openHead(asked.layer, asked.head); });
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  announce(typeof DecompressionStream === "undefined" ? "This browser is too old for the page; any browser since 2023 can show it." : `The data of this page cannot be read: ${error.message}`);
});
