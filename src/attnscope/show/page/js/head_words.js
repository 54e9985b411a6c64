// A head in words: its key numbers with the rows they are from, why it has its state, and the findings about it.

const KEY_NUMBERS = ["participation", "tokens_needed", "sink_weight", "separability", "growth_exponent", "jacobian_norm"];

/** The key numbers of a head, each with what it is from: the scan, the diagnosis, or both. */
function keyNumbers({ run, i, group }) {
  const whole = view.compare !== "lengths"; // the diagnosis has one length
  const evidence = (whole && run.judgment(i)?.evidence) || {};
  const shown = KEY_NUMBERS.filter((name) => run.data.measures[name] && (whole || !run.data.measures[name].whole));
  const tiles = shown.map((name) => {
    const measure = run.data.measures[name];
    const interval = known(evidence[`${name}_low`]) ? `(${written(measure, evidence[`${name}_low`])} to ${written(measure, evidence[`${name}_high`])})` : "";
    const number = (value, from, more) => element("dd", {}, element("b", {}, written(measure, value)), ` ${from}`, more ? [" ", element("span", {}, more)] : null);
    return element(
      "div", { class: "tile" },
      element("dt", {}, measureTerm(name)),
      measure.whole ? null : number(run.value(name, i, group), "scan"),
      known(evidence[name]) ? number(evidence[name], "diagnosis", interval) : null,
    );
  });
  return element("dl", { class: "tiles" }, tiles);
}

/** Which rows the numbers of a panel are from. */
function sourcesWords({ run, group }) {
  const { sources } = run.data;
  const diagnosed = sources.diagnosis && view.compare !== "lengths" ? ` Diagnosis: ${sources.diagnosis}; 95% intervals in parentheses.` : "";
  return `Scan: ${sources.scan[group]}.${diagnosed}`;
}

function known(value) {
  return value !== undefined && value !== null;
}

/** How the head compares with the others, in a sentence or two. */
function inWords({ run, i, group }) {
  const value = (name) => run.value(name, i, group);
  if (value("participation") === null) return "";
  const rank = run.rank("participation", i, group);
  const others = (part) => (part > 0.995 ? "all other heads" : `${share(part)} of the heads`);
  const than = run.count < 2 ? "" : `, ${rank >= 0.5 ? `more than in ${others(rank)}` : `less than in ${others(1 - rank)}`}`;
  const separable = value("separability") === null ? "" : ` Of the ${run.data.usual_n} tokens with the largest weights, ${share(value("separability"))} are separable from the rest.`;
  return `Participation ${number(value("participation"))} at length ${run.groups[group]}${than}: about that many tokens share its weight. `
    + `Max weight ${share(value("max_weight"))}, sink weight ${share(value("sink_weight"))}.${separable}`;
}

/** Why a head has its state, or none: the error of each simpler rule beside its limit. */
function judgmentWords(run, i) {
  const judgment = run.judgment(i);
  const withdrawal = run.withdrawal(i);
  const evidence = judgment.evidence ?? {};
  const thresholds = run.data.findings.thresholds ?? {};
  const rules = run.data.rules ?? runs[0].data.rules; // reports of older versions have none
  const errors = rules.filter((rule) => known(evidence[rule.error])).map((rule) => errorLine(rule, evidence[rule.error], thresholds[rule.limit], Boolean(withdrawal)));
  const growth = known(evidence.growth_exponent) ? ` That number grows like length^${number(evidence.growth_exponent)} (${number(evidence.growth_exponent_low)} to ${number(evidence.growth_exponent_high)}).` : "";
  const words = [
    withdrawal ? visible(withdrawal) : stateLook(run.state(i)).sentence,
    run.edge(i) ? `It lies near the limit to ${run.edge(i)}: other rows would give the same label only ${share(judgment.sureness)} of the time.` : "",
    known(judgment.state_share) && !withdrawal ? `Taken one by one, ${share(judgment.state_share)} of its rows show this state.` : "",
    judgment.over_sharp_share - judgment.off_share > 0.5 ? `In ${share(judgment.over_sharp_share)} of the rows one token takes nearly all the weight.` : "",
    known(evidence.tokens_needed) ? `It needs ${number(evidence.tokens_needed) === "1" ? "1 token" : `${number(evidence.tokens_needed)} tokens`} for an error of ${share(thresholds.enough ?? 0.1)}.${growth}` : "",
  ];
  return element(
    "div", { class: "judgment" },
    element("p", {}, words.filter(Boolean).join(" ")),
    judgment.explanation ? element("p", { class: "explanation" }, visible(judgment.explanation)) : null,
    errors.length
      ? element("table", { class: "errors" },
        element("caption", {}, term("Error if a simpler rule replaced its weights.", "How far the head's output moves, relative to its size, when its weights are replaced by the rule. The first rule from the top that is enough gives the head its state; if none is, the head needs more tokens than they keep. A label that does not hold inside the model is withdrawn."), " The bars end at 100%; ▸ marks one that goes on. The line is the limit."),
        element("tbody", {}, errors))
      : null,
  );
}

/** A rule with the error it makes, as a bar with its limit. */
function errorLine(rule, error, limit, withdrawn) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${Math.min(100, 100 * error)}%`;
  const bar = element("span", { class: "bar" }, fill);
  if (known(limit)) {
    const line = element("span", { class: "limit" });
    line.style.left = `${Math.min(100, 100 * limit)}%`;
    bar.append(line);
  }
  const enough = withdrawn ? "" : error < limit ? "enough " : "not enough ";
  const verdict = known(limit) ? `${enough}(limit ${share(limit)})` : "";
  const whole = hinted(element("span", { class: "error-bar" }, bar, element("span", { class: "over", "aria-hidden": "true" }, error > 1 ? "▸" : "")), `${rule.words}: error ${share(error)}${known(limit) ? `, limit ${share(limit)}` : ""}`);
  return element("tr", {}, element("th", { scope: "row" }, rule.words), element("td", {}, whole), element("td", {}, share(error)), element("td", { class: "soft" }, verdict));
}

/** The findings that name this head and not most others too, each a way to its card. */
function mentions(run, i) {
  const specific = (finding) => finding.severity === "act" || finding.severity === "watch" || (finding.heads ?? []).length < run.count / 2;
  const about = run.findings.filter((finding) => specific(finding) && (finding.heads ?? []).some(([layer, head]) => layer === run.layer(i) && head === run.head(i)));
  if (!about.length) return null;
  const way = (finding) => element("button", { type: "button", class: "link", onclick: () => showCard(run, finding) }, visible(finding.title));
  return element("p", { class: "mentions" }, `${run.data.findings ? "Findings" : "Notable numbers"} that name it: `, about.map((finding, k) => [k ? "; " : "", way(finding)]), ".");
}
