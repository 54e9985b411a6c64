// Curves: bands, lines and dots on two axes, with a legend, as one SVG; pointing at it shows the numbers.

const PLOT = { top: 10, height: 190 };
const WIDEST = 640;
const MOST_NUMBERS = 8; // in one hint

/**
 * A chart. Bands have points {x, low, high}; lines and dots have points {x, y}; events are marks {x, words} on the x axis.
 * Dots with a `shift` lie that many pixels beside their x, so that equal numbers do not cover each other.
 * `x` and `y` are axes: { title, short, log, range, values, format }. `now` is an x that a line marks (`moveNow`); a click
 * passes the nearest x to `pick`.
 */
function chart({ x, y, bands = [], lines = [], dots = [], events = [], now = null, pick = null, description }, colors, given) {
  const width = Math.min(WIDEST, Math.max(240, given));
  const curves = lines.concat(dots);
  const xs = [...bands, ...curves].flatMap((series) => series.points.map((point) => point.x));
  const ys = [
    ...bands.flatMap((band) => band.points.flatMap((point) => [point.low, point.high])),
    ...curves.flatMap((series) => series.points.map((point) => point.y)),
  ];
  const [xWords, yWords] = [x.format ?? number, y.format ?? number];
  const [x0, x1] = extent(xs, x.log, x.range);
  const [y0, y1] = extent(ys, y.log, y.range);
  const yTicks = ticks(y0, y1, y.log);
  const xTicks = x.values ?? ticks(x0, x1, x.log);
  const left = Math.max(30, ...yTicks.map((value) => textWidth(yWords(value)) + 12));
  const right = Math.max(10, textWidth(xWords(xTicks.at(-1) ?? 0)) / 2 + 2);
  const bottom = PLOT.top + PLOT.height;
  const toX = axis(x0, x1, x.log, left, width - right);
  const toY = axis(y0, y1, y.log, bottom, PLOT.top);
  const inside = (value) => Math.min(bottom, Math.max(PLOT.top, toY(value)));
  const drawable = (value) => value !== null && value !== undefined && (!y.log || value > 0);
  const beyond = []; // values that lie outside the axis
  const put = (point, value, color) => {
    const at = toY(value);
    if (at < PLOT.top - 0.5 || at > bottom + 0.5) beyond.push(arrow(toX(point.x), inside(value), at < PLOT.top, color));
    return `${toX(point.x)},${inside(value)}`;
  };
  const shapes = [];
  for (const value of yTicks) {
    shapes.push(
      shape("line", { x1: left, x2: width - right, y1: toY(value), y2: toY(value), stroke: colors.line }),
      label(left - 6, toY(value) + 4, yWords(value), colors, { "text-anchor": "end" }),
    );
  }
  for (const value of withRoom(xTicks, toX, xWords)) {
    shapes.push(
      shape("line", { x1: toX(value), x2: toX(value), y1: bottom, y2: bottom + 4, stroke: colors.soft }),
      label(toX(value), bottom + 17, xWords(value), colors, { "text-anchor": "middle" }),
    );
  }
  shapes.push(
    label((left + width - right) / 2, bottom + 34, x.title, colors, { "text-anchor": "middle", fill: colors.soft }),
    shape("line", { x1: left, x2: width - right, y1: bottom, y2: bottom, stroke: colors.soft }),
  );
  for (const band of bands) {
    const points = band.points.filter((point) => drawable(point.low) && drawable(point.high));
    if (!points.length) continue;
    const there = points.map((point) => put(point, point.high, band.color));
    const back = points.map((point) => put(point, point.low, band.color)).reverse();
    shapes.push(shape("polygon", { points: [...there, ...back].join(" "), fill: band.color, "fill-opacity": band.faint ? 0.12 : 0.25, stroke: band.color, "stroke-opacity": band.faint ? 0.25 : 0.5 }));
  }
  for (const line of lines) {
    const points = line.points.filter((point) => drawable(point.y));
    shapes.push(shape("polyline", {
      points: points.map((point) => put(point, point.y, line.color)).join(" "),
      fill: "none", stroke: line.color, "stroke-width": line.dash ? 1.5 : 2.25, "stroke-dasharray": line.dash ?? null,
    }));
    if (!line.bare) for (const point of points) shapes.push(shape("circle", { cx: toX(point.x), cy: inside(point.y), r: line.dash ? 2 : 3, fill: line.color }));
  }
  for (const series of dots) {
    for (const point of series.points.filter((one) => drawable(one.y))) {
      put(point, point.y, series.color);
      shapes.push(shape("circle", { cx: toX(point.x) + (series.shift ?? 0), cy: inside(point.y), r: 3, fill: series.color, "fill-opacity": series.points.length > 12 ? 0.55 : 1 }));
    }
  }
  for (const event of events) shapes.push(shape("path", { class: "event", d: eventMark(toX(event.x), bottom), fill: event.color }));
  const marker = now === null ? null : shape("line", { class: "now", y1: PLOT.top, y2: bottom, stroke: colors.ink, "stroke-dasharray": "1 3" });
  const legend = legendOf({ bands, lines, dots, events, beyond: beyond.length > 0 }, colors, left, width, bottom + 54);
  const drawn = canvas(width, bottom + 42 + legend.height, description);
  drawn.append(...shapes, ...beyond, ...legend.shapes);
  if (marker) {
    drawn.append(marker);
    nowMarkers.set(marker, toX);
    moveMarker(marker, now);
  }
  showsNumbers(drawn, { x, y, bands, lines, dots, events, pick }, toX, { left, right: width - right, bottom }, colors);
  return drawn;
}

const nowMarkers = new WeakMap(); // from the line that marks an x to its chart's axis

function moveMarker(marker, at) {
  const x = nowMarkers.get(marker)(at);
  marker.setAttribute("x1", x);
  marker.setAttribute("x2", x);
}

/** Mark another x in all charts that mark one. */
function moveNow(at) {
  for (const marker of document.querySelectorAll(".now")) moveMarker(marker, at);
}

/** An event on the x axis: a triangle that stands on it. */
function eventMark(x, bottom) {
  return `M${x - 5},${bottom}L${x},${bottom - 10}L${x + 5},${bottom}Z`;
}

/** The mark of a value that lies beyond the end of an axis. */
function arrow(x, y, up, color) {
  const tip = up ? y - 8 : y + 8;
  return shape("path", { class: "beyond", d: `M${x - 4},${y}L${x},${tip}L${x + 4},${y}Z`, fill: color });
}

/** Names with their colors, in as many lines as they need. */
function legendOf({ bands, lines, dots, events, beyond }, colors, start, width, top) {
  const shapes = [];
  let [left, line] = [start, 0];
  const entries = [
    ...bands.map((one) => [one.name, (x, y) => shape("rect", { x, y: y - 8, width: 14, height: 9, fill: one.color, "fill-opacity": 0.35, stroke: one.color })]),
    ...lines.map((one) => [one.name, (x, y) => shape("line", { x1: x, x2: x + 14, y1: y - 4, y2: y - 4, stroke: one.color, "stroke-width": 2.25, "stroke-dasharray": one.dash ?? null })]),
    ...dots.map((one) => [one.name, (x, y) => shape("circle", { cx: x + 7, cy: y - 4, r: 3.5, fill: one.color })]),
    ...[...new Map(events.map((one) => [one.name, one.color]))].map(([name, color]) => [name, (x, y) => shape("path", { d: eventMark(x + 7, y + 1), fill: color })]),
    ...(beyond ? [["beyond the axis", (x, y) => arrow(x + 7, y, true, colors.soft)]] : []),
  ];
  if (entries.length < 2) return { shapes, height: 0 }; // the title says what it is
  for (const [name, mark] of entries) {
    const size = 19 + textWidth(name);
    if (left + size > width && left > start) [left, line] = [start, line + 1];
    const y = top + 17 * line;
    shapes.push(mark(left, y), label(left + 19, y, name, colors));
    left += size + 12;
  }
  return { shapes, height: 17 * (line + 1) };
}

/** The numbers at every x of a chart, in words. */
function numbersByX({ x, y, bands, lines, dots, events }) {
  const [xWords, yWords] = [x.format ?? number, y.format ?? number];
  const found = new Map();
  const add = (at, words) => found.set(at, [...(found.get(at) ?? []), words]);
  for (const one of lines) for (const point of one.points) if (point.y !== null) add(point.x, `${one.name}: ${yWords(point.y)}`);
  for (const one of bands) for (const point of one.points) add(point.x, `${one.name}: ${yWords(point.low)} to ${yWords(point.high)}`);
  for (const one of dots) for (const point of one.points) if (point.y !== null) add(point.x, `${one.name}: ${yWords(point.y)}`);
  for (const one of events) add(one.x, one.words);
  return [...found].sort((a, b) => a[0] - b[0]).map(([at, words]) => {
    const shown = words.length > MOST_NUMBERS ? [...words.slice(0, MOST_NUMBERS), `and ${words.length - MOST_NUMBERS} more`] : words;
    return { at, words: [`${x.short ?? x.title} ${xWords(at)}`, ...shown].join("\n") };
  });
}

/** Show the numbers nearest to the pointer, or to the arrow keys, with a line at their x. */
function showsNumbers(drawn, spec, toX, { left, right, bottom }, colors) {
  const stops = numbersByX(spec);
  if (!stops.length) return;
  const guide = shape("line", { y1: PLOT.top, y2: bottom, stroke: colors.soft, "stroke-dasharray": "2 2", visibility: "hidden" });
  const catcher = shape("rect", { class: "catcher", x: left - 10, y: 0, width: right - left + 20, height: bottom, fill: "transparent" });
  drawn.append(guide, catcher);
  let current = stops.length - 1;
  const show = (k) => {
    current = Math.min(stops.length - 1, Math.max(0, k));
    const x = toX(stops[current].at);
    guide.setAttribute("x1", x);
    guide.setAttribute("x2", x);
    guide.setAttribute("visibility", "visible");
    const box = drawn.getBoundingClientRect();
    const scale = box.width / drawn.viewBox.baseVal.width;
    const at = box.left + x * scale;
    showHint({ left: at + 8, right: at, top: box.top + 10, bottom: box.top + 10 }, stops[current].words);
  };
  const hide = () => {
    guide.setAttribute("visibility", "hidden");
    hideHint();
  };
  catcher.addEventListener("pointermove", (event) => {
    const box = drawn.getBoundingClientRect();
    const x = ((event.clientX - box.left) * drawn.viewBox.baseVal.width) / box.width;
    const apart = stops.map(({ at }) => Math.abs(toX(at) - x));
    show(apart.indexOf(Math.min(...apart)));
  });
  catcher.addEventListener("pointerleave", hide);
  if (spec.pick) catcher.addEventListener("click", () => spec.pick(stops[current].at));
  drawn.setAttribute("tabindex", "0");
  drawn.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(current + step);
  });
  drawn.addEventListener("blur", hide);
}

/** The numbers of a chart, one line for each x. */
function chartNumbers({ x, bands = [], lines = [], dots = [] }) {
  const header = [x.short ?? x.title];
  const table = new Map();
  const put = (at, column, value) => {
    if (!table.has(at)) table.set(at, []);
    table.get(at)[column] = value;
  };
  for (const band of bands) {
    for (const edge of ["low", "high"]) {
      const column = header.push(`${band.name} (${edge})`) - 2;
      for (const point of band.points) put(point.x, column, point[edge]);
    }
  }
  for (const series of lines) {
    const column = header.push(series.name) - 2;
    for (const point of series.points) put(point.x, column, point.y);
  }
  const body = [...table].sort((a, b) => a[0] - b[0]).map(([at, values]) => [at, ...Array.from({ length: header.length - 1 }, (_, i) => values[i])]);
  for (const series of dots) {
    for (const point of series.points) body.push([point.x, ...Array(header.length - 1).fill(null), series.name, point.y]);
  }
  return csv(dots.length ? [...header, "series", "value"] : header, body);
}

function ends(line, { x, y }) {
  if (!line.points.length) return "";
  const [first, last] = [line.points[0], line.points.at(-1)];
  const described = (point) => `${(y.format ?? number)(point.y)} at ${(x.format ?? number)(point.x)}`;
  return `${line.name}: ${described(first)}, ${described(last)}.`;
}

/** Series name their color by its role, so that a saved picture can be light on a dark page. */
function recolored(spec, colors) {
  const paint = (series) => series.map((one) => ({ ...one, color: colors[one.role] ?? one.color }));
  return { bands: paint(spec.bands ?? []), lines: paint(spec.lines ?? []), dots: paint(spec.dots ?? []), events: paint(spec.events ?? []) };
}
