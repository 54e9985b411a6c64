// What to look at first: the verdict and the findings, or without them the most notable numbers in plain words.

const SEVERITIES = { act: "Act", watch: "Watch", note: "Note" };
const NOTES = 3; // findings that only note something, shown before the others are asked for

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
  if (judged) section.append(verdict(run, judged));
  section.append(...cards(run));
  if (judged?.verification?.predictions?.length) section.append(verified(run, judged.verification));
}

function lead(run) {
  const every = run.count === 1 ? "its one head" : `each of the ${plural(run.count, "head")}`;
  const base = "An attention head mixes the tokens that it sees into one vector.";
  return run.data.findings
    ? `${base} A diagnosis asks of ${every} which simpler rule would give nearly the same vector.`
    : `${base} This page shows, for ${every}, how many tokens it mixes, whether they can still be separated, and where it looks. These are the most notable numbers; attnscope scan with --diagnose also says which heads need many tokens, which ones matter most, and what to do.`;
}

/** The diagnosis in a few lines: the headline, how many heads are in each state, and how far to trust that. */
function verdict(run, judged) {
  const summary = judged.verdict ?? { headline: "", groups: [], trust: "" };
  const groups = summary.groups.map((group) => element(
    "li", { class: group.name },
    element("span", { class: "verdict-states" }, group.states.filter((state) => run.statesCounted.get(state)).map((state) => stateBadge(state))),
    element("span", {}, visible(group.sentence)),
  ));
  const withdrawn = (summary.withdrawn ?? []).map((one) => element("li", { class: "withdrawn" }, element("span", { class: "verdict-states" }, stateBadge(NO_LABEL)), element("span", {}, visible(one.sentence))));
  const agreement = judged.agreement;
  const kappa = agreement ? term(`Agreement beyond chance: kappa ${number(agreement.kappa)}.`, "Cohen's kappa: agreement of labels from different windows, beyond chance. 0 is chance, 1 is perfect; above 0.8 counts as very good.") : null;
  return element(
    "div", { class: "verdict" },
    summary.headline ? element("p", { class: "headline" }, visible(summary.headline)) : null,
    stateBar(run),
    element("ul", { class: "groups" }, groups, withdrawn),
    summary.trust || agreement ? element("p", { class: "soft small" }, visible(summary.trust), summary.trust ? " " : "", kappa) : null,
  );
}

/** How many heads are in each state, as one bar; a click shows them. */
function stateBar(run) {
  const bar = element("div", { class: "state-bar", role: "group", "aria-label": "Heads by state" });
  for (const state of Object.keys(run.data.states)) {
    const count = run.statesCounted.get(state);
    if (!count) continue;
    const look = stateLook(state);
    const part = element("button", { type: "button", "aria-label": `${count} ${state} heads: show them on the map`, onclick: () => showState(state) }, element("b", {}, String(count)), ` ${state}`);
    part.style.flexGrow = count;
    part.style.background = look.color;
    part.style.color = inkOn(look.color);
    bar.append(hinted(part, `${count} of ${run.count} heads. ${look.sentence} Click to see them on the map.`));
  }
  return bar;
}

function showState(state) {
  view.measure = "state";
  view.filter.state = state;
  drawHeads();
  byId("heads").scrollIntoView({ behavior: "smooth" });
}

/** The findings as cards: what presses, a few notes, and the rest when asked for. */
function cards(run) {
  const pressing = run.findings.filter((finding) => finding.severity === "act" || finding.severity === "watch");
  const notes = run.findings.filter((finding) => !pressing.includes(finding));
  const room = run.data.findings ? Math.max(1, NOTES + 1 - pressing.length) : notes.length;
  const list = (findings) => element("ol", { class: "findings" }, findings.map((finding) => findingCard(finding)));
  const rest = notes.slice(room);
  return [
    list([...pressing, ...notes.slice(0, room)]),
    rest.length ? element("details", { class: "more" }, element("summary", {}, `${plural(rest.length, "more note")}: ${rest.map((finding) => visible(finding.title)).join("; ")}`), list(rest)) : "",
  ].filter(Boolean);
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
function verified(run, verification) {
  const spread = verification.windows > 1 ? ` (${verification.windows} windows; the range over them stands in parentheses)` : "";
  const header = ["label", "held?", "change in its heads", "in random heads", "times apart", "in words"];
  const lines = verification.predictions.map((one) => element(
    "tr", {},
    element("th", { scope: "row" }, one.held ? stateBadge(one.state) : visible(one.state)),
    element("td", {}, element("b", { class: one.held ? "held" : "failed" }, one.held ? "✓ held" : "✗ failed")),
    element("td", {}, number(one.kl_state)), element("td", {}, number(one.kl_random)), element("td", {}, number(one.ratio), (one.ratio_windows ?? []).length > 1 ? element("span", { class: "soft" }, ` (${number(one.ratio_low)} to ${number(one.ratio_high)})`) : ""),
    element("td", { class: "words" }, visible(one.sentence ?? "")),
  ));
  const untested = (verification.untested ?? []).length ? element("p", { class: "soft small" }, `Not tried, because no head carries the label or every head of its layers does: ${verification.untested.map(visible).join(", ")}.`) : null;
  return element(
    "details", { open: true, class: "verified" },
    element("summary", {}, "Tested inside the model"),
    element("p", { class: "soft" }, `Each label names a simpler rule. Here the rule replaced the weights of the heads that carry the label, and of as many random heads, in the running model on held-out text${spread}. The change is the `, term("KL divergence", "How far the model's next-token probabilities move, in nats: 0 is no change; 0.1 is clearly noticeable."), " of the next-token distribution: small in labeled heads if the label says that the rule is enough for them, large if it says that it is not. A label that did not hold is withdrawn: its heads carry none."),
    element("div", { class: "scroll" }, element("table", { class: "predictions" }, element("thead", {}, element("tr", {}, header.map((text) => element("th", { scope: "col", class: text === "in words" ? "words" : null }, text)))), element("tbody", {}, lines))),
    untested,
  );
}
