// Whether the states' predictions held when heads were replaced inside the model.

function verified(run) {
  const verification = run.data.findings?.verification;
  if (!verification?.predictions?.length) return null;
  const spread = verification.windows > 1 ? ` (${verification.windows} windows; the range over them is in parentheses)` : "";
  const header = ["Label", "Result", "KL in its heads", "KL in random heads", "Measured"];
  const lines = verification.predictions.flatMap((one) => [
    element(
      "tr", { class: "numbers" },
      element("th", { scope: "row" }, one.held ? stateBadge(one.state) : visible(one.state)),
      element("td", {}, element("b", { class: one.held ? "held" : "failed" }, one.held ? "✓ held" : "✗ withdrawn")),
      element("td", {}, number(one.kl_state)), element("td", {}, number(one.kl_random)), element("td", {}, `${number(one.ratio)} times`, (one.ratio_windows ?? []).length > 1 ? element("span", { class: "soft" }, ` (${number(one.ratio_low)} to ${number(one.ratio_high)})`) : ""),
    ),
    element("tr", {}, element("td", { class: "words", colspan: header.length }, visible(one.sentence ?? ""))),
  ]);
  const untested = (verification.untested ?? []).length ? element("p", { class: "soft small" }, `Not tested, because no head carries the label or every head of its layers does: ${verification.untested.map(visible).join(", ")}.`) : null;
  return element(
    "details", { open: true, class: "verified" },
    element("summary", {}, "Tested inside the model"),
    element("p", { class: "soft" }, `Each label names a simpler rule. Here the rule replaced the weights of the heads that carry the label, and of as many random heads, in the running model on held-out text${spread}. The change is the `, term("KL divergence", "How far the model's next-token probabilities move, in nats: 0 is no change; 0.1 is clearly noticeable."), " of the next-token distribution: small in labeled heads if the label says that the rule is enough for them, large if it says that it is not. A label that did not hold is withdrawn: its heads carry none."),
    element("div", { class: "scroll" }, element("table", { class: "predictions" }, element("thead", {}, element("tr", {}, header.map((text, k) => element("th", { scope: "col", class: k ? null : "words" }, text)))), element("tbody", {}, lines))),
    untested,
  );
}
