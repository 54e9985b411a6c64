// The paper's claims with the verdicts of an audit or a reproduction, if the run has any.

const FORMS = { verdict: "Verdict", printed: "As printed", corrected: "Corrected" };
const ANSWERS = { agrees: "✓", held: "✓", disagrees: "✗", depends: "~" };
const AGREES = ["agrees", "held"];

function drawClaims() {
  const claims = runs[0].data.claims?.claims ?? [];
  const section = byId("claims");
  section.hidden = !claims.length;
  if (!claims.length) return;
  const forms = Object.keys(FORMS).filter((form) => claims.some((claim) => trialWords(claim[form])));
  const depends = claims.some((claim) => claim.depends_on?.length);
  const header = ["Claim", ...forms.map((form) => FORMS[form]), ...(depends ? ["Depends on"] : [])];
  const lines = claims.map((claim) => [claim.id, claim.place, claim.claim ?? claim.note, ...Object.keys(FORMS).map((form) => trialWords(claim[form])), (claim.depends_on ?? []).join(", ")]);
  const numbers = () => csv(["claim", "place", "what it says", ...Object.values(FORMS), "depends on"], lines);
  const saving = element("button", { type: "button", class: "save", onclick: () => save("claims.csv", numbers(), "text/csv") }, "CSV");
  const body = claims.map((claim) => element(
    "tr", {},
    element("td", { class: "words" }, visible(claim.claim ?? claim.note ?? ""), element("div", { class: "soft small" }, visible([claim.place, claim.id].filter(Boolean).join(" · ")))),
    forms.map((form) => element("td", { class: "words" }, answer(trialWords(claim[form])))),
    depends ? element("td", { class: "words" }, visible((claim.depends_on ?? []).join(", "))) : null,
  ));
  section.replaceChildren(
    element("h2", { id: "claims-title" }, "The paper's claims"),
    element("p", { class: "soft" }, `What the paper says, tested on this model or on random configurations: as printed, and in the form that can be proved. ${claimsCounted(claims)}`, saving),
    element("div", { class: "scroll" }, element("table", { class: "claims" },
      element("thead", {}, element("tr", {}, header.map((text) => element("th", { scope: "col", class: "words" }, text)))),
      element("tbody", {}, body))),
  );
}

/** How the verdicts are shared out, where there are some. */
function claimsCounted(claims) {
  const count = (verdict) => claims.filter((claim) => claim.verdict === verdict).length;
  const words = ["agrees", "depends", "disagrees"].filter(count).map((verdict) => `${verdict} ${count(verdict)}`);
  return words.length ? `Of ${plural(claims.length, "claim")}: ${words.join(", ")}. ` : "";
}

function answer(text) {
  if (!text) return null;
  const kind = AGREES.includes(text) ? "agrees" : text === "disagrees" || text.startsWith("violated") ? "disagrees" : "";
  return element("span", { class: `answer ${kind}` }, `${ANSWERS[text] ?? (kind === "disagrees" ? "✗" : "")} ${visible(text)}`.trim());
}

/** A reproduction has verdicts in words; an audit has trials, which say how often a form was violated. */
function trialWords(form) {
  const trial = Array.isArray(form) ? form[0] : form;
  if (trial === null || trial === undefined || typeof trial === "string") return trial ?? "";
  return trial.violations ? `violated in ${share(trial.rate)}` : "held";
}
