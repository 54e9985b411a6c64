// The page of a training run: read its data, draw every part, follow the run and the address.

const page = { links: {} };

/** The head to show first: the one in the address, or of the first alarm, or the first of all. */
function firstHead() {
  const run = runs[0];
  const asked = headInAddress();
  if (asked) return asked;
  const [alarm] = run.data.alarms;
  if (alarm && run.index(alarm.layer, alarm.head) !== undefined) return { layer: alarm.layer, head: alarm.head, run: 0 };
  return { layer: run.layer(0), head: run.head(0), run: 0 };
}

function drawTop() {
  const run = runs[0];
  const { home } = page.links;
  const brand = home ? element("a", { class: "brand", href: home }, "attnscope: all runs") : element("span", { class: "brand" }, "attnscope");
  const shown = new Set(run.groups);
  const raised = run.data.alarms.every((alarm) => shown.has(alarm.step)) ? "those" : "some of those";
  const thinned = run.data.measured_steps > run.groups.length ? ` This page has ${whole(run.groups.length)} of them: the first, the last, ${raised} with an alarm, and others evenly between. Bands cover all steps; heads/part-*.parquet has all numbers.` : "";
  document.title = `${run.short}: training run`;
  byId("top-words").replaceChildren(
    element("h1", {}, `${run.short} in training`),
    element("p", { class: "lead" }, run.facts, thinned),
  );
  byId("bar").replaceChildren(brand, themeField(drawAll));
}

/** Everything that decided the numbers of the run. */
function drawHow() {
  const { run } = runs[0].data;
  const listed = (values) => Object.entries(values ?? {}).map(([name, value]) => `${visible(name)} ${visible(value)}`).join(", ");
  const facts = { ...runs[0].data.facts, settings: listed(run.settings), thresholds: listed(run.thresholds), versions: listed({ attnscope: run.attnscope, ...run.versions }) };
  byId("how").replaceChildren(
    element("h2", { id: "how-title" }, "How it was watched"),
    element("dl", { class: "facts" }, Object.entries(facts).filter(([, words]) => words).map(([name, words]) => [element("dt", {}, name), element("dd", {}, visible(words))])),
  );
}

/** Draw all parts again; the slider stays, it may be held. */
function drawAll() {
  const focused = document.activeElement?.id;
  drawTop();
  drawLive();
  byId("heads").hidden = byId("alarms").hidden = !runs[0].count;
  if (!runs[0].count) drawNothing();
  else {
    if (!view.selected || runs[0].index(view.selected.layer, view.selected.head) === undefined) view.selected = firstHead();
    drawVerdict();
    drawHeads();
    drawCurves();
    drawDetail();
    drawAlarms();
  }
  drawHow();
  if (focused && focused !== document.activeElement?.id) byId(focused)?.focus({ preventScroll: true });
}

/** What stands in place of the verdict before the first measured step. */
function drawNothing() {
  byId("verdict").replaceChildren(element("h2", { id: "verdict-title" }, "Nothing was measured yet"), element("p", {}, "The first measured step will be here as soon as it is written."));
}

async function start() {
  page.links = await unpack(byId("links").textContent);
  runs[0] = new TrainingRun(await unpack(byId("data").textContent));
  byId("stepping-place").replaceWith(makeSlider());
  view.group = runs[0].within(runs[0].last);
  view.curve = runs[0].data.kinds[runs[0].data.alarms[0]?.kind] ?? view.curve;
  if (runs[0].readings(view.group).size < 2) view.measure = view.curve; // one color for all heads says little
  if (page.links.events) connected = true;
  drawAll();
  darkSystem.addEventListener("change", drawAll);
  addEventListener("hashchange", () => { const asked = headInAddress(); if (asked) openHead(asked.layer, asked.head); });
  for (const [event, started] of [["beforeprint", true], ["afterprint", false]]) addEventListener(event, () => { printing = started; drawAll(); });
  document.documentElement.dataset.ready = "yes";
  if (page.links.events && !isOver(runs[0].data.status)) follow();
}

start().catch((error) => {
  announce(typeof DecompressionStream === "undefined" ? "This browser is too old for the page; any browser since 2023 can show it." : `The data of this page cannot be read: ${error.message}`);
});
