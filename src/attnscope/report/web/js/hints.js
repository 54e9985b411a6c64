// Explanations: one plain sentence for each word, on hover and on focus.

function showHint(target, text) {
  const hint = byId("hint");
  hint.textContent = text;
  hint.hidden = false;
  const box = target.getBoundingClientRect();
  const width = Math.min(340, document.documentElement.clientWidth - 16);
  hint.style.maxWidth = `${width}px`;
  const left = Math.min(Math.max(8, box.left), document.documentElement.clientWidth - hint.offsetWidth - 8);
  const below = box.bottom + 8 + hint.offsetHeight < innerHeight;
  hint.style.left = `${left + scrollX}px`;
  hint.style.top = `${(below ? box.bottom + 6 : box.top - hint.offsetHeight - 6) + scrollY}px`;
}

function hideHint() {
  byId("hint").hidden = true;
}

/** Show a hint for an element while it is pointed at or focused. */
function hinted(made, text) {
  const show = () => showHint(made, typeof text === "function" ? text() : text);
  made.addEventListener("pointerenter", show);
  made.addEventListener("focus", show);
  made.addEventListener("pointerleave", hideHint);
  made.addEventListener("blur", hideHint);
  return made;
}

/** A word with its explanation. */
function term(text, explanation) {
  if (!explanation) return element("span", {}, text);
  return hinted(element("span", { class: "term", tabindex: "0", "aria-description": explanation }, text), explanation);
}

function measureTerm(name) {
  // Of two runs, one may be diagnosed and know more measures than the other.
  const measure = runs.map((run) => run.data.measures[name]).find(Boolean);
  return term(measure.label, measure.sentence);
}

/** The look and meaning of a state; a state that this page does not know is grey. */
function stateLook(state) {
  return runs.map((run) => run.data.states?.[state]).find(Boolean) ?? { color: "#9aa0a6", mark: "?", sentence: "" };
}

function stateBadge(state, count) {
  const look = stateLook(state);
  const badge = element("span", { class: "badge", tabindex: "0", "aria-description": look.sentence });
  badge.style.background = look.color;
  badge.style.color = inkOn(look.color);
  badge.append(`${look.mark} ${visible(state)}${count === undefined ? "" : ` ${count}`}`);
  return hinted(badge, look.sentence);
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideHint();
});
