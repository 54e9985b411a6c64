// The tables of a head: other normalizers on the same scores, all its numbers, its rows, and two heads side by side.

const WHAT_IF = ["separability", "top_mass", "participation", "max_weight", "support", "jacobian_norm"];

function saveTable(name, description, header, lines) {
  return element("button", { type: "button", class: "save", "aria-label": `Save ${description} as CSV`, onclick: () => save(`${name}.csv`, csv(header, lines), "text/csv") }, "CSV");
}

function whatIfTable(run, i) {
  const tried = run.data.what_if;
  if (!tried) return null;
  const lines = tried.labels.map((name, k) => [name, ...WHAT_IF.map((column) => tried.columns[column][i * tried.labels.length + k])]);
  const body = lines.map(([name, ...values]) => element("tr", {}, element("th", { scope: "row" }, name === "own" ? "as it is" : visible(name)), values.map((value, k) => element("td", {}, written(run.data.measures[WHAT_IF[k]], value)))));
  const left_out = tried.of > tried.labels.length ? ` ${tried.labels.length} of ${tried.of} are in this report.` : "";
  return element(
    "figure", { class: "what-if" },
    element("figcaption", {}, element("span", { class: "figure-title" }, "What if: other normalizers on the same scores"), saveTable(`what-if-${run.title(i)}`, "what if", ["normalizer", ...WHAT_IF], lines)),
    element("p", { class: "figure-note" }, `A normalizer turns the head's scores into weights; softmax is the usual one. The model was not run again. Where fewer tokens get weight than the top set has, it has no separability.${left_out}`),
    element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, element("th", { scope: "col", class: "words" }, "Normalizer"), WHAT_IF.map((column) => element("th", { scope: "col" }, measureTerm(column))))),
      element("tbody", {}, body))),
  );
}

/** All numbers of a head with their ranks among the heads, those of the scan and those of the diagnosis apart. */
function numbersTable({ run, i, group }) {
  const line = ([name, measure]) => {
    const value = run.value(name, i, group);
    const spread = group === 0 ? run.data.heads[`${name}_spread`]?.[i] : undefined;
    const windows = run.data.ranges?.[name];
    const range = known(windows?.q05[i]) ? ` (${written(measure, windows.q05[i])} to ${written(measure, windows.q95[i])})` : "";
    return element(
      "tr", {},
      element("th", { scope: "row" }, measureTerm(name)),
      element("td", {}, written(measure, value), known(spread) ? element("span", { class: "soft" }, ` ± ${written(measure, spread)}${range}`) : ""),
      element("td", { class: "soft" }, value === null ? "" : `above ${share(run.rank(name, i, group))} of heads`),
    );
  };
  const parts = [[undefined, `Scan: ${run.data.sources.scan[group]}${run.data.run.settings.windows > 1 && group === 0 ? `, ± standard deviation over the windows${run.data.ranges ? " (5% to 95% of them)" : ""}` : ""}`], ["diagnosis", `Diagnosis: ${run.data.sources.diagnosis}`], ["horizon", `Horizon: ${run.data.sources.horizon}`]];
  const bodies = parts.map(([whole, words]) => {
    const measures = Object.entries(run.data.measures).filter(([, measure]) => measure.whole === whole);
    return measures.length ? element("tbody", {}, element("tr", {}, element("th", { scope: "rowgroup", colspan: 3, class: "source" }, words)), measures.map(line)) : null;
  });
  return element("details", {}, element("summary", {}, "All its numbers"), element("div", { class: "scroll" }, element("table", {}, bodies)));
}

function rowsTable(run, i) {
  const rows = run.rows(i);
  const columns = Object.keys(rows[0] ?? {});
  const holder = element("details", { class: "rows" }, element("summary", {}, `Its ${plural(rows.length, "row")} of the scan`));
  // Long tables are made when they are asked for.
  holder.addEventListener("toggle", () => {
    if (!holder.open || holder.querySelector("table")) return;
    const named = (name) => (run.data.measures[name] ? measureTerm(name) : capitalized(name.replaceAll("_", " ")));
    holder.append(saveTable(`rows-${run.title(i)}`, "the rows", columns, rows.map((row) => columns.map((name) => row[name]))), element("div", { class: "scroll tall", tabindex: "0" }, element("table", {},
      element("thead", {}, element("tr", {}, columns.map((name) => element("th", { scope: "col" }, named(name))))),
      element("tbody", {}, rows.map((row) => element("tr", {}, columns.map((name) => element("td", {}, name === "window" ? String(row.window + 1) : number(row[name])))))))));
  });
  return holder;
}

/** A difference in words: shares differ by points. */
function differenceWords(measure, by) {
  if (by === null) return "–";
  const size = measure.style === "share" ? `${number(Math.abs(100 * by))} points` : number(Math.abs(by));
  return `${by > 0 ? "+" : by < 0 ? "−" : ""}${size}`;
}

/** The numbers of two subjects and the difference between them. */
function differences([one, other]) {
  const names = Object.keys(one.run.data.measures).filter((name) => other.run.data.measures[name] && (view.compare !== "lengths" || !one.run.data.measures[name].whole));
  const lines = names.map((name) => {
    const measure = one.run.data.measures[name];
    const [a, b] = [one, other].map(({ run, i, group }) => run.value(name, i, group));
    return element("tr", {}, element("th", { scope: "row" }, measureTerm(name)), element("td", {}, written(measure, a)), element("td", {}, written(measure, b)), element("td", { class: "soft" }, differenceWords(measure, a === null || b === null ? null : b - a)));
  });
  return element("div", { class: "scroll" }, element("table", { class: "differences" },
    element("thead", {}, element("tr", {}, element("th", {}), element("th", { scope: "col" }, subjectTitle(one)), element("th", { scope: "col" }, subjectTitle(other)), element("th", { scope: "col" }, "Difference"))),
    element("tbody", {}, lines)));
}
