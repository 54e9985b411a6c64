// The states of a diagnosis: their look, their badges, and the bar that counts them.

const COUNT_ROOM = 0.08; // share of the bar from which on a part has room for its count

/** The look and meaning of a state; a state that this page does not know is grey. */
function stateLook(state) {
  return runs.map((run) => run.data.states?.[state]).find(Boolean) ?? { color: "#9aa0a6", mark: "?", sentence: "" };
}

function stateBadge(state, words) {
  const look = stateLook(state);
  const badge = element("span", { class: "badge", tabindex: "0", "aria-description": look.sentence });
  badge.style.background = look.color;
  badge.style.color = inkOn(look.color);
  badge.append(`${look.mark} ${visible(state)}${words === undefined ? "" : ` ${words}`}`);
  return hinted(badge, look.sentence);
}

/** How many heads are in each state: a bar in proportion, and below it the counts; a click shows the heads. */
function stateBar(run, counts = run.statesCounted) {
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const counted = Object.keys(run.data.states).map((state) => [state, counts.get(state)]).filter(([, count]) => count);
  const words = (state, count) => `${state}: ${count.toLocaleString("en-US")} of ${plural(total, "head")}, ${share(count / total)}. ${stateLook(state).sentence}`;
  const show = (state) => (run === runs[0] ? () => showState(state) : null);
  const parts = counted.map(([state, count]) => {
    const { color } = stateLook(state);
    const part = element("span", { class: "part", "data-state": state }, count / total >= COUNT_ROOM ? count.toLocaleString("en-US") : "");
    Object.assign(part.style, { flexGrow: count, background: color, color: inkOn(color) });
    if (show(state)) part.addEventListener("click", show(state));
    return hinted(part, words(state, count));
  });
  const legend = counted.map(([state, count]) => {
    const { color, mark } = stateLook(state);
    const swatch = element("span", { class: "swatch" }, mark);
    Object.assign(swatch.style, { background: color, color: inkOn(color) });
    const button = element("button", { type: "button", "aria-label": `${plural(count, "head")} ${state}, ${share(count / total)}: show on the map`, onclick: show(state), disabled: !show(state) }, swatch, element("b", {}, count.toLocaleString("en-US")), ` ${visible(state)}`, element("span", { class: "soft" }, ` ${share(count / total)}`));
    return hinted(button, `${stateLook(state).sentence}${show(state) ? " Click to see these heads on the map." : ""}`);
  });
  return element("div", { class: "states", role: "group", "aria-label": "Heads by state" }, element("div", { class: "state-bar", "aria-hidden": "true" }, parts), element("div", { class: "state-counts" }, legend));
}

function showState(state) {
  view.measure = "state";
  view.filter.state = state;
  drawHeads();
  byId("heads").scrollIntoView({ behavior: "smooth" });
}
