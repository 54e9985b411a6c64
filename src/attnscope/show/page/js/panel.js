// The panel of a head: its numbers in words, where it looks, its curves, its rows; two of them side by side while comparing.

function drawDetail() {
  const panel = byId("panel");
  const compared = subjects();
  const focused = document.activeElement?.id;
  panel.replaceChildren();
  if (!compared.length) {
    panel.append(element("p", { class: "soft" }, `${headName(view.selected.layer, view.selected.head)} is not in the run: it was left out.`));
    return;
  }
  panel.classList.toggle("two", compared.length > 1);
  if (view.compare === "heads" && compared.length < 2) {
    panel.append(element("p", { class: "notice" }, `Comparing with ${compared[0].run.title(compared[0].i)}: now choose the second head on the map.`));
  }
  if (view.compare === "runs" && compared.length < 2 && paired()) {
    panel.append(element("p", { class: "notice" }, `${headName(view.selected.layer, view.selected.head)} was left out of one of the runs.`));
  }
  const limits = sharedLimits(compared);
  if (compared.length > 1) panel.append(differences(compared));
  if (view.compare === "lengths") panel.append(element("p", { class: "soft small" }, "Only what depends on the length is shown."));
  panel.append(element("div", { class: "subjects" }, compared.map((subject) => subjectPanel(subject, limits))));
  fitPictures(panel);
  // Start each text where the head looks most.
  for (const most of panel.querySelectorAll(".tokens .most")) most.parentElement.scrollTop = most.offsetTop - 60;
  if (focused && !document.activeElement?.id) byId(focused)?.focus({ preventScroll: true });
}

function subjectTitle({ run, i, group }) {
  const length = `, length ${run.groups[group]}`;
  if (view.compare === "runs") return `${run.letter}: ${run.title(i)}${length}`;
  return view.compare === "lengths" ? `${run.title(i)}${length}` : run.title(i);
}

function subjectPanel(subject, limits) {
  const { run, i } = subject;
  const judgment = run.judgment(i);
  const module = moduleOf(run, run.layer(i));
  const whole = view.compare !== "lengths"; // what is the same for every length is shown once
  const parts = [
    element("h3", {}, subjectTitle(subject), judgment ? stateBadge(run.state(i)) : null, module ? element("span", { class: "module" }, module) : null),
    keyNumbers(subject),
    element("p", { class: "soft small" }, sourcesWords(subject)),
    element("p", { class: "in-words" }, inWords(subject)),
    whole && judgment ? judgmentWords(run, i) : null,
    whole && horizonIndex(run, i) !== undefined ? element("p", {}, horizonWords(run, i)) : null,
    whole ? mentions(run, i) : null,
    whole ? textPanel(run, i) : null,
    whole ? patternFigure(run, i) : null,
    element("div", { class: "charts" }, [
      whole ? horizonFigure(subject) : null,
      separabilityFigure(subject), topMassFigure(subject), distanceFigure(subject, limits),
      whole ? [alongFigure(subject, "participation", limits), alongFigure(subject, "sink_weight", limits), alongFigure(subject, "jacobian_norm", limits), whatIfTable(run, i)] : null,
    ]),
    whole ? numbersTable(subject) : null,
    whole ? rowsTable(run, i) : null,
  ];
  // Missing parts become empty elements, so that two heads side by side stay aligned.
  return element("article", { class: "subject" }, parts.map((part) => part ?? element("div")));
}
