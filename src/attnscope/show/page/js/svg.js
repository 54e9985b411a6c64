// Drawing: SVG elements, and figures that fit their place and whose picture and numbers can be saved.

const SVG = "http://www.w3.org/2000/svg";
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const TEXT_SIZE = 11.5; // of all text in pictures, in pixels
const SAVED_WIDTH = 480;

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
  return shape("text", { x, y, fill: colors.ink, "font-size": TEXT_SIZE, ...more }, text);
}

const ruler = document.createElement("canvas").getContext("2d");

/** The width of a label in pixels. */
function textWidth(text) {
  ruler.font = `${TEXT_SIZE}px ${FONT}`;
  return ruler.measureText(text).width;
}

function canvas(width, height, description) {
  return shape("svg", {
    xmlns: SVG, viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": description, "font-family": FONT,
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
  const drawn = draw(THEMES.light, SAVED_WIDTH);
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

const drawings = new WeakMap(); // from the place of a picture to the function that draws it there

/** Draw every picture inside an element that is on the page, as wide as its place; again whenever that changes. */
function fitPictures(root) {
  const places = [...root.querySelectorAll(".drawing")].map((place) => [place, place.clientWidth]);
  for (const [place, width] of places) {
    drawings.get(place)?.(width);
    resized.observe(place);
  }
}

const resized = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) if (!printing) drawings.get(target)?.(Math.floor(contentRect.width), true);
});

/**
 * A figure: title, note, picture, and buttons that save it.
 * `draw(colors, width)` gives the SVG, `numbers()` its data as comma-separated values; `drawn(svg)` is called when it is in its place.
 */
function figure({ title, note, name, draw, numbers, drawn = () => {}, tools = null }) {
  const saveAs = (kind, act) =>
    element("button", { type: "button", class: "save", "aria-label": `Save ${title} as ${kind}`, onclick: act }, kind);
  const saving = element(
    "span", { class: "saving" },
    saveAs("SVG", () => save(`${name}.svg`, standalone(draw, title), "image/svg+xml")),
    saveAs("PNG", () => savePicture(`${name}.png`, standalone(draw, title))),
    saveAs("CSV", () => save(`${name}.csv`, numbers(), "text/csv")),
  );
  const place = element("div", { class: "drawing" });
  let last = 0;
  drawings.set(place, (width, again) => {
    if (!width || (again && width === last)) return;
    last = width;
    const focused = place.contains(document.activeElement);
    const picture = draw(theme(), width);
    place.replaceChildren(picture);
    drawn(picture);
    if (focused) picture.focus({ preventScroll: true });
  });
  return element(
    "figure", {},
    element("figcaption", {}, element("span", { class: "figure-title" }, title), saving),
    note ? element("p", { class: "figure-note" }, note) : null,
    tools,
    place,
  );
}
