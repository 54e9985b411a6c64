// Fields, links and messages that several pages have.

function announce(text) {
  byId("status").textContent = text;
}

function select(name, text, options, current, onchange) {
  const option = ([value, words]) => element("option", { value, selected: String(value) === String(current) }, words);
  const made = options.map((one) => (Array.isArray(one) ? option(one) : element("optgroup", { label: one.label }, one.options.map(option))));
  const list = element("select", { id: name, onchange: (event) => onchange(event.target.value) }, made);
  return element("label", { class: "control" }, element("span", {}, text), list);
}

/** The choice between light and dark; `redraw` draws what does not follow by itself. */
function themeField(redraw) {
  return select("theme", "Colors", [["", "as the system"], ["light", "light"], ["dark", "dark"]], document.documentElement.dataset.theme ?? "", (name) => {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    redraw();
  });
}

/** A link that opens the panel of a head. */
function headLink(run, layer, head) {
  const name = headName(layer, head);
  return element("a", { href: `#head=${name}`, class: "head", onclick: (event) => { event.preventDefault(); openHead(layer, head, run); } }, name);
}

/** Show a head in the panel and go there. */
function openHead(layer, head, run = runs[0]) {
  choose(layer, head, run);
  byId("panel").scrollIntoView({ behavior: "smooth" });
}

/** The head in the address: L3H5, or 3.5 in old links. */
function headInAddress() {
  const asked = /^#head=L?(\d+)[H.](\d+)$/.exec(location.hash);
  const [layer, head] = asked ? [Number(asked[1]), Number(asked[2])] : [];
  return asked && runs[0].index(layer, head) !== undefined ? { layer, head, run: 0 } : null;
}
