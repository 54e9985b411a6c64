// Curves: bands, lines and dots on two axes, with a legend, as one SVG.

const WIDTH = 430;
const PLOT = { left: 52, right: 12, top: 8, height: 190 };

/** Round values for an axis, about five of them. */
function ticks(low, high, log) {
  if (log) {
    const values = [];
    const decades = Math.log10(high / low);
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += Math.max(1, Math.ceil(decades / 6))) {
      for (const digit of decades < 2.2 ? [1, 2, 5] : [1]) values.push(digit * 10 ** power);
    }
    return values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  }
  const rough = (high - low) / 4;
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * base).find((size) => size >= rough);
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) values.push(Number(value.toPrecision(6)));
  return values;
}

function axis(low, high, log, from, to) {
  const fraction = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
  return (value) => from + (to - from) * fraction(value);
}

function extent(values, log, given) {
  if (given) return given;
  const known = values.filter((value) => value !== null && Number.isFinite(value) && (!log || value > 0));
  if (!known.length) return log ? [1, 10] : [0, 1];
  let [low, high] = [Math.min(...known), Math.max(...known)];
  if (!log) low = Math.min(0, low);
  if (low === high) high = log ? low * 2 : low + 1;
  return log ? [low, high] : [low, high + (high - low) * 0.04];
}

/**
 * A chart. Bands have points {x, low, high}; lines and dots have points {x, y}.
 * `x` and `y` are axes: { title, log, range, values, format }.
 */
function chart({ x, y, bands = [], lines = [], dots = [], description }, colors) {
  const curves = lines.concat(dots);
  const xs = [...bands, ...curves].flatMap((series) => series.points.map((point) => point.x));
  const ys = [
    ...bands.flatMap((band) => band.points.flatMap((point) => [point.low, point.high])),
    ...curves.flatMap((series) => series.points.map((point) => point.y)),
  ];
  const [x0, x1] = extent(xs, x.log, x.range);
  const [y0, y1] = extent(ys, y.log, y.range);
  const bottom = PLOT.top + PLOT.height;
  const toX = axis(x0, x1, x.log, PLOT.left, WIDTH - PLOT.right);
  const toY = axis(y0, y1, y.log, bottom, PLOT.top);
  const inside = (value) => Math.min(bottom, Math.max(PLOT.top, toY(value)));
  const drawable = (value) => value !== null && value !== undefined && (!y.log || value > 0);
  const legend = legendOf([...bands, ...lines], dots, colors, bottom + 46);
  const drawn = canvas(WIDTH, bottom + 40 + legend.height, description);
  for (const value of ticks(y0, y1, y.log)) {
    const at = toY(value);
    drawn.append(
      shape("line", { x1: PLOT.left, x2: WIDTH - PLOT.right, y1: at, y2: at, stroke: colors.line }),
      label(PLOT.left - 6, at + 4, (y.format ?? number)(value), colors, { "text-anchor": "end" }),
    );
  }
  let last = -Infinity;
  for (const value of x.values ?? ticks(x0, x1, x.log)) {
    const at = toX(value);
    if (at - last < 30) continue;
    last = at;
    drawn.append(
      shape("line", { x1: at, x2: at, y1: bottom, y2: bottom + 4, stroke: colors.soft }),
      label(at, bottom + 16, (x.format ?? number)(value), colors, { "text-anchor": "middle" }),
    );
  }
  drawn.append(
    label((PLOT.left + WIDTH) / 2, bottom + 32, x.title, colors, { "text-anchor": "middle", fill: colors.soft }),
    shape("line", { x1: PLOT.left, x2: WIDTH - PLOT.right, y1: bottom, y2: bottom, stroke: colors.soft }),
  );
  for (const band of bands) {
    const points = band.points.filter((point) => drawable(point.low) && drawable(point.high));
    if (!points.length) continue;
    const there = points.map((point) => `${toX(point.x)},${inside(point.high)}`);
    const back = points.map((point) => `${toX(point.x)},${inside(point.low)}`).reverse();
    drawn.append(shape("polygon", { points: [...there, ...back].join(" "), fill: band.color, "fill-opacity": 0.25, stroke: band.color, "stroke-opacity": 0.5 }));
  }
  for (const line of lines) {
    const points = line.points.filter((point) => drawable(point.y));
    drawn.append(shape("polyline", {
      points: points.map((point) => `${toX(point.x)},${inside(point.y)}`).join(" "),
      fill: "none", stroke: line.color, "stroke-width": line.dash ? 1.5 : 2.25, "stroke-dasharray": line.dash ?? null,
    }));
    if (!line.bare) for (const point of points) drawn.append(dot(toX(point.x), inside(point.y), line, point, x, y));
  }
  for (const series of dots) {
    for (const point of series.points.filter((one) => drawable(one.y))) {
      drawn.append(dot(toX(point.x), inside(point.y), series, point, x, y, 0.55));
    }
  }
  drawn.append(...legend.shapes);
  return drawn;
}

function dot(cx, cy, series, point, x, y, opacity = 1) {
  const description = `${series.name}: ${(y.format ?? number)(point.y)} at ${(x.format ?? number)(point.x)}`;
  return shape("circle", { cx, cy, r: series.dash ? 2 : 3, fill: series.color, "fill-opacity": opacity }, shape("title", {}, description));
}

/** Names with their colors, in as many lines as they need. */
function legendOf(series, dots, colors, top) {
  const shapes = [];
  let [left, line] = [PLOT.left, 0];
  for (const one of [...series, ...dots]) {
    const width = 24 + one.name.length * 6.2;
    if (left + width > WIDTH && left > PLOT.left) [left, line] = [PLOT.left, line + 1];
    const y = top + 16 * line;
    if (dots.includes(one)) {
      shapes.push(shape("circle", { cx: left + 7, cy: y - 4, r: 3, fill: one.color }));
    } else if (one.points.length && "low" in one.points[0]) {
      shapes.push(shape("rect", { x: left, y: y - 8, width: 14, height: 9, fill: one.color, "fill-opacity": 0.35, stroke: one.color }));
    } else {
      shapes.push(shape("line", { x1: left, x2: left + 14, y1: y - 4, y2: y - 4, stroke: one.color, "stroke-width": 2.25, "stroke-dasharray": one.dash ?? null }));
    }
    shapes.push(label(left + 19, y, one.name, colors));
    left += width + 10;
  }
  return { shapes, height: series.length + dots.length ? 16 * (line + 1) : 0 };
}

/** The numbers of a chart, one line for each x. */
function chartNumbers({ x, bands = [], lines = [], dots = [] }) {
  const header = [x.title];
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
  return csv(dots.length ? [...header, "window", "value"] : header, body);
}
