// The findings as cards: what to act on, a few notes, and the rest when asked for; without a diagnosis the most notable numbers.

const SEVERITIES = { act: "Act", watch: "Watch", note: "Note" };
const NOTES = 3; // findings that only note something, shown before the others are asked for

function drawFindings() {
  const section = byId("findings");
  const judged = runs[0].data.findings;
  section.hidden = !runs[0].count;
  if (section.hidden) return;
  const compared = view.compare === "runs";
  const title = element("h2", { id: "findings-title" }, judged ? "Findings" : "Notable numbers");
  const both = () => runs.map((run) => element("details", { class: "more" }, element("summary", {}, `${run.letter}: ${run.short}, ${plural(run.findings.length, run.data.findings ? "finding" : "notable number")}`), cards(run), verified(run)));
  section.replaceChildren(title, ...(compared ? both() : [...cards(runs[0]), verified(runs[0])]).filter(Boolean));
}

function cards(run) {
  const pressing = run.findings.filter((finding) => finding.severity === "act" || finding.severity === "watch");
  const notes = run.findings.filter((finding) => !pressing.includes(finding));
  const room = run.data.findings ? Math.max(1, NOTES - (pressing.length % 3)) : notes.length;
  const list = (findings) => element("ol", { class: "findings" }, findings.map((finding) => findingCard(run, finding)));
  const rest = notes.slice(room);
  return [
    run.findings.length ? list([...pressing, ...notes.slice(0, room)]) : element("p", { class: "soft" }, "Nothing to report."),
    rest.length ? element("details", { class: "more" }, element("summary", {}, `${plural(rest.length, "more note")}: ${rest.map((finding) => visible(finding.title)).join("; ")}`), list(rest)) : null,
  ];
}

function findingCard(run, finding) {
  const heads = finding.heads ?? [];
  const severity = SEVERITIES[finding.severity] ? finding.severity : "note";
  const button = heads.length && run === runs[0]
    ? element("button", { type: "button", class: "link", onclick: () => mark(finding) }, `Show ${heads.length === 1 ? "the head" : `the ${heads.length.toLocaleString("en-US")} heads`} on the map`)
    : null;
  return element(
    "li", { class: `finding ${severity}`, id: cardId(run, finding), tabindex: "-1" },
    element("h3", {}, run.data.findings ? element("span", { class: "severity" }, SEVERITIES[severity]) : null, visible(finding.title)),
    element("p", {}, unbroken(finding.sentence)),
    finding.advice ? element("p", { class: "advice" }, element("b", {}, "What to do: "), unbroken(finding.advice)) : null,
    button,
  );
}

function cardId(run, finding) {
  return `finding-${runs.indexOf(run)}-${run.findings.indexOf(finding)}`;
}

/** Go to the card of a finding, unfolding what it is in. */
function showCard(run, finding) {
  const card = byId(cardId(run, finding));
  for (let holder = card.closest("details"); holder; holder = holder.parentElement.closest("details")) holder.open = true;
  card.scrollIntoView({ behavior: "smooth", block: "center" });
  card.focus({ preventScroll: true });
}

/** Dim all heads but those of a finding, and go to the first of them. */
function mark(finding) {
  view.marked = new Map(finding.heads.map(([layer, head]) => [`${layer}.${head}`, finding.title]));
  view.markedTitle = finding.title;
  const [layer, head] = finding.heads[0];
  drawHeads();
  choose(layer, head, runs[0]);
  byId("heads").scrollIntoView({ behavior: "smooth" });
}
