// Explanations and numbers: on hover, on touch and on focus.

/** Show words at an element, or at a box in the window. */
function showHint(target, text) {
  const hint = byId("hint");
  hint.textContent = text;
  hint.hidden = false;
  const box = target instanceof Element ? target.getBoundingClientRect() : target;
  const room = document.documentElement.clientWidth;
  hint.style.maxWidth = `${Math.min(360, room - 16)}px`;
  const left = Math.min(Math.max(8, box.left), room - hint.offsetWidth - 8);
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

addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideHint();
});
