"""The claims as a table for people: Markdown."""

from __future__ import annotations

from typing import Any

FORMS = ("printed", "corrected")
READINGS = {"kept": "all keys", "dropped": "without the first key"}


def claims_table(claims: list[dict[str, Any]], vectors: str | None = None, first_key: str = "kept") -> str:
    """One line a claim under one reading: what was measured and what follows, printed and corrected; then in all."""
    lines = [
        "| claim | place | printed form: measured | | corrected form: measured | | in all |",
        "|---|---|---|---|---|---|---|",
    ]
    for claim in claims:
        cells = []
        for form in FORMS:
            reading = find(claim, form, vectors, first_key)
            cells += [numbers(reading["measured"]), told(reading)] if reading else ["the same", "-"]
        verdict = claim["verdict"] + (f" on {', '.join(claim['depends_on'])}" if claim["depends_on"] else "")
        lines.append(f"| {_bars(claim['claim'])} | {claim['place']} | {' | '.join(map(_bars, cells))} | {verdict} |")
    return "\n".join(lines) + "\n"


def readings_table(claims: list[dict[str, Any]], vectors: list[str]) -> str:
    """One line a claim and form, one column for each kind of vectors with and without the first key."""
    columns = [(kind, key) for kind in vectors for key in READINGS]
    lines = [
        "| claim | form | " + " | ".join(f"{kind}, {READINGS[key]}" for kind, key in columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for claim in claims:
        for form in FORMS:
            found = [find(claim, form, *column) for column in columns]
            if any(found):
                cells = " | ".join(_short(reading) for reading in found)
                lines.append(f"| {claim['id']} | {form} | {cells} |")
    return "\n".join(lines) + "\n"


def find(claim: dict[str, Any], form: str, vectors: str | None, first_key: str) -> dict[str, Any] | None:
    """A claim's reading; the first kind of vectors if none is named."""
    wanted = (
        one
        for one in claim["readings"]
        if one["form"] == form and one["first_key"] == first_key and vectors in (None, one["vectors"])
    )
    return next(wanted, None)


def numbers(measured: list[dict[str, Any]]) -> str:
    """The measurements of a form in a few words: one in full, several by their first three."""
    if not measured:
        return "not measured"
    if len(measured) == 1:
        return f"{measured[0]['name']}: {value(measured[0])}"
    more = "; ..." if len(measured) > 3 else ""
    return "; ".join(f"{one['name']}: {one['value']:.3g}" for one in measured[:3]) + more


def value(measured: dict[str, Any]) -> str:
    """A number with its interval, if it has one."""
    if measured["interval"] is None:
        return f"{measured['value']:.3g} (one window)"
    low, high = measured["interval"]
    return f"{measured['value']:.3g} ({low:.3g} to {high:.3g})"


def told(reading: dict[str, Any]) -> str:
    """A verdict, with the N, eps or T that decided it where it does not hold at all of them."""
    verdict = reading["verdict"] or "-"
    if verdict == "depends":
        return f"depends on {', '.join(reading['depends_on'])}"
    failed = reading["fails_at"]
    return f"{verdict} at {_list(failed)}" if failed and reading["holds_at"] else verdict


def _short(reading: dict[str, Any] | None) -> str:
    if reading is None or not reading["measured"]:
        return "not measured"
    values = [f"{one['value']:.3g}" for one in reading["measured"]]
    return f"{reading['verdict']}: {', '.join(values[:3])}{', ...' if len(values) > 3 else ''}"


def _list(places: list[str]) -> str:
    """N = 16, N = 32 as N = 16, 32."""
    names = [place.split(" = ") for place in places]
    if all(len(name) == 2 and name[0] == names[0][0] for name in names):
        return f"{names[0][0]} = {', '.join(name[1] for name in names)}"
    return ", ".join(places)


def _bars(text: str) -> str:
    """Vertical bars would end a cell."""
    for inner in ("alpha_i x_i", "alpha x"):
        text = text.replace(f"|{inner}|", f"\u2016{inner}\u2016")
    return text
