// The map: every head of a run as a cell, colored by a measure or by state; arrow keys walk over it.

const NARROW = 860; // below this width the panel stands under the map
const TALLEST = 620; // of a map, in pixels, where its cells can be made smaller
const HINTED = ["participation", "tokens_needed", "sink_weight", "separability"]; // numbers of every hint
const MARGIN = { left: 34, top: 19, right: 2, bottom: 22 };

/** Cell sizes that suit the number of heads and the room; a map of very many heads is wider than its place and scrolls. */
function cellSize(run, width) {
  const wide = Math.floor((width - MARGIN.left - MARGIN.right) / run.width);
  return { wide: Math.max(12, Math.min(34, wide)), high: Math.max(12, Math.min(24, Math.floor(TALLEST / run.layers.length))) };
}

/** The heads of a layer from left to right: by number, or by the measure. */
function layerOrder(run, layer) {
  const heads = Array.from({ length: run.width }, (_, head) => head).filter((head) => run.index(layer, head) !== undefined);
  if (!view.sorted || view.measure === "state") return heads;
  const value = (head) => run.value(view.measure, run.index(layer, head), view.group) ?? -Infinity;
  return heads.sort((a, b) => value(b) - value(a));
}

function mapScale() {
  return colorScale(mappedRuns().flatMap((run) => run.scaled(view.measure, run.within(view.group))), measureOf(view.measure));
}

/** What a cell shows, in words. */
function cellText(run, i) {
  const group = run.within(view.group);
  if (view.measure === "state") return `${run.title(i)}: ${run.state(i) ?? "no state"}${run.edge(i) ? `, near the limit to ${run.edge(i)}` : ""}`;
  const measure = measureOf(view.measure);
  return `${run.title(i)}: ${measure.label} ${written(measure, run.value(view.measure, i, group))}${run.state(i) ? `, ${run.state(i)}` : ""}`;
}

/** The numbers of a cell's head for a hint: the one on the map first, then the usual ones. */
function cellHint(run, i) {
  const others = HINTED.filter((name) => name !== view.measure && run.data.measures[name]);
  const lines = others.map((name) => `${run.data.measures[name].label}: ${written(run.data.measures[name], run.value(name, i, run.within(view.group)))}`);
  return [cellText(run, i), run.remark(i), ...lines].filter(Boolean).join("\n");
}

function mapPicture(run, colors, width, described) {
  const { wide, high } = cellSize(run, width);
  const { left, top } = MARGIN;
  const drawn = canvas(left + wide * run.width + MARGIN.right, top + high * run.layers.length + MARGIN.bottom, described);
  const scale = view.measure === "state" ? null : mapScale();
  const group = run.within(view.group);
  const soft = { fill: colors.soft, "aria-hidden": "true" };
  const every = Math.ceil((textWidth(String(run.width - 1)) + 3) / wide);
  const named = !(view.sorted && scale); // sorted columns are no heads
  for (let head = 0; named && head < run.width; head += every) {
    drawn.append(label(left + wide * (head + 0.5), top - 6, String(head), colors, { "text-anchor": "middle", ...soft }));
  }
  const step = Math.ceil(13 / high);
  run.layers.forEach((layer, line) => {
    if (line % step === 0) drawn.append(label(left - 6, top + high * (line + 0.5) + 4, String(layer), colors, { "text-anchor": "end", ...soft }));
    const row = shape("g", { role: "row" });
    layerOrder(run, layer).forEach((head, column) => {
      const i = run.index(layer, head);
      const state = run.state(i);
      const fill = scale ? scale.color(run.value(view.measure, i, group)) : (state ? stateLook(state).color : null);
      const cell = shape("g", { role: "gridcell", id: `cell-${runs.indexOf(run)}-${layer}-${head}`, "aria-label": cellText(run, i), "data-i": i, class: "cell" });
      const dim = !passes(run, i);
      if (dim) cell.classList.add("dim");
      cell.append(shape("rect", { x: left + wide * column + 0.5, y: top + high * line + 0.5, width: wide - 1, height: high - 1, rx: 1.5, fill: fill ?? colors.empty, opacity: dim ? 0.15 : null }));
      if (!scale && state && !dim && wide >= 16 && high >= 13) {
        cell.append(label(left + wide * (column + 0.5), top + high * (line + 0.5) + 4, `${stateLook(state).mark}${run.edge(i) && wide >= 22 ? "?" : ""}`, colors, { "text-anchor": "middle", fill: inkOn(fill), "aria-hidden": "true" }));
      }
      if (run.remark(i) && !dim) cell.append(shape("path", { class: "remark", d: `M${left + wide * (column + 1) - 1.5},${top + high * line + 1}h-8l8,8Z`, fill: inkOn(fill ?? colors.empty) }));
      row.append(cell);
    });
    drawn.append(row);
  });
  const below = named ? "head" : `heads of each layer, by ${measureOf(view.measure).label.toLowerCase()}`;
  drawn.append(
    label(left, top + high * run.layers.length + 16, below, colors, soft),
    label(0, top - 6, "layer", colors, soft),
  );
  return drawn;
}

function mapTitle(run) {
  const what = view.measure === "state" ? run.labeling : measureOf(view.measure).label;
  return `${view.compare === "runs" ? `${run.letter}: ` : ""}${what} of every head${run.where(view.measure, run.within(view.group))}`;
}

function mapNumbers(run) {
  const names = Object.keys(run.data.measures);
  const lines = Array.from({ length: run.count }, (_, i) => [run.layer(i), run.head(i), run.state(i) ?? null, ...names.map((name) => run.value(name, i, run.within(view.group)))]);
  return csv(["layer", "head", "state", ...names], lines);
}

function mapFigure(run) {
  const title = mapTitle(run);
  return figure({
    title, name: "heads", numbers: () => mapNumbers(run), tools: legendFigure(run),
    note: view.compare === "runs" ? run.short : null,
    draw: (colors, width) => mapPicture(run, colors, width, title),
    drawn: (picture) => {
      livelyMap(picture, run, title);
      outline();
    },
  });
}

/** A map that can be clicked, walked over and asked. */
function livelyMap(drawn, run, title) {
  drawn.setAttribute("role", "grid");
  drawn.setAttribute("tabindex", "0");
  drawn.setAttribute("aria-label", `${title}. Arrow keys move from head to head.`);
  drawn.classList.add("map");
  if (run === runs[0]) drawn.id = "map";
  drawn.addEventListener("click", (event) => {
    const cell = event.target.closest(".cell");
    if (!cell) return;
    choose(run.layer(cell.dataset.i), run.head(cell.dataset.i), run);
    revealPanel();
  });
  drawn.addEventListener("keydown", (event) => walk(event, run));
  drawn.addEventListener("pointerover", (event) => {
    const cell = event.target.closest(".cell");
    if (cell) showHint(cell, cellHint(run, cell.dataset.i));
  });
  drawn.addEventListener("pointerout", hideHint);
}

/** What the colors mean. */
function legendFigure(run) {
  if (view.measure === "state") {
    const states = Object.keys(run.data.states).map((state) => [state, run.statesCounted.get(state) ?? 0]).filter(([, count]) => count);
    const edge = Array.from({ length: run.count }, (_, i) => run.edge(i)).some(Boolean);
    return element("p", { class: "legend" }, states.map(([state, count]) => stateBadge(state, count)), edge ? term("? near a limit", "The head lies so near a limit that other rows of the same text could give it another label.") : null);
  }
  const scale = mapScale();
  return scaleStrip(scale.stops, scale.ends.map((value) => written(measureOf(view.measure), value)));
}

function walk(event, run) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const here = view.selected ?? { layer: run.layers[0], head: 0 };
  let line = run.layers.indexOf(here.layer);
  let column = layerOrder(run, here.layer).indexOf(here.head);
  if (steps[event.key]) {
    line = Math.min(run.layers.length - 1, Math.max(0, line + steps[event.key][0]));
    column += steps[event.key][1];
  } else if (event.key === "Home") column = 0;
  else if (event.key === "End") column = Infinity;
  else if (event.key === "PageUp") line = 0;
  else if (event.key === "PageDown") line = run.layers.length - 1;
  else return;
  event.preventDefault();
  const layer = run.layers[line];
  const heads = layerOrder(run, layer);
  choose(layer, heads[Math.min(heads.length - 1, Math.max(0, column))], run);
  if (innerWidth >= NARROW) revealPanel();
}

/** Bring the panel into view; beside it the map stays where it is. */
function revealPanel() {
  if (byId("panel").getBoundingClientRect().top > innerHeight / 2) byId("panel").scrollIntoView({ behavior: "smooth" });
}

/** Outline the chosen cells, without redrawing the map. */
function outline() {
  for (const old of document.querySelectorAll(".map .outline")) old.remove();
  mappedRuns().forEach((run) => {
    const put = (head, color, dash) => {
      const cell = head && byId(`cell-${runs.indexOf(run)}-${head.layer}-${head.head}`);
      if (!cell) return;
      const box = cell.firstChild;
      const size = (name, more) => Number(box.getAttribute(name)) + more;
      const around = shape("rect", {
        class: "outline", x: size("x", -1), y: size("y", -1), width: size("width", 2), height: size("height", 2),
        fill: "none", stroke: color, "stroke-width": 3, "stroke-dasharray": dash, "pointer-events": "none",
      });
      cell.ownerSVGElement.append(around);
      cell.ownerSVGElement.setAttribute("aria-activedescendant", cell.id);
    };
    put(view.compare === "heads" ? view.pinned : null, theme().ink, "3 2");
    if (paired() || runs.indexOf(run) === (view.selected?.run ?? 0)) put(view.selected, theme().focus, null);
  });
}

/** How many heads the filter leaves, and a way back. */
function filterResult() {
  const run = runs[0];
  const { filter } = view;
  if (filter.limit === null && !filter.state && !view.marked) return null;
  const passing = Array.from({ length: run.count }, (_, i) => i).filter((i) => passes(run, i)).length;
  const clear = () => { Object.assign(filter, { limit: null, state: "" }); view.marked = null; drawHeads(); };
  return element("p", { class: "passing" }, `${view.marked ? `${visible(view.markedTitle)}: ` : ""}${plural(passing, "head")} shown${filter.state ? ` (${filter.state})` : ""}, the others are dimmed. `, element("button", { type: "button", id: "clear", onclick: clear }, "Show all"));
}
