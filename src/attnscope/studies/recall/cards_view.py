"""A scorecard in the terminal: a column for each normalizer."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from attnscope.report.terminal import paragraph, tables, titled


def print_scorecard(console: Console, data: dict[str, Any]) -> None:
    """Print the most important lines: a row for each normalizer."""
    cards = data["cards"]
    headings = ["Normalizer", "Lipschitz at 64", "at 16,384"]
    first = [line for line in cards[0]["selectivity"] if line["logits"] in ("gapped", "real")]
    wanted = [(line["logits"], line["length"]) for line in (first[1], first[-1])]
    for kind, length in wanted:
        headings += [f"Top weight {kind} {length:,}", f"Share of limit {kind} {length:,}"]
    headings += ["Forward / softmax", "Both / softmax"]
    rows = []
    for card in cards:
        by_rows = {(line["logits"], line["length"]): line for line in card["selectivity"]}
        cells = [_number(card["bounds"][i]["lipschitz"], "none") for i in (0, -1)]
        for key in wanted:
            cells += [_number(by_rows[key]["max_weight"]), _number(by_rows[key]["share_of_limit"])]
        speed = card["speed"]
        rows.append([card["normalizer"], *cells, f"{speed['forward_ratio']:.2f}", f"{speed['total_ratio']:.2f}"])
    console.print(titled("Scorecard", *tables(headings, rows, console.width)))
    console.print(
        paragraph(
            "Share of limit: top weight over the largest that Theorem S allows at the same Lipschitz constant, on the "
            "same logits. gapped: one key 2 above Gaussian logits; real: the sample model's own.",
            style="dim",
        )
    )


def _number(value: float | None, missing: str = "-") -> str:
    return missing if value is None else f"{value:.3g}"
