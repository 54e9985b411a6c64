// Colors that are distinct with any color vision: cividis for amounts, Okabe and Ito's for series, blue to orange for differences.

const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const DIFFERENCE = ["#b35806", "#e08214", "#fdb863", "#e9e4dc", "#8fbfe0", "#4393c3", "#2166ac"];

const THEMES = {
  light: {
    page: "#ffffff", ink: "#1b1f24", soft: "#59636e", line: "#dfe3e8", empty: "#eceff2", shade: "#0072b2",
    measured: "#0072b2", proved: "#56b4e9", printed: "#d55e00", printedToo: "#b07500", random: "#009e73", focus: "#d6006c", alarm: "#b04400",
  },
  dark: {
    page: "#171b20", ink: "#e8ebee", soft: "#a2acb6", line: "#343c45", empty: "#2a3138", shade: "#56b4e9",
    measured: "#56b4e9", proved: "#4c93bd", printed: "#ff8a3d", printedToo: "#e6b422", random: "#35c79f", focus: "#ff6fb5", alarm: "#ffb020",
  },
};

const darkSystem = matchMedia("(prefers-color-scheme: dark)");

function themeName() {
  return document.documentElement.dataset.theme ?? (darkSystem.matches ? "dark" : "light");
}

let printing = false; // on paper everything is light

function theme() {
  return THEMES[printing ? "light" : themeName()];
}

function channels(color) {
  return [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));
}

/** A color between two, from 0 to 1. */
function mixed(from, to, amount) {
  const [start, end] = [channels(from), channels(to)];
  return `#${start.map((value, i) => Math.round(value + (end[i] - value) * amount).toString(16).padStart(2, "0")).join("")}`;
}

/** The color at a position from 0 to 1 on a list of stops. */
function between(stops, position) {
  const at = Math.min(1, Math.max(0, position)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  return mixed(stops[low], stops[low + 1], at - low);
}

/** Relative luminance, as WCAG defines it. */
function luminance(color) {
  const [red, green, blue] = channels(color).map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Black or white, whichever has more contrast on a color: always at least 4.58 to 1. */
function inkOn(color) {
  return luminance(color) > 0.1791 ? "#000000" : "#ffffff";
}

/** From a value to a position on a color scale; widely spread positive values are taken by their logarithm. */
function colorScale(values, measure, stops = CIVIDIS) {
  const known = values.filter((value) => value !== null);
  let [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  if (measure.fixed) [low, high] = [0, 1];
  const log = !measure.fixed && low > 0 && high / low > 50;
  const single = low === high;
  if (single) high = low + (Math.abs(low) || 1);
  const position = (value) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const middle = log ? Math.sqrt(low * high) : (low + high) / 2;
  return { ends: single ? [low] : [low, middle, high], color: (value) => (value === null ? null : between(stops, position(value))), stops };
}

function differenceScale(values) {
  const most = Math.max(...values.filter((value) => value !== null).map(Math.abs), 1e-9);
  const color = (value) => (value === null ? null : between(DIFFERENCE, (value / most + 1) / 2));
  return { ends: [-most, 0, most], color, stops: DIFFERENCE };
}

/** A strip of a scale's colors with numbers below it. */
function scaleStrip(stops, ends) {
  const strip = shape("svg", { class: "strip", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (let k = 0; k < 50; k += 1) strip.append(shape("rect", { x: 2 * k, y: 0, width: 2.2, height: 8, fill: between(stops, k / 49) }));
  return element("div", { class: "legend-scale" }, strip, element("div", { class: "ends" }, ends.map((words) => element("span", {}, words))));
}
