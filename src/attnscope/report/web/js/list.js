// The list: all heads that pass the filter, sorted by any column.

const FIRST = 40; // lines shown until more are asked for
let allLines = false;

function drawList() {
  const run = runs[0];
  const section = byId("list");
  const names = Object.keys(run.data.measures);
  const chosen = Array.from({ length: run.count }, (_, i) => i).filter((i) => passes(run, i));
  const key = (i) => (view.order.by === "head" ? i : view.order.by === "state" ? run.state(i) ?? "" : run.value(view.order.by, i, view.group) ?? -Infinity);
  chosen.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a - b) * (view.order.down ? -1 : 1));
  const lines = allLines ? chosen : chosen.slice(0, FIRST);
  const columns = [["head", "head", ""], ...(run.judged.size ? [["state", "state", "Which simpler rule would give nearly the same output."]] : []), ...names.map((name) => [name, run.data.measures[name].label, run.data.measures[name].sentence])];
  const header = columns.map(([name, text, sentence]) => {
    const sort = view.order.by === name ? (view.order.down ? "descending" : "ascending") : "none";
    const button = element("button", { type: "button", class: "sort", "data-column": name, onclick: () => sortBy(name) }, text, sort === "none" ? "" : view.order.down ? " ▾" : " ▴");
    return element("th", { scope: "col", "aria-sort": sort }, sentence ? hinted(button, sentence) : button);
  });
  const body = lines.map((i) => element(
    "tr", {},
    element("th", { scope: "row" }, element("button", { type: "button", class: "link", onclick: () => goTo(i) }, run.title(i))),
    run.judged.size ? element("td", {}, run.state(i) ?? "–") : null,
    names.map((name) => element("td", {}, written(run.data.measures[name], run.value(name, i, view.group)))),
  ));
  const focused = document.activeElement?.dataset?.column;
  section.replaceChildren(
    element("h2", { id: "list-title" }, "All heads in a list"),
    element("p", { class: "soft" }, `${plural(chosen.length, "head")} of ${run.count.toLocaleString("en-US")}, at length ${run.groups[view.group]}. L3H5 is head 5 of layer 3, counted from 0. `, element("button", { type: "button", class: "save", onclick: () => save("heads.csv", mapNumbers(run), "text/csv") }, "CSV")),
    element("div", { class: "scroll" }, element("table", { class: "list" }, element("thead", {}, element("tr", {}, header)), element("tbody", {}, body))),
    chosen.length > lines.length ? element("button", { type: "button", class: "more", onclick: () => { allLines = true; drawList(); } }, `Show all ${chosen.length.toLocaleString("en-US")}`) : "",
  );
  if (focused) section.querySelector(`[data-column="${focused}"]`)?.focus();
}

function sortBy(name) {
  view.order = { by: name, down: view.order.by === name ? !view.order.down : name !== "head" && name !== "state" };
  drawList();
}

function goTo(i) {
  choose(runs[0].layer(i), runs[0].head(i));
  byId("heads").scrollIntoView({ behavior: "smooth" });
}
