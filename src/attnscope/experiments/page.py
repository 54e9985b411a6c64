"""The claims as a table for people: Markdown."""

from __future__ import annotations

from typing import Any

READING = {"kept": "", "dropped": " without the first key"}


def claims_table(claims: list[dict[str, Any]]) -> str:
    """One line a claim; the first reading's numbers stand for the printed and the corrected form."""
    lines = [
        "| claim | place | printed form: measured | | corrected form: measured | | in all |",
        "|---|---|---|---|---|---|---|",
    ]
    for claim in claims:
        cells = []
        for form in ("printed", "corrected"):
            reading = next((one for one in claim["readings"] if one["form"] == form), None)
            cells += [numbers(reading["measured"]) if reading else "the same", claim[form] or "-"]
        verdict = claim["verdict"] + (f" on {', '.join(claim['depends_on'])}" if claim["depends_on"] else "")
        lines.append(
            f"| {claim['claim']} | {claim['place']} | {' | '.join(cells)} | {verdict} |".replace(
                "|alpha_i x_i|", "‖alpha_i x_i‖"
            ).replace("|alpha x|", "‖alpha x‖")
        )
    return "\n".join(lines) + "\n"


def numbers(measured: list[dict[str, Any]]) -> str:
    """The measurements of a form in a few words: one in full, several by their range."""
    if not measured:
        return "not measured"
    first = measured[0]
    if len(measured) == 1:
        low, high = first["interval"]
        return f"{first['name']}: {first['value']:.3g} ({low:.3g} to {high:.3g})"
    return "; ".join(f"{one['name']}: {one['value']:.3g}" for one in measured[:3]) + (
        "; ..." if len(measured) > 3 else ""
    )
