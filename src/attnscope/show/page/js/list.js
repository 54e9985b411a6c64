// The list: all heads that pass the filter, sorted by any column; of two runs, the heads that differ most.

const FIRST = 20; // lines shown until more are asked for
const PRINTED = ["participation", "separability", "sink_weight", "max_weight", "jacobian_norm", "tokens_needed", "growth_exponent", "sureness"]; // columns on paper
let allLines = false;

function drawList() {
  const section = byId("list");
  section.hidden = view.compare === "runs" && !paired();
  if (section.hidden) return;
  const focused = document.activeElement?.dataset?.column;
  section.replaceChildren(...(view.compare === "runs" ? differingHeads() : headList(runs[0])));
  if (focused) section.querySelector(`[data-column="${focused}"]`)?.focus();
}

function headList(run) {
  const names = Object.keys(run.data.measures).filter((name) => !printing || PRINTED.includes(name));
  const group = run.within(view.group);
  const chosen = Array.from({ length: run.count }, (_, i) => i).filter((i) => passes(run, i));
  const key = (i) => (view.order.by === "head" ? i : view.order.by === "state" ? run.state(i) ?? "" : run.value(view.order.by, i, group) ?? -Infinity);
  chosen.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a - b) * (view.order.down ? -1 : 1));
  const lines = allLines || printing ? chosen : chosen.slice(0, FIRST);
  const named = [["head", "Head", ""], ...(run.judged.size ? [["state", "State", "Which simpler rule would give nearly the same output."]] : [])];
  const sources = [[undefined, `Scan: ${run.data.sources.scan[group]}`], ["diagnosis", `Diagnosis: ${run.data.sources.diagnosis}`], ["horizon", `Horizon: ${run.data.sources.horizon}`]];
  const parts = sources.map(([whole, words]) => ({ words, names: names.filter((name) => run.data.measures[name].whole === whole) }));
  const listed = parts.flatMap((part) => part.names);
  const columns = [...named, ...listed.map((name) => [name, run.data.measures[name].label, run.data.measures[name].sentence])];
  const header = columns.map(([name, text, sentence]) => {
    const sort = view.order.by === name ? (view.order.down ? "descending" : "ascending") : "none";
    const look = named.some(([one]) => one === name) ? "words" : null;
    if (printing) return element("th", { scope: "col", class: look }, text); // buttons are not repeated on every sheet
    const button = element("button", { type: "button", class: "sort", "data-column": name, onclick: () => sortBy(name) }, text, sort === "none" ? "" : view.order.down ? " ▾" : " ▴");
    return element("th", { scope: "col", class: look, "aria-sort": sort }, sentence ? hinted(button, sentence) : button);
  });
  const source = (words, count) => (count ? element("th", { scope: "colgroup", colspan: count, class: "source" }, words) : null);
  const body = lines.map((i) => element(
    "tr", {},
    element("th", { scope: "row" }, headLink(run, run.layer(i), run.head(i))),
    run.judged.size ? element("td", { class: "words" }, run.state(i) ?? "–") : null,
    listed.map((name) => element("td", {}, written(run.data.measures[name], run.value(name, i, group)))),
  ));
  return [
    element("h2", { id: "list-title" }, "All heads in a list"),
    element("p", { class: "soft" }, `${plural(chosen.length, "head")} of ${run.count.toLocaleString("en-US")}, at length ${run.groups[group]}. `, element("button", { type: "button", class: "save", onclick: () => save("heads.csv", mapNumbers(run), "text/csv") }, "CSV")),
    element("div", { class: "scroll", tabindex: "0" }, element("table", { class: "list" }, element("thead", {}, element("tr", { class: "sources" }, element("th", { colspan: named.length }), parts.map((part) => source(part.words, part.names.length))), element("tr", {}, header)), element("tbody", {}, body))),
    chosen.length > lines.length ? element("button", { type: "button", class: "more", onclick: () => { allLines = true; drawList(); } }, `Show all ${chosen.length.toLocaleString("en-US")}`) : "",
  ].filter(Boolean);
}

function sortBy(name) {
  view.order = { by: name, down: view.order.by === name ? !view.order.down : name !== "head" && name !== "state" };
  drawList();
}

/** The heads of two runs by how much they differ in the measure of the map; by state, those that changed it. */
function differingHeads() {
  const [one, other] = runs;
  const name = view.measure === "state" ? "participation" : view.measure;
  const measure = measureOf(name);
  const states = one.judged.size && other.judged.size;
  const heads = Array.from({ length: one.count }, (_, i) => ({ i, j: other.index(one.layer(i), one.head(i)) })).filter(({ j }) => j !== undefined);
  const changes = heads.map(({ i, j }) => {
    const [a, b] = [one.value(name, i, one.within(view.group)), other.value(name, j, other.within(view.group))];
    return { i, j, a, b, by: a === null || b === null ? null : b - a, moved: one.state(i) !== other.state(j) };
  });
  const moved = changes.filter((change) => change.moved).length;
  changes.sort((a, b) => (view.measure === "state" ? b.moved - a.moved : 0) || Math.abs(b.by ?? 0) - Math.abs(a.by ?? 0));
  const lines = allLines || printing ? changes : changes.slice(0, FIRST);
  const header = ["Head", ...(states ? ["State in A", "State in B"] : []), `${measure.label}, A`, `${measure.label}, B`, "B minus A"];
  const body = lines.map(({ i, j, a, b, by }) => element(
    "tr", {},
    element("th", { scope: "row" }, headLink(one, one.layer(i), one.head(i))),
    states ? [element("td", {}, one.state(i) ?? "–"), element("td", {}, one.state(i) === other.state(j) ? "same" : element("b", {}, other.state(j) ?? "–"))] : null,
    element("td", {}, written(measure, a)), element("td", {}, written(measure, b)), element("td", {}, differenceWords(measure, by)),
  ));
  const words = states ? `${plural(moved, "head")} of ${heads.length.toLocaleString("en-US")} ${moved === 1 ? "has" : "have"} another state in B. ` : "";
  return [
    element("h2", { id: "list-title" }, "Where they differ most"),
    element("p", { class: "soft" }, `${words}Sorted by ${view.measure === "state" ? "change of state, then by " : ""}the difference in ${measure.label.toLowerCase()}.`),
    element("div", { class: "scroll", tabindex: "0" }, element("table", { class: "list" }, element("thead", {}, element("tr", {}, header.map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, body))),
    changes.length > lines.length ? element("button", { type: "button", class: "more", onclick: () => { allLines = true; drawList(); } }, `Show all ${changes.length.toLocaleString("en-US")}`) : "",
  ].filter(Boolean);
}
