"""The results of benchmarks in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from attnscope.report.terminal import add_row, paragraph, table, titled
from attnscope.results.words import counted, number

if TYPE_CHECKING:
    from rich.console import Console


def print_normalizers(console: Console, report: dict[str, Any]) -> None:
    """Print one table for each length."""
    for (length, rows), results in _grouped(report["results"], "length", "rows"):
        headings = ["Normalizer", "forward seconds", "forward / softmax", "both seconds", "both / softmax"]
        headings += [f"{report['peer']} / ours"] if report["peer"] else []
        made = table([*headings, "largest error"])
        for result in results:
            faster = "" if result["peer_speedup"] is None else number(result["peer_speedup"])
            add_row(
                made,
                result["normalizer"],
                number(result["forward_seconds"]),
                number(result["forward_ratio"]),
                number(result["total_seconds"]),
                number(result["total_ratio"]),
                *([faster] if report["peer"] else []),
                f"{result['largest_error']:.0e}",
            )
        console.print(titled(f"{rows:,} rows of {length:,} logits", made))
        console.print()
    note = (
        f"Medians of {counted(report['repeats'], 'repeat')} on {_threads(report)}, float32. forward / softmax: time of "
        "the weights over that of torch.softmax on the same logits; both: with the gradient; "
        + (f"{report['peer']} / ours: forward time of that package over ours; " if report["peer"] else "")
        + f"largest error: against the definition in float64. {report['memory'][0].upper()}{report['memory'][1:]}."
    )
    console.print(paragraph(note, style="dim"))
    if not report["peer"]:
        console.print(paragraph("The entmax package is not installed, so nothing is compared with it.", style="dim"))


def print_scans(console: Console, report: dict[str, Any]) -> None:
    """Print one table for each model, and what the first scan and the naive way take."""
    shorter = report["shorter"]
    headings = ["Subject", "seconds", "forward seconds", "time ratio", "peak MB", "forward peak MB", "memory ratio"]
    headings += [] if shorter is None else [f"peak MB at {shorter:,}", "growth"]
    for (model,), results in _grouped(report["results"], "model"):
        timed = [one for one in results if one["installed"] and one["subject"] != "first"]
        made = table(headings)
        for result in timed:
            heads = f" ({result['heads_timed']} heads timed)" if "heads_timed" in result else ""
            grown = () if shorter is None else (_megabytes(result["shorter_peak_bytes"]), _ratio(result["growth"]))
            add_row(
                made,
                result["subject"] + heads,
                number(result["seconds"]),
                number(result["forward_seconds"]),
                number(result["time_ratio"]),
                _megabytes(result["peak_bytes"]),
                _megabytes(result["forward_peak_bytes"]),
                _ratio(result["memory_ratio"]),
                *grown,
            )
        if timed:
            console.print(titled(f"The {model} model", made))
        for result in results:
            if result["subject"] == "first":
                words = f"The first scan on a machine, which compiles its loops: {result['seconds']:.1f} s."
                console.print(paragraph(words))
        missing = [one["subject"] for one in results if not one["installed"]]
        if missing:
            console.print(paragraph(f"Not installed: {', '.join(missing)}.", style="dim"))
        naive = report["naive_over_all"].get(model)
        if naive is not None:
            words = f"The naive way takes {naive:g} times as long as a scan of all rows with the paper's bounds."
            console.print(paragraph(words))
        console.print()
    note = f"Ratios are to the model's plain forward pass, measured in the same run on {_threads(report)}."
    console.print(paragraph(note, style="dim"))


def print_protocol(console: Console, report: dict[str, Any]) -> None:
    """Print one table of all algorithms."""
    headings = ["Algorithm", "seconds", "forward seconds", "time ratio", "peak MB", "paper's seconds", "times faster"]
    made = table(headings)
    for result in report["results"]:
        add_row(
            made,
            f"{result['algorithm']} {result['measures']}",
            number(result["seconds"]),
            number(result["forward_seconds"]),
            number(result["time_ratio"]),
            _megabytes(result["peak_bytes"]),
            number(result["paper_seconds"]),
            number(result["times_faster"]),
        )
    console.print(made)
    note = (
        f"The paper's algorithms over all rows of one window of {report['size']['length']:,} tokens, on "
        f"{_threads(report)}; the paper's seconds are those of its appendix, on {report['paper_machine']}."
    )
    console.print(paragraph(note, style="dim"))


def _grouped(results: Iterable[dict[str, Any]], *keys: str) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """Results with the same values of the keys, which follow each other."""
    return [(key, list(some)) for key, some in groupby(results, lambda one: tuple(one[name] for name in keys))]


def _threads(report: dict[str, Any]) -> str:
    return counted(report["threads"], "thread")


def _megabytes(count: float | None) -> str:
    return "" if count is None else f"{count / 1e6:,.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else number(value)
