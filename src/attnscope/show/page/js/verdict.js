// The verdict of a diagnosis: the headline, how many heads are in each state, the heads that matter most, what to do next.

function drawVerdict() {
  const section = byId("verdict");
  const title = element("h2", { id: "verdict-title" }, view.compare === "runs" ? "Both verdicts" : "Verdict");
  if (view.compare === "runs") {
    section.replaceChildren(title, element("div", { class: "verdicts" }, runs.map((run) => element("div", {}, element("h3", {}, `${run.letter}: ${run.short}`), verdictOf(run)))));
    return;
  }
  section.replaceChildren(title, verdictOf(runs[0]));
}

function verdictOf(run) {
  if (!run.count) return element("p", {}, "No head could be measured: see below how it was run, and which heads were left out.");
  return run.data.findings ? verdictCard(run, run.data.findings) : undiagnosed(run);
}

/** What a run without a diagnosis has instead of a verdict. */
function undiagnosed(run) {
  const advice = run.data.run.model.heads.some((layer) => layer.kind === "cross")
    ? "A diagnosis takes decoders and encoders, not models with cross-attention such as this one."
    : ["A diagnosis adds which heads need many tokens, which five matter most, and what to do: run the scan again with ", element("code", {}, "--diagnose"), "."];
  return element(
    "div", { class: "verdict" },
    element("p", { class: "headline" }, `${plural(run.count, "head")} measured, none diagnosed`),
    element("p", {}, "The map shows how many tokens share the weight of each head, whether its top tokens are separable from the rest, and where it looks. ", advice),
  );
}

function verdictCard(run, judged) {
  const summary = judged.verdict ?? { headline: "", groups: [], trust: "" };
  const groups = (summary.groups ?? []).map((group) => element("li", {}, visible(group.sentence)));
  const withdrawn = (summary.withdrawn ?? []).map((one) => element("p", { class: "withdrawn" }, stateBadge(NO_LABEL), " ", visible(one.sentence)));
  const { agreement } = judged;
  const kappa = agreement ? term(`Agreement beyond chance: kappa ${number(agreement.kappa)}.`, "Cohen's kappa: agreement of labels from different windows, beyond chance. 0 is chance, 1 is perfect; above 0.8 counts as very good.") : null;
  const trust = summary.trust || agreement ? element("p", { class: "soft small" }, unbroken(summary.trust ?? ""), " ", kappa) : null;
  return element(
    "div", { class: "verdict" },
    summary.headline ? element("p", { class: "headline" }, visible(summary.headline)) : null,
    (summary.warnings ?? []).map((words) => element("p", { class: "warning" }, unbroken(words))),
    stateBar(run),
    withdrawn,
    rankedNames(run),
    view.compare === "runs" && summary.heads?.length ? element("details", { class: "more" }, element("summary", {}, "What to do with them, why and when"), rankedHeads(run)) : null,
    summary.next ? nextStep(summary.next) : null,
    groups.length ? element("details", { class: "more" }, element("summary", {}, "What the labels mean, and how far to trust them"), element("ul", { class: "groups" }, groups), trust) : trust,
  );
}

/** The command to type next, and why. */
function nextStep({ command, why }) {
  return element("div", { class: "next" }, element("p", {}, element("b", {}, "Next: "), unbroken(why ?? "")), element("pre", { tabindex: "0" }, visible(command).split(" ").map((word, k) => [k ? " " : "", element("span", { class: "word" }, word)])));
}

/** The heads that matter most, by name. */
function rankedNames(run) {
  const { heads = [], heads_note: note } = run.data.findings?.verdict ?? {};
  if (!heads.length) return null;
  const words = note ? "No single head matters much; the first by rank: " : heads.length === 1 ? "Matters most: " : "Matter most: ";
  return element("p", { class: "matter" }, element("b", {}, words), heads.map(({ layer, head }, k) => [k ? ", " : "", headLink(run, layer, head)]));
}

/** The heads that matter most, each with what to do, why, and when that matters. */
function rankedHeads(run) {
  const { heads = [], ranked_by: by, heads_title: title, heads_note: note, heads_when: when } = run.data.findings?.verdict ?? {};
  if (!heads.length) return null;
  const tested = known(heads[0].kl) ? run.data.findings.verification : null; // ranked by a test on other windows
  const from = tested ? `From the test inside the model, on ${plural(tested.windows, "other window")} of ${plural(tested.length, "token")}` : `From the diagnosis: ${run.data.sources.diagnosis}`;
  const lines = heads.map((one) => {
    const i = run.index(one.layer, one.head);
    const part = (title, words) => (words ? element("p", {}, element("span", { class: "soft" }, `${title}: `), visible(words)) : null);
    return element(
      "li", {},
      element("p", {}, headLink(run, one.layer, one.head), " ", i === undefined ? null : stateBadge(run.state(i))),
      part("What to do", one.what), part("Why", one.why), part("When that matters", one.when && `${one.when[0].toLowerCase()}${one.when.slice(1)}`),
    );
  });
  return element(
    "div", { class: "ranked" },
    element("h3", {}, visible(title ?? "The heads that matter most")),
    note ? element("p", { class: "warning" }, unbroken(note)) : null,
    by ? element("p", { class: "soft small" }, `Ranked by ${visible(by)}. ${from}.`) : null,
    when ? element("p", {}, `They matter ${visible(when[0].toLowerCase())}${visible(when.slice(1))}`) : null,
    element("ol", {}, lines),
  );
}
