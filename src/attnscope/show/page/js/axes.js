// Axes of charts: their range, round values on them, and which of those have room for a label.

const LABEL_GAP = 8; // between labels, in pixels

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

/** From a value to a coordinate. */
function axis(low, high, log, from, to) {
  const fraction = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
  return (value) => from + (to - from) * fraction(value);
}

/** The range of an axis: as given, or that of the values, from zero on where it is linear. */
function extent(values, log, given) {
  if (given) return given;
  const known = values.filter((value) => value !== null && Number.isFinite(value) && (!log || value > 0));
  if (!known.length) return log ? [1, 10] : [0, 1];
  let [low, high] = [Math.min(...known), Math.max(...known)];
  if (!log) low = Math.min(0, low);
  if (low === high) high = log ? low * 2 : low + 1;
  return log ? [low, high] : [low, high + (high - low) * 0.04];
}

/** Those of some values whose labels do not touch; the last one always. */
function withRoom(values, toX, format) {
  const kept = [];
  let free = Infinity;
  for (const value of [...values].sort((a, b) => b - a)) {
    const half = textWidth(format(value)) / 2;
    if (toX(value) + half > free) continue;
    free = toX(value) - half - LABEL_GAP;
    kept.push(value);
  }
  return kept.reverse();
}
