"""The results of benchmarks in the terminal: the verdict first, then tables, what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from attnscope.report.terminal import add_row, paragraph, table, titled
from attnscope.results.words import counted, number

_QUICK = 2  # times torch.softmax


def print_normalizers(report: dict[str, Any]) -> None:
    """Print one table for each length."""
    console = Console()
    _print_verdict(console, _speed(report))
    for (length, rows), results in _grouped(report["results"], "length", "rows"):
        headings = ["Normalizer", "Forward seconds", "Forward / softmax", "Both seconds", "Both / softmax"]
        headings += [f"{report['peer']} / ours"] if report["peer"] else []
        made = table([*headings, "Largest error"])
        for result in results:
            add_row(
                made,
                result["normalizer"],
                number(result["forward_seconds"]),
                number(result["forward_ratio"]),
                number(result["total_seconds"]),
                number(result["total_ratio"]),
                *([number(result["peer_speedup"])] if report["peer"] else []),
                f"{result['largest_error']:.0e}",
            )
        console.print(titled(f"{rows:,} rows of {length:,} logits", made))
        console.print()
    note = (
        f"Medians of {counted(report['repeats'], 'repeat')} on {_threads(report)}, float32. Forward / softmax: time of "
        "the weights over that of torch.softmax on the same logits; both: with the gradient; "
        + (f"{report['peer']} / ours: forward time of that package over ours; " if report["peer"] else "")
        + f"largest error: against the definition in float64. {report['memory'][0].upper()}{report['memory'][1:]}."
        + ("" if report["peer"] else " The entmax package is not installed, so nothing is compared with it.")
    )
    console.print(paragraph(note, style="dim"))


def _speed(report: dict[str, Any]) -> str:
    """How the normalizers compare with torch.softmax at the longest length."""
    longest = max(result["length"] for result in report["results"])
    results = [result for result in report["results"] if result["length"] == longest]
    quick = sum(result["forward_ratio"] <= _QUICK for result in results)
    slowest = max(results, key=lambda result: result["forward_ratio"])
    return (
        f"{quick} of {counted(len(results), 'normalizer')} take at most {_QUICK:g} times the time of torch.softmax on "
        f"rows of {longest:,} logits; {slowest['normalizer']} takes the longest, {slowest['forward_ratio']:.1f} times."
    )


def print_scans(report: dict[str, Any]) -> None:
    """Print one table for each model, and what the first scan and the naive way take."""
    console = Console()
    shorter = report["shorter"]
    headings = ["Subject", "Seconds", "Forward seconds", "Time ratio", "Peak MB", "Forward peak MB", "Memory ratio"]
    headings += [] if shorter is None else [f"Peak MB at {shorter:,}", "Growth"]
    _print_verdict(console, _cost(report))
    for (model,), results in _grouped(report["results"], "model"):
        timed = [one for one in results if one["installed"] and one["subject"] != "first"]
        made = table(headings)
        for result in timed:
            heads = f" ({result['heads_timed']} heads timed)" if "heads_timed" in result else ""
            grown = () if shorter is None else (_megabytes(result["shorter_peak_bytes"]), number(result["growth"]))
            add_row(
                made,
                result["subject"] + heads,
                number(result["seconds"]),
                number(result["forward_seconds"]),
                number(result["time_ratio"]),
                _megabytes(result["peak_bytes"]),
                _megabytes(result["forward_peak_bytes"]),
                number(result["memory_ratio"]),
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
    note = (
        f"Ratios are to the model's plain forward pass, measured in the same run on {_threads(report)}. last: the last "
        "row of each length; all: every row; +bounds: with the paper's bounds; first: a scan that compiles its loops; "
        "naive: all attention matrices at once, formulas taken "
        "literally."
    )
    console.print(paragraph(note, style="dim"))


def _cost(report: dict[str, Any]) -> str:
    """How many times a plain forward pass each kind of scan takes, on each model."""
    found = []
    for (model,), results in _grouped(report["results"], "model"):
        scans = [one for one in results if one["installed"] and one["subject"].startswith(("last", "all", "rows="))]
        if scans:
            ratios = ", ".join(f"{one['time_ratio']:.2f} times ({one['subject']})" for one in scans)
            found.append(f"on the {model} model {ratios}")
    return f"compared with a plain forward pass, a scan takes {'; '.join(found)}." if found else "no scan was timed."


def print_protocol(report: dict[str, Any]) -> None:
    """Print one table of all algorithms."""
    console = Console()
    headings = ["Algorithm", "Seconds", "Forward seconds", "Time ratio", "Peak MB", "Paper's seconds", "Times faster"]
    least, most = (round(f(one["times_faster"] for one in report["results"])) for f in (min, max))
    faster = f"{least:,} to {most:,}" if least < most else f"{least:,}"
    _print_verdict(console, f"the paper's algorithms run {faster} times as fast here as the paper states.")
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


def print_monitor(report: dict[str, Any]) -> None:
    """Print the ratios of a watched to a plain training run."""
    console = Console()
    same = "the same bits" if report["identical"] else "NOT the same bits"
    training = report["training"]
    words = f"training takes {training['wall_ratio']:.3f} times as long with a monitor, and does {same}."
    _print_verdict(console, words)
    made = table(["With a monitor / without", "Time", "Middle half", "Processor time"])
    steps = {"A measured step": report["measured_step"], "Another step": report["unmeasured_step"]}
    for name, ratios in steps.items():
        if ratios is not None:
            spread = " to ".join(f"{end:.3f}" for end in ratios["quartiles"])
            add_row(made, name, f"{ratios['wall_ratio']:.3f}", spread, f"{ratios['cpu_ratio']:.3f}")
    name = f"Training, every {report['every']} steps"
    add_row(made, name, f"{training['wall_ratio']:.3f}", "", f"{training['cpu_ratio']:.3f}")
    console.print(made)
    size = report["size"]
    note = (
        f"A GPT-2-like model of {report['parameters'] / 1e6:.1f} million parameters, {size['batch']} items of "
        f"{size['length']:,} tokens, {report['step_seconds']:.2f} s a step on {_threads(report)}; steps with and "
        "without a monitor in turn, medians. Losses, gradients, weights and random state of both are compared. "
    )
    if report["memory_ratio"] is not None:
        note += f"Peak memory of a step, above the loaded model: {report['memory_ratio']:.3f} times."
    console.print(paragraph(note, style="dim"))


def print_scale(report: dict[str, Any]) -> None:
    """Print what workers gain, and what a large run costs."""
    console = Console()
    made = table(["Figure", "Measured", "Goal"])
    verdict, notes = [], []
    if "identical" in report:
        add_row(made, "Speed of 2 workers / 1 worker", f"{report['two_workers_to_one']:.2f}", ">= 1.8")
        add_row(made, "Time of 1 worker / in this process", f"{report['one_worker_to_in_process']:.2f}", "<= 1.05")
        add_row(made, "Equal tables, also after a kill", "yes" if report["identical"] else "NO", "yes")
        same = "the same tables" if report["identical"] else "NOT the same tables"
        verdict.append(f"two workers are {report['two_workers_to_one']:.2f} times as fast as one, with {same}")
        notes.append(
            f"{report['windows']:,} windows of {report['length']:,} tokens, {report['model']}, one thread each; "
            f"medians of {counted(len(report['seconds']), 'round')}."
        )
    if "report_seconds" in report:
        many, ratio = f"{report['many_windows']:,}", report["driver_memory_ratio"]
        add_row(made, f"Driver memory, {many} / 100 windows", "-" if ratio is None else f"{ratio:.2f}", "<= 1.2")
        add_row(made, f"Seconds of the report of {many} windows", f"{report['report_seconds']:.1f}", "<= 60")
        verdict.append(f"{many} windows take {report['many_windows_seconds']:.0f} s")
        notes.append("The large run is that of the embedded model with two workers.")
    _print_verdict(console, "; ".join(verdict) + ".")
    console.print(made)
    console.print(paragraph(" ".join(notes), style="dim"))


def _print_verdict(console: Console, words: str) -> None:
    """Print the result of a benchmark in a sentence."""
    console.print(paragraph(Text.assemble(("Verdict: ", "bold"), words)))
    console.print()


def _grouped(results: Iterable[dict[str, Any]], *keys: str) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """Results with the same values of the keys, which follow each other."""
    return [(key, list(some)) for key, some in groupby(results, lambda one: tuple(one[name] for name in keys))]


def _threads(report: dict[str, Any]) -> str:
    return counted(report["threads"], "thread")


def _megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.0f}"


# The printed form of each report; others are printed as JSON.
TABLES: dict[str, Callable[[dict[str, Any]], None]] = {
    "normalizers": print_normalizers,
    "scan": print_scans,
    "protocol": print_protocol,
    "monitor": print_monitor,
    "scale": print_scale,
}
