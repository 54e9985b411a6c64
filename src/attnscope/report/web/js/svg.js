// Drawing: SVG elements, and figures whose picture and numbers can be saved.

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element. Looks are attributes, never styles: a saved picture needs no style sheet. */
function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function label(x, y, text, colors, more = {}) {
  return shape("text", { x, y, fill: colors.ink, "font-size": 11, ...more }, text);
}

function canvas(width, height, description) {
  return shape("svg", {
    xmlns: SVG, viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": description,
    "font-family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
  });
}

function save(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = element("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** The picture on white with its title, as it goes into a paper: always in the light colors. */
function standalone(draw, title) {
  const drawn = draw(THEMES.light);
  const [, , width, height] = drawn.getAttribute("viewBox").split(" ").map(Number);
  drawn.setAttribute("viewBox", `0 -26 ${width} ${height + 26}`);
  drawn.setAttribute("width", width);
  drawn.setAttribute("height", height + 26);
  drawn.prepend(
    shape("rect", { x: 0, y: -26, width, height: height + 26, fill: "#ffffff" }),
    label(4, -9, title, THEMES.light, { "font-size": 13, "font-weight": 600 }),
  );
  return new XMLSerializer().serializeToString(drawn);
}

async function savePicture(name, source) {
  const image = new Image();
  const address = URL.createObjectURL(new Blob([source], { type: "image/svg+xml" }));
  image.src = address;
  await image.decode();
  const board = element("canvas", { width: 2 * image.width, height: 2 * image.height });
  board.getContext("2d").drawImage(image, 0, 0, board.width, board.height);
  URL.revokeObjectURL(address);
  save(name, await new Promise((done) => board.toBlob(done, "image/png")), "image/png");
}

/**
 * A figure: title, picture, and buttons that save it.
 * `draw(colors)` gives the SVG, `numbers()` its data as comma-separated values.
 */
function figure({ title, note, name, draw, numbers }) {
  const save_as = (kind, act) =>
    element("button", { type: "button", class: "save", "aria-label": `Save ${title} as ${kind}`, onclick: act }, kind);
  const saving = element(
    "span", { class: "saving" },
    save_as("SVG", () => save(`${name}.svg`, standalone(draw, title), "image/svg+xml")),
    save_as("PNG", () => savePicture(`${name}.png`, standalone(draw, title))),
    save_as("CSV", () => save(`${name}.csv`, numbers(), "text/csv")),
  );
  return element(
    "figure", {},
    element("figcaption", {}, element("span", { class: "figure-title" }, title), saving),
    note ? element("p", { class: "figure-note" }, note) : null,
    draw(theme()),
  );
}
