// The attention pattern of a head: some rows of the window by runs of keys, colored by weight.

const FIRST_LETTER = "#".charCodeAt(0); // stands for 10; see report/patterns.py
const PATTERN = { top: 20, tallest: 380, widest: 640 };

/** Numbers from two letters each: two figures and a power of ten; null where a row sees nothing. */
function unlettered(letters) {
  const values = [];
  for (let k = 0; k < letters.length; k += 2) {
    const letter = letters[k];
    values.push(letter === " " ? null : letter === "!" ? 0 : (letters.charCodeAt(k) - FIRST_LETTER + 10) / 10 ** Number(letters[k + 1]));
  }
  return values;
}

/** Rows, runs of keys and weights of a head; without the first key if it is hidden. */
function patternOf(run, i) {
  const { patterns } = run.data;
  const number = patterns?.grid[i] ?? null;
  if (number === null) return null;
  const grid = patterns.grids[number];
  const weights = unlettered(patterns.cells[i]);
  if (view.hideFirst) {
    const first = unlettered(patterns.first[i]);
    grid.rows.forEach((_, row) => {
      const at = row * grid.cells;
      if (weights[at] !== null) weights[at] = grid.keys_per_cell === 1 ? null : Math.max(0, weights[at] - first[row]);
    });
  }
  return { ...grid, weights, most: Math.max(1e-9, ...weights.map((weight) => weight ?? 0)) };
}

/** The keys of a cell: the first and the last one. */
function cellKeys({ first_key: first, keys_per_cell: size }, cell) {
  return [first + cell * size + (view.hideFirst && cell === 0 && size > 1 ? 1 : 0), first + (cell + 1) * size - 1];
}

function patternFigure(run, i) {
  const pattern = patternOf(run, i);
  if (!pattern) return null;
  const size = pattern.keys_per_cell;
  const name = `hide-first-${runs.indexOf(run)}-${i}`;
  const hide = element("label", { class: "control check" }, element("input", { type: "checkbox", id: name, checked: view.hideFirst, onchange: (event) => { view.hideFirst = event.target.checked; drawDetail(); } }), element("span", {}, "Hide the first key"));
  const covers = size === 1 ? "one key" : `${size} neighboring keys together`;
  const shown = pattern.rows.length < pattern.rows.at(-1) + 1 ? `${plural(pattern.rows.length, "row")} of window 1, spread evenly` : `all ${plural(pattern.rows.length, "row")} of window 1`;
  const made = figure({
    title: "Attention pattern", name: `pattern-${run.title(i)}`,
    note: `From top to bottom the tokens that look (${shown}), from left to right the tokens they look at. A cell is the weight of one row on ${covers}, to two figures. Nothing is drawn where a row sees no key.`,
    tools: element("div", { class: "pattern-tools" }, hide, scaleStrip(CIVIDIS, ["0", share(pattern.most / 4), share(pattern.most)])),
    draw: (colors, width) => patternPicture(pattern, colors, width, `Attention pattern of ${run.title(i)}`),
    drawn: (picture) => livelyPattern(picture, pattern, run),
    numbers: () => csv(["row", "first key", "last key", "weight"], pattern.rows.flatMap((row, r) => Array.from({ length: pattern.cells }, (_, c) => [row, ...cellKeys(pattern, c), pattern.weights[r * pattern.cells + c]]).filter((line) => line[3] !== null))),
  });
  made.classList.add("pattern");
  return made;
}

/** Where the cells of a pattern lie in its picture. */
function patternBox({ rows, cells, first_key: first, keys_per_cell: size }, width) {
  const left = Math.max(textWidth(rows.at(-1).toLocaleString("en-US")), textWidth("row")) + 12;
  const right = textWidth((first + (cells - 1) * size).toLocaleString("en-US")) / 2 + 2; // of the last label
  const wide = Math.min(PATTERN.widest, width) - left - right;
  return { left, right, wide, high: Math.min(wide, PATTERN.tallest), cell: wide / cells };
}

function patternPicture(pattern, colors, width, described) {
  const { rows, cells, weights, most, keys_per_cell: size, first_key: first } = pattern;
  const { left, right, wide, high, cell } = patternBox(pattern, width);
  const { top } = PATTERN;
  const tall = high / rows.length;
  const drawn = canvas(left + wide + right, top + high + 40, described);
  const picture = shape("g", { "shape-rendering": "crispEdges" });
  weights.forEach((weight, k) => {
    if (weight === null) return;
    const [row, column] = [Math.floor(k / cells), k % cells];
    picture.append(shape("rect", { x: left + column * cell, y: top + row * tall, width: cell + 0.3, height: tall + 0.3, fill: between(CIVIDIS, Math.sqrt(weight / most)) }));
  });
  drawn.append(picture, shape("rect", { class: "catcher", x: left, y: top, width: wide, height: high, fill: "transparent", stroke: colors.soft }));
  const soft = { fill: colors.soft };
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const row = Math.min(rows.length - 1, Math.floor(part * rows.length));
    drawn.append(label(left - 6, top + (row + 0.5) * tall + 4, rows[row].toLocaleString("en-US"), colors, { "text-anchor": "end" }));
    const key = Math.min(cells - 1, Math.floor(part * cells));
    drawn.append(label(left + (key + 0.5) * cell, top + high + 15, (first + key * size).toLocaleString("en-US"), colors, { "text-anchor": "middle" }));
  }
  drawn.append(label(left - 6, 13, "row", colors, { "text-anchor": "end", ...soft }));
  drawn.append(label(left + wide / 2, top + high + 32, "key: position of the token looked at", colors, { "text-anchor": "middle", ...soft }));
  return drawn;
}

/** A pattern that says what is under the pointer. */
function livelyPattern(drawn, pattern, run) {
  const catcher = drawn.querySelector(".catcher");
  catcher.addEventListener("pointermove", (event) => {
    const box = catcher.getBoundingClientRect();
    const at = (part, count) => Math.min(count - 1, Math.max(0, Math.floor(part * count)));
    const row = at((event.clientY - box.top) / box.height, pattern.rows.length);
    const cell = at((event.clientX - box.left) / box.width, pattern.cells);
    showHint({ left: event.clientX + 12, bottom: event.clientY + 8, top: event.clientY - 8 }, patternWords(pattern, row, cell, run.data.text?.texts));
  });
  catcher.addEventListener("pointerleave", hideHint);
}

function patternWords(pattern, row, cell, texts) {
  const [from, to] = cellKeys(pattern, cell);
  const weight = pattern.weights[row * pattern.cells + cell];
  const position = pattern.rows[row];
  const last = texts ? Math.min(to, texts.length - 1) : to;
  const quoted = texts ? ` “${texts.slice(from, last + 1).map(tokenText).join("")}”` : "";
  const who = texts && position < texts.length ? ` ${tokenWords(texts, position)}` : "";
  const keys = from >= last ? `key ${from}` : `keys ${from} to ${last}`;
  return `row ${position}${who}\n${keys}${quoted}\n${weight === null ? (view.hideFirst && cell === 0 ? "hidden" : "not seen by this row") : `weight ${share(weight)}`}`;
}
