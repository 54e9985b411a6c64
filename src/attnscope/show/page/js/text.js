// The weights of one row over the text: tokens shaded by weight, the first token marked. Tokens are untrusted: they are only ever set as text.

const WHOLE = 1500; // tokens up to which the whole window is shown
const AROUND = 6; // else this many on each side of a shaded token
const DEEPEST = 0.85; // how far the largest weight goes from the color of the page to that of the shade

/** A token in words; one of several that share a character says which. */
function tokenWords(texts, key) {
  if (texts[key] !== "") return `“${tokenText(texts[key])}”`;
  let [first, last] = [key, key];
  while (first > 0 && texts[first] === "") first -= 1;
  while (texts[last + 1] === "") last += 1;
  return `part ${key - first + 1} of ${last - first + 1} of “${[...tokenText(texts[first])].at(-1) ?? ""}”`;
}

function textPanel(run, i) {
  const text = run.data.text;
  const keys = text?.keys[i];
  if (!keys?.length) return null;
  const { texts } = text;
  const position = text.position[i];
  const weight = new Map(keys.map((key, k) => [key, text.weights[i][k]]));
  const most = Math.max(...keys.filter((key) => key !== 0).map((key) => weight.get(key)), 1e-12);
  const box = element("p", { class: "tokens", tabindex: "0", role: "region", "aria-label": `Weights over the text, ${run.title(i)}` });
  let gap = 0;
  for (let key = 0; key <= Math.max(position, ...keys) && key < texts.length; key += 1) {
    if (texts.length > WHOLE && key !== 0 && key !== position && !near(weight, key)) {
      gap += 1;
      continue;
    }
    if (gap) box.append(element("span", { class: "gap" }, ` … ${plural(gap, "token")} … `));
    gap = 0;
    if (/^\s/.test(texts[key])) box.append(element("wbr"));
    box.append(tokenMark(text, key, weight.get(key), most, position));
    if (/[\n\r]$/.test(texts[key])) box.append(element("wbr"));
  }
  const covered = keys.reduce((sum, key) => sum + weight.get(key), 0);
  const top = keys.slice(0, 5).map((key) => element("li", {}, element("bdi", {}, key === 0 ? `the first token ${tokenWords(texts, key)}` : tokenWords(texts, key)), " ", element("b", {}, share(weight.get(key)))));
  const lines = keys.map((key) => [key, tokenText(texts[key]), weight.get(key)]);
  const saving = element("button", { type: "button", class: "save", "aria-label": "Save the weights over the text as CSV", onclick: () => save(`weights-${run.title(i)}.csv`, csv(["key", "text", "weight"], lines), "text/csv") }, "CSV");
  const { page, shade } = theme();
  return element(
    "figure", { class: "text" },
    element("figcaption", {}, element("span", { class: "figure-title" }, "Where it looks"), saving),
    element("p", { class: "figure-note" }, `One row of window 1: token ${position.toLocaleString("en-US")} (solid frame) looks at the text. Shaded: its ${keys.length} largest weights, ${share(covered)} of all. Dashed frame: the first token, whose weight does not set the scale. · is a space, ↵ a line end.`),
    element("p", { class: "largest-title" }, "Largest weights"),
    element("ol", { class: "largest" }, top),
    scaleStrip([page, mixed(page, shade, DEEPEST * Math.SQRT1_2), mixed(page, shade, DEEPEST)], ["0", share(most / 2), share(most)]),
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
  const role = key === 0 ? ", the first token" : key === position ? ", the token that looks" : "";
  const shown = text.texts[key] === "" ? "…" : tokenText(text.texts[key]);
  const made = element("bdi", { class: marks || null, title: `token ${key}: ${tokenWords(text.texts, key)}${amount}${role}` }, shown);
  if (weight !== undefined) {
    const { page, shade } = theme();
    const color = mixed(page, shade, DEEPEST * Math.min(1, Math.sqrt(weight / most)));
    made.style.backgroundColor = color;
    made.style.color = inkOn(color);
    if (weight === most) made.classList.add("most");
  }
  return made;
}
