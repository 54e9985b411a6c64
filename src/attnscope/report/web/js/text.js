// The weights of one row over the text: tokens shaded by weight, the first token marked. Tokens are untrusted: they are only ever set as text.

const WHOLE = 1500; // tokens up to which the whole window is shown
const AROUND = 6; // else this many on each side of a shaded token

function textPanel(run, i) {
  const text = run.data.text;
  const keys = text?.keys[i];
  if (!keys?.length) return null;
  const position = text.position[i];
  const weight = new Map(keys.map((key, k) => [key, text.weights[i][k]]));
  const others = keys.filter((key) => key !== 0).map((key) => weight.get(key));
  const most = Math.max(...others, 1e-12);
  const box = element("p", { class: "tokens", tabindex: "0", role: "region", "aria-label": `Weights over the text, ${run.title(i)}` });
  let gap = 0;
  for (let key = 0; key <= Math.max(position, ...keys) && key < text.texts.length; key += 1) {
    if (text.texts.length > WHOLE && key !== 0 && key !== position && !near(weight, key)) {
      gap += 1;
      continue;
    }
    if (gap) box.append(element("span", { class: "gap" }, ` … ${plural(gap, "token")} … `));
    gap = 0;
    box.append(tokenMark(text, key, weight.get(key), most, position));
  }
  const covered = keys.reduce((sum, key) => sum + weight.get(key), 0);
  const top = keys.slice(0, 5).map((key) => element("li", {}, element("bdi", {}, key === 0 ? "the first token" : `“${visible(text.texts[key])}”`), ` ${share(weight.get(key))}`));
  const lines = keys.map((key) => [key, visible(text.tokens[key]), weight.get(key)]);
  const saving = element("button", { type: "button", class: "save", "aria-label": "Save the weights over the text as CSV", onclick: () => save(`weights-${run.title(i)}.csv`, csv(["key", "token", "weight"], lines), "text/csv") }, "CSV");
  return element(
    "figure", { class: "text" },
    element("figcaption", {}, element("span", { class: "figure-title" }, "Where it looks"), saving),
    element("p", { class: "figure-note" }, `One row: the token in the frame looks back at the text. The stronger its color, the more weight a token gets; shaded are the ${keys.length} largest weights, ${share(covered)} in all.`),
    element("ol", { class: "largest" }, top),
    box,
  );
}

function near(weight, key) {
  for (let other = key - AROUND; other <= key + AROUND; other += 1) if (weight.has(other)) return true;
  return false;
}

function tokenMark(text, key, weight, most, position) {
  const marks = [key === 0 ? "sink" : "", key === position ? "query" : ""].filter(Boolean).join(" ");
  const amount = weight === undefined ? "" : `, weight ${share(weight)}`;
  const role = key === 0 ? " (first token)" : key === position ? " (the token that looks)" : "";
  const made = element("bdi", { class: marks || null, title: `token ${key}: ${visible(text.tokens[key])}${amount}${role}` }, visible(text.texts[key]));
  if (weight !== undefined) {
    const depth = Math.min(1, Math.sqrt(weight / most));
    made.style.backgroundColor = `color-mix(in srgb, var(--shade) ${Math.round(8 + 72 * depth)}%, transparent)`;
    if (weight === most) made.classList.add("most");
    if (depth > (themeName() === "dark" ? 0.8 : 0.55)) made.classList.add("deep");
  }
  return made;
}
