"""The results of benchmarks in the terminal: the verdict first, then tables, what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from attnscope.show.blocks import Block, Note, Table, Verdict
from attnscope.show.numbers import counted, number

_QUICK = 2  # times torch.softmax


def normalizers(report: dict[str, Any]) -> list[Block]:
    """One table for each length."""
    found: list[Block] = [Verdict(_speed(report))]
    for (length, rows), results in _grouped(report["results"], "length", "rows"):
        headings = ["Normalizer", "Forward seconds", "Forward / softmax", "Both seconds", "Both / softmax"]
        headings += [f"{report['peer']} / ours"] if report["peer"] else []
        lines = [
            [
                result["normalizer"],
                number(result["forward_seconds"]),
                number(result["forward_ratio"]),
                number(result["total_seconds"]),
                number(result["total_ratio"]),
                *([number(result["peer_speedup"])] if report["peer"] else []),
                f"{result['largest_error']:.0e}",
            ]
            for result in results
        ]
        found.append(Table([*headings, "Largest error"], lines, f"{rows:,} rows of {length:,} logits"))
    note = (
        f"Medians of {counted(report['repeats'], 'repeat')} on {_threads(report)}, float32. Forward / softmax: time of "
        "the weights over that of torch.softmax on the same logits; both: with the gradient; "
        + (f"{report['peer']} / ours: forward time of that package over ours; " if report["peer"] else "")
        + f"largest error: against the definition in float64. {report['memory'][0].upper()}{report['memory'][1:]}."
        + ("" if report["peer"] else " The entmax package is not installed, so nothing is compared with it.")
    )
    return [*found, Note(note, "soft")]


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


def scans(report: dict[str, Any]) -> list[Block]:
    """One table for each model, and what the first scan and the naive way take."""
    shorter = report["shorter"]
    headings = ["Subject", "Seconds", "Forward seconds", "Time ratio", "Peak MB", "Forward peak MB", "Memory ratio"]
    headings += [] if shorter is None else [f"Peak MB at {shorter:,}", "Growth"]
    found: list[Block] = [Verdict(_cost(report))]
    for (model,), results in _grouped(report["results"], "model"):
        timed = [one for one in results if one["installed"] and one["subject"] != "first"]
        lines = []
        for result in timed:
            heads = f" ({result['heads_timed']} heads timed)" if "heads_timed" in result else ""
            grown = () if shorter is None else (_megabytes(result["shorter_peak_bytes"]), number(result["growth"]))
            lines.append(
                [
                    result["subject"] + heads,
                    number(result["seconds"]),
                    number(result["forward_seconds"]),
                    number(result["time_ratio"]),
                    _megabytes(result["peak_bytes"]),
                    _megabytes(result["forward_peak_bytes"]),
                    number(result["memory_ratio"]),
                    *grown,
                ]
            )
        notes = [
            f"The first scan on a machine, which compiles its loops: {result['seconds']:.1f} s."
            for result in results
            if result["subject"] == "first"
        ]
        missing = [one["subject"] for one in results if not one["installed"]]
        notes += [f"Not installed: {', '.join(missing)}."] if missing else []
        naive = report["naive_over_all"].get(model)
        if naive is not None:
            notes.append(f"The naive way takes {naive:g} times as long as a scan of all rows with the paper's bounds.")
        table = Table(headings, lines, f"The {model} model", notes=notes, narrow=10)
        found += [table] if timed else [Note(note) for note in notes]
    note = (
        f"Ratios are to the model's plain forward pass, measured in the same run on {_threads(report)}. last: the last "
        "row of each length; all: every row; +bounds: with the paper's bounds; first: a scan that compiles its loops; "
        "naive: all attention matrices at once, formulas taken literally."
    )
    return [*found, Note(note, "soft")]


def _cost(report: dict[str, Any]) -> str:
    """How many times a plain forward pass each kind of scan takes, on each model."""
    found = []
    for (model,), results in _grouped(report["results"], "model"):
        scans = [one for one in results if one["installed"] and one["subject"].startswith(("last", "all", "rows="))]
        if scans:
            ratios = ", ".join(f"{one['time_ratio']:.2f} times ({one['subject']})" for one in scans)
            found.append(f"on the {model} model {ratios}")
    return f"compared with a plain forward pass, a scan takes {'; '.join(found)}." if found else "no scan was timed."


def protocol(report: dict[str, Any]) -> list[Block]:
    """One table of all algorithms."""
    headings = ["Algorithm", "Seconds", "Forward seconds", "Time ratio", "Peak MB", "Paper's seconds", "Times faster"]
    least, most = (round(f(one["times_faster"] for one in report["results"])) for f in (min, max))
    faster = f"{least:,} to {most:,}" if least < most else f"{least:,}"
    lines = [
        [
            f"{result['algorithm']} {result['measures']}",
            number(result["seconds"]),
            number(result["forward_seconds"]),
            number(result["time_ratio"]),
            _megabytes(result["peak_bytes"]),
            number(result["paper_seconds"]),
            number(result["times_faster"]),
        ]
        for result in report["results"]
    ]
    note = (
        f"The paper's algorithms over all rows of one window of {report['size']['length']:,} tokens, on "
        f"{_threads(report)}; the paper's seconds are those of its appendix, on {report['paper_machine']}."
    )
    verdict = f"the paper's algorithms run {faster} times as fast here as the paper states."
    return [Verdict(verdict), Table(headings, lines, notes=[note], narrow=20)]


def monitor(report: dict[str, Any]) -> list[Block]:
    """The ratios of a watched to a plain training run."""
    same = "the same bits" if report["identical"] else "NOT the same bits"
    training = report["training"]
    lines = []
    steps = {"A measured step": report["measured_step"], "Another step": report["unmeasured_step"]}
    for name, ratios in steps.items():
        if ratios is not None:
            spread = " to ".join(f"{end:.3f}" for end in ratios["quartiles"])
            lines.append([name, f"{ratios['wall_ratio']:.3f}", spread, f"{ratios['cpu_ratio']:.3f}"])
    name = f"Training, every {report['every']} steps"
    lines.append([name, f"{training['wall_ratio']:.3f}", "", f"{training['cpu_ratio']:.3f}"])
    size = report["size"]
    note = (
        f"A GPT-2-like model of {report['parameters'] / 1e6:.1f} million parameters, {size['batch']} items of "
        f"{size['length']:,} tokens, {report['step_seconds']:.2f} s a step on {_threads(report)}; steps with and "
        "without a monitor in turn, medians. Losses, gradients, weights and random state of both are compared. "
    )
    if report["memory_ratio"] is not None:
        note += f"Peak memory of a step, above the loaded model: {report['memory_ratio']:.3f} times."
    verdict = f"training takes {training['wall_ratio']:.3f} times as long with a monitor, and does {same}."
    headings = ["With a monitor / without", "Time", "Middle half", "Processor time"]
    return [Verdict(verdict), Table(headings, lines, notes=[note])]


def scale(report: dict[str, Any]) -> list[Block]:
    """What workers gain, and what a large run costs."""
    lines, verdict, notes = [], [], []
    if "identical" in report:
        lines.append(["Speed of 2 workers / 1 worker", f"{report['two_workers_to_one']:.2f}", ">= 1.8"])
        lines.append(["Time of 1 worker / in this process", f"{report['one_worker_to_in_process']:.2f}", "<= 1.05"])
        lines.append(["Equal tables, also after a kill", "yes" if report["identical"] else "NO", "yes"])
        same = "the same tables" if report["identical"] else "NOT the same tables"
        verdict.append(f"two workers are {report['two_workers_to_one']:.2f} times as fast as one, with {same}")
        notes.append(
            f"{report['windows']:,} windows of {report['length']:,} tokens, {report['model']}, one thread each; "
            f"medians of {counted(len(report['seconds']), 'round')}."
        )
    if "report_seconds" in report:
        many, ratio = f"{report['many_windows']:,}", report["driver_memory_ratio"]
        lines.append([f"Driver memory, {many} / 100 windows", "-" if ratio is None else f"{ratio:.2f}", "<= 1.2"])
        lines.append([f"Seconds of the report of {many} windows", f"{report['report_seconds']:.1f}", "<= 60"])
        verdict.append(f"{many} windows take {report['many_windows_seconds']:.0f} s")
        notes.append("The large run is that of the embedded model with two workers.")
    return [Verdict("; ".join(verdict) + "."), Table(["Figure", "Measured", "Goal"], lines, notes=notes)]


def _grouped(results: Iterable[dict[str, Any]], *keys: str) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """Results with the same values of the keys, which follow each other."""
    return [(key, list(some)) for key, some in groupby(results, lambda one: tuple(one[name] for name in keys))]


def _threads(report: dict[str, Any]) -> str:
    return counted(report["threads"], "thread")


def _megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.0f}"


# What each report shows; others are printed as JSON.
TABLES: dict[str, Callable[[dict[str, Any]], list[Block]]] = {
    "normalizers": normalizers,
    "scan": scans,
    "protocol": protocol,
    "monitor": monitor,
    "scale": scale,
}
