"""Markdown tables of the evaluated claims."""

from __future__ import annotations

from typing import Any

FORMS = ("printed", "corrected")


def claims_table(claims: list[dict[str, Any]], vectors: str | None = None, first_key: str = "kept") -> str:
    """One line per claim: measurements and verdicts of its printed and corrected form, then the overall verdict.

    `vectors` (default: the first kind) and `first_key` choose the reading of the two forms.
    """
    lines = [
        "| claim | place | printed form: measured | | corrected form: measured | | overall |",
        "|---|---|---|---|---|---|---|",
    ]
    for claim in claims:
        cells = []
        for form in FORMS:
            reading = find(claim, form, vectors, first_key)
            cells += [numbers(reading["measured"]), verdict_text(reading)] if reading else ["the same", "-"]
        verdict = claim["verdict"] + (f" on {', '.join(claim['depends_on'])}" if claim["depends_on"] else "")
        verdict += f"; {claim['disagreement']}" if claim.get("disagreement") else ""
        lines.append(f"| {_bars(claim['claim'])} | {claim['place']} | {' | '.join(map(_bars, cells))} | {verdict} |")
    return "\n".join(lines) + "\n"


def find(claim: dict[str, Any], form: str, vectors: str | None, first_key: str) -> dict[str, Any] | None:
    """The reading of a claim for a form, kind of vectors (default: the first) and treatment of the first key."""
    matching = (
        one
        for one in claim["readings"]
        if one["form"] == form and one["first_key"] == first_key and vectors in (None, one.get("vectors"))
    )
    return next(matching, None)


def numbers(measured: list[dict[str, Any]]) -> str:
    """The measurements of a form as text: a single one with its interval, else the first three values."""
    if not measured:
        return "not measured"
    if len(measured) == 1:
        return f"{measured[0]['name']}: {value(measured[0])}"
    more = "; ..." if len(measured) > 3 else ""
    return "; ".join(f"{one['name']}: {one['value']:.3g}" for one in measured[:3]) + more


def value(measured: dict[str, Any]) -> str:
    """The value of a measurement with its interval."""
    if measured["interval"] is None:
        return f"{measured['value']:.3g} (one window)"
    low, high = measured["interval"]
    return f"{measured['value']:.3g} ({low:.3g} to {high:.3g})"


def verdict_text(reading: dict[str, Any]) -> str:
    """The verdict of a reading, with what it depends on or the N, eps or T at which the claim fails."""
    verdict = reading["verdict"] or "-"
    if verdict == "depends":
        return f"depends on {', '.join(reading['depends_on'])}"
    failed = reading["fails_at"]
    return f"{verdict} at {_list(failed)}" if failed and reading["holds_at"] else verdict


def _list(conditions: list[str]) -> str:
    """The conditions joined by commas, "N = 16, N = 32" shortened to "N = 16, 32"."""
    pairs = [condition.split(" = ") for condition in conditions]
    if all(len(pair) == 2 and pair[0] == pairs[0][0] for pair in pairs):
        return f"{pairs[0][0]} = {', '.join(pair[1] for pair in pairs)}"
    return ", ".join(conditions)


def _bars(text: str) -> str:
    """The text with the bars of norms replaced, which would end a table cell."""
    for inner in ("alpha_i x_i", "alpha x"):
        text = text.replace(f"|{inner}|", f"\u2016{inner}\u2016")
    return text
