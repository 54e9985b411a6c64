// What to look at first: the findings, or without them the most telling numbers in plain words.

const SEVERITIES = { act: "Act", watch: "Watch", note: "Note" };

function drawFindings() {
  const run = runs[0];
  const section = byId("findings");
  const judged = run.data.findings;
  section.replaceChildren(element("h2", { id: "findings-title" }, "What to look at"));
  if (!run.count) {
    section.append(element("p", {}, "No head could be measured: see below how it was run, and which heads were left out."));
    return;
  }
  section.append(element("p", { class: "lead" }, lead(run)));
  if (judged) section.append(stateBar(run, judged));
  section.append(element("ol", { class: "findings" }, run.findings.map((finding) => findingCard(finding))));
  if (judged?.verification) section.append(verified(judged.verification));
}

function lead(run) {
  const base = `An attention head mixes the tokens it has seen into one vector. This page shows, for each of the ${run.count.toLocaleString("en-US")} heads, how many tokens it mixes, whether they can still be told apart, and where it looks.`;
  return run.data.findings ? base : `${base} These are the most telling numbers; click one to see its heads on the map.`;
}

/** How many heads are in each state, as one bar; a click shows them. */
function stateBar(run, judged) {
  const counts = Object.keys(STATE_LOOKS).map((state) => [state, judged.heads.filter((head) => head.state === state).length]);
  const bar = element("div", { class: "state-bar", role: "group", "aria-label": "Heads by state" });
  for (const [state, count] of counts.filter(([, number_]) => number_)) {
    const part = element("button", { type: "button", "aria-description": run.data.states[state], onclick: () => showState(state) }, element("b", {}, String(count)), ` ${state}`);
    part.style.flexGrow = count;
    part.style.background = STATE_LOOKS[state].color;
    part.style.color = inkOn(STATE_LOOKS[state].color);
    bar.append(hinted(part, `${count} of ${run.count} heads. ${run.data.states[state]}`));
  }
  const agreement = judged.agreement;
  const sure = agreement
    ? element("p", { class: "soft small" }, `States agree in ${share(agreement.share)} of the heads when other windows of the text are taken `, term(`(kappa ${number(agreement.kappa)})`, "Cohen's kappa: agreement beyond chance. 0 is chance, 1 is perfect; above 0.8 counts as very good."), ".")
    : null;
  return element("div", {}, bar, sure);
}

function showState(state) {
  view.measure = "state";
  view.filter.state = state;
  drawHeads();
  byId("heads").scrollIntoView({ behavior: "smooth" });
}

function findingCard(finding) {
  const heads = finding.heads ?? [];
  const severity = SEVERITIES[finding.severity] ? finding.severity : "note";
  const button = heads.length
    ? element("button", { type: "button", class: "link", onclick: () => mark(finding) }, `Show ${heads.length === 1 ? "the head" : `the ${heads.length.toLocaleString("en-US")} heads`} on the map`)
    : null;
  return element(
    "li", { class: `finding ${severity}` },
    element("h3", {}, runs[0].data.findings ? element("span", { class: "severity" }, SEVERITIES[severity]) : null, visible(finding.title)),
    element("p", {}, visible(finding.sentence)),
    finding.advice ? element("p", { class: "advice" }, element("b", {}, "What to do: "), visible(finding.advice)) : null,
    button,
  );
}

/** Dim all heads but those of a finding, and go to the first of them. */
function mark(finding) {
  view.marked = new Map(finding.heads.map(([layer, head]) => [`${layer}.${head}`, finding.title]));
  view.markedTitle = finding.title;
  const [layer, head] = finding.heads[0];
  drawHeads();
  choose(layer, head);
  byId("heads").scrollIntoView({ behavior: "smooth" });
}

/** Whether the states' predictions held when heads were replaced inside the model. */
function verified(verification) {
  const lines = (verification.predictions ?? []).map((one) => element(
    "li", {}, element("b", { class: one.held ? "held" : "failed" }, one.held ? "Held" : "Failed"), " ", visible(one.sentence ?? one.state),
    one.ratio === undefined || one.ratio === null ? "" : element("span", { class: "soft" }, ` (${number(one.ratio)} times less change than random heads)`),
  ));
  return element("details", { open: true, class: "verified" }, element("summary", {}, "Tested inside the model"), element("p", { class: "soft" }, "Each state predicts what happens when a head's weights are replaced by a simpler rule. This was tried in the running model."), element("ul", {}, lines));
}
