// The map: every head of a run as a cell, colored by a measure or by state; arrow keys walk over it.

const NARROW = 860; // below this width the panel stands under the map

/** Cell sizes that suit the number of heads. */
function cellSize(run) {
  const room = run.width > 24 ? 1000 : 380;
  return { wide: Math.max(12, Math.min(34, Math.floor(room / run.width))), high: Math.max(10, Math.min(24, Math.floor(600 / run.layers.length))) };
}

/** The heads of a layer from left to right: by number, or by the measure. */
function layerOrder(run, layer) {
  const heads = Array.from({ length: run.width }, (_, head) => head).filter((head) => run.index(layer, head) !== undefined);
  if (!view.sorted || view.measure === "state") return heads;
  const value = (head) => run.value(view.measure, run.index(layer, head), view.group) ?? -Infinity;
  return heads.sort((a, b) => value(b) - value(a));
}

function mapScale() {
  return colorScale(mappedRuns().flatMap((run) => run.values(view.measure, Math.min(view.group, run.groups.length - 1))), runs[0].data.measures[view.measure]);
}

/** What a cell shows, in words. */
function cellText(run, i) {
  const group = Math.min(view.group, run.groups.length - 1);
  const state = run.state(i) ? `, ${run.state(i)}` : "";
  if (view.measure === "state") return `${run.title(i)}: ${run.state(i) ?? "no state"}${run.judgment(i)?.edge ? `, near the edge of ${run.judgment(i).edge}` : ""}`;
  const measure = run.data.measures[view.measure];
  return `${run.title(i)}: ${measure.label.toLowerCase()} ${written(measure, run.value(view.measure, i, group))}${state}`;
}

function mapPicture(run, colors, described) {
  const { wide, high } = cellSize(run);
  const [left, top] = [30, 16];
  const drawn = canvas(left + wide * run.width + 2, top + high * run.layers.length + 22, described);
  const scale = view.measure === "state" ? null : mapScale();
  const group = Math.min(view.group, run.groups.length - 1);
  const every = wide < 16 ? 4 : 1;
  for (let head = 0; head < run.width; head += every) {
    drawn.append(label(left + wide * (head + 0.5), top - 5, String(head), colors, { "text-anchor": "middle", "font-size": 10, fill: colors.soft, "aria-hidden": "true" }));
  }
  const step = high < 12 ? 4 : 1;
  run.layers.forEach((layer, line) => {
    if (line % step === 0) {
      drawn.append(label(left - 5, top + high * (line + 0.5) + 3.5, String(layer), colors, { "text-anchor": "end", "font-size": 10, fill: colors.soft, "aria-hidden": "true" }));
    }
    const row = shape("g", { role: "row" });
    layerOrder(run, layer).forEach((head, column) => {
      const i = run.index(layer, head);
      const state = run.state(i);
      const fill = scale ? scale.color(run.value(view.measure, i, group)) : (state ? stateLook(state).color : null);
      const cell = shape("g", { role: "gridcell", id: `cell-${runs.indexOf(run)}-${layer}-${head}`, "aria-label": cellText(run, i), "data-i": i, class: "cell" });
      if (!passes(run, i)) cell.setAttribute("opacity", 0.15);
      cell.append(shape("rect", { x: left + wide * column + 0.5, y: top + high * line + 0.5, width: wide - 1, height: high - 1, rx: 1.5, fill: fill ?? colors.empty }));
      if (!scale && state && wide >= 14) {
        cell.append(label(left + wide * (column + 0.5), top + high * (line + 0.5) + 4, `${stateLook(state).mark}${run.judgment(i).edge && wide >= 20 ? "?" : ""}`, colors, { "text-anchor": "middle", fill: inkOn(fill), "aria-hidden": "true" }));
      }
      row.append(cell);
    });
    drawn.append(row);
  });
  const below = view.sorted && scale ? `head, by ${runs[0].data.measures[view.measure].label.toLowerCase()}` : "head";
  drawn.append(
    label(left + (wide * run.width) / 2, top + high * run.layers.length + 14, below, colors, { "text-anchor": "middle", fill: colors.soft, "aria-hidden": "true" }),
    label(2, top - 5, "layer", colors, { "font-size": 9, fill: colors.soft, "aria-hidden": "true" }),
  );
  return drawn;
}

function mapTitle(run) {
  const what = view.measure === "state" ? "State" : runs[0].data.measures[view.measure].label;
  const where = run.groups.length > 1 && view.measure !== "state" && !runs[0].data.measures[view.measure].whole ? `, length ${run.groups[Math.min(view.group, run.groups.length - 1)]}` : "";
  return `${view.compare === "runs" ? `${"AB"[runs.indexOf(run)]}: ` : ""}${what} of every head${where}`;
}

function mapNumbers(run) {
  const names = Object.keys(run.data.measures);
  const group = Math.min(view.group, run.groups.length - 1);
  const lines = Array.from({ length: run.count }, (_, i) => [run.layer(i), run.head(i), run.state(i) ?? null, ...names.map((name) => run.value(name, i, group))]);
  return csv(["layer", "head", "state", ...names], lines);
}

function mapFigure(run) {
  const title = mapTitle(run);
  const draw = (colors) => mapPicture(run, colors, title);
  const { model, settings, finished } = run.data.run;
  const which = `${shortName(model.name)}, ${plural(settings.windows, "window")} of ${settings.length.toLocaleString("en-US")} tokens, ${visible(finished).slice(0, 16).replace("T", " ")}`;
  const made = figure({ title, note: view.compare === "runs" ? which : null, name: "heads", draw, numbers: () => mapNumbers(run) });
  const drawn = made.querySelector("svg");
  drawn.setAttribute("role", "grid");
  drawn.setAttribute("tabindex", "0");
  drawn.setAttribute("aria-label", `${title}. Arrow keys move from head to head.`);
  drawn.classList.add("map");
  if (run === runs[0]) drawn.id = "map";
  drawn.addEventListener("click", (event) => {
    const cell = event.target.closest(".cell");
    if (!cell) return;
    choose(run.layer(cell.dataset.i), run.head(cell.dataset.i));
    if (innerWidth < NARROW) byId("panel").scrollIntoView({ behavior: "smooth" });
  });
  drawn.addEventListener("keydown", (event) => walk(event, run));
  drawn.addEventListener("pointerover", (event) => {
    const cell = event.target.closest(".cell");
    if (cell) showHint(cell, cell.getAttribute("aria-label"));
  });
  drawn.addEventListener("pointerout", hideHint);
  made.insertBefore(legendFigure(run), drawn);
  const holder = element("div", { class: "scroll" });
  drawn.replaceWith(holder);
  holder.append(drawn);
  return made;
}

/** What the colors mean. */
function legendFigure(run) {
  if (view.measure === "state") {
    const states = Object.keys(run.data.states).map((state) => [state, run.statesCounted.get(state) ?? 0]);
    const edge = [...run.judged.values()].some((entry) => entry.edge);
    return element("p", { class: "legend" }, states.map(([state, count]) => stateBadge(state, count)), edge ? term("? near the edge", "The head lies so near a limit that other rows of the same text could give it another label.") : null);
  }
  const scale = mapScale();
  const measure = runs[0].data.measures[view.measure];
  const strip = shape("svg", { class: "strip", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (let k = 0; k < 50; k += 1) strip.append(shape("rect", { x: 2 * k, y: 0, width: 2.2, height: 8, fill: between(scale.stops, k / 49) }));
  const ends = scale.ends.map((value) => element("span", {}, written(measure, value)));
  return element("div", { class: "legend-scale" }, strip, element("div", { class: "ends" }, ends));
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
  choose(layer, heads[Math.min(heads.length - 1, Math.max(0, column))]);
}

/** Outline the chosen cells, without redrawing the map. */
function outline() {
  for (const old of document.querySelectorAll(".map .outline")) old.remove();
  mappedRuns().forEach((run) => {
    const number = runs.indexOf(run);
    const put = (head, color, dash) => {
      const cell = head && byId(`cell-${number}-${head.layer}-${head.head}`);
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
    put(view.selected, theme().focus, null);
  });
}
