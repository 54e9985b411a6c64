// The paper's claims as an audit or a reproduction found them, if the run carries any.

const FORMS = ["verdict", "printed", "corrected"];

function drawClaims() {
  const claims = runs[0].data.claims?.claims ?? [];
  const section = byId("claims");
  section.hidden = !claims.length;
  if (!claims.length) return;
  const lines = claims.map((claim) => [claim.id, claim.place, claim.claim ?? claim.note, ...FORMS.map((form) => verdictOf(claim[form])), (claim.depends_on ?? []).join(", ")]);
  const header = ["claim", "place", "what it says", "verdict", "as printed", "corrected", "depends on"];
  const saving = element("button", { type: "button", class: "save", onclick: () => save("claims.csv", csv(header, lines), "text/csv") }, "CSV");
  section.replaceChildren(
    element("h2", { id: "claims-title" }, "The paper's claims "),
    element("p", { class: "soft" }, "Each claim of the paper as printed and as corrected, tried on this model or on drawn configurations. ", saving),
    element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, header.map((text) => element("th", { scope: "col" }, text)))),
      element("tbody", {}, lines.map(([id, ...cells]) => element("tr", {}, element("th", { scope: "row" }, visible(id ?? "")), cells.map((text) => element("td", { class: "words" }, visible(text ?? "")))))))),
  );
}

/** A reproduction has verdicts in words; an audit has trials, which say how often a form was violated. */
function verdictOf(form) {
  const trial = Array.isArray(form) ? form[0] : form;
  if (trial === null || trial === undefined || typeof trial === "string") return trial ?? "";
  return trial.violations ? `violated in ${share(trial.rate)}` : "held";
}
