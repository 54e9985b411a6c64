// Numbers and texts as people read them. All text from outside goes through `visible` and is set as text, never as markup.

/** Three significant figures, no exponent for everyday sizes. */
function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return value.toExponential(2);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

function share(value) {
  if (value === null || value === undefined) return "–";
  const percent = 100 * value;
  if (percent !== 0 && percent < 0.1) return "<0.1%";
  return `${percent >= 10 || percent === 0 ? Math.round(percent) : percent.toFixed(1)}%`;
}

/** A value of a measure, as its kind is written. */
function written(measure, value) {
  return measure && measure.style === "share" ? share(value) : number(value);
}

/** The first letter as a capital. */
function capitalized(text) {
  return `${text.slice(0, 1).toUpperCase()}${text.slice(1)}`;
}

/** How people read a head: L3H5 is head 5 of layer 3. */
function headName(layer, head) {
  return `L${layer}H${head}`;
}

function plural(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}]|\p{Cs}/gu;

const PILED = /(\p{M}{4})\p{M}+/gu; // no script piles up more marks; they would cover the lines around

/** Text with every character that cannot be seen, or that reorders its neighbors, written out. */
function visible(text) {
  return String(text)
    .replaceAll("\r\n", "↵").replaceAll("\n", "↵").replaceAll("\t", "⇥")
    .replace(PILED, "$1…")
    .replace(HIDDEN, (hidden) => `\\u${hidden.codePointAt(0).toString(16).padStart(4, "0")}`);
}

/** Text for the page whose command-line options are not broken at the end of a line. */
function unbroken(text) {
  return visible(text).split(/(--[\w-]+)/).map((part) => (part.startsWith("--") ? element("span", { class: "option" }, part) : part));
}

/** The text of a token: with spaces that can be seen. */
function tokenText(text) {
  return visible(text).replace(/[ \u00a0\u2000-\u200a\u3000]/g, "·");
}

const NAMELESS = ["model", "models", "checkpoint", "weights", "main", "hf"]; // folders that say nothing without the one they are in

/** The last part of a path, with the one before it where it says nothing alone; names on a hub stay (report/terminal.py). */
function shortName(path) {
  const parts = path.split(/[\\/]/).filter(Boolean);
  if (!/^[./~]|\\/.test(path) && parts.length < 3) return visible(path);
  const count = NAMELESS.includes(parts.at(-1)?.toLowerCase()) ? 2 : 1;
  return visible(parts.slice(-count).join("/") || path);
}

/** An element with attributes and children; strings become text nodes. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

/** Comma-separated values; cells that could be read as formulas or hold separators are quoted. */
function csv(header, lines) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    const text = String(value);
    const safe = typeof value === "string" && /^[=+\-@]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [header, ...lines].map((line) => line.map(cell).join(",")).join("\n") + "\n";
}
