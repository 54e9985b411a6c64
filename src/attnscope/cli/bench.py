"""`attnscope bench`: measure this library against its peers, on this machine."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

from attnscope.cli.numbers import WholeNumber, whole_numbers

bench = App(name="bench", help="Measure speed and error against peers, as ratios in one run.")


@bench.command
def normalizers(
    *,
    rows: WholeNumber = 147_456,
    lengths: str = "128,1024,8192",
    repeats: WholeNumber = 5,
    only: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Time every normalizer against torch.softmax, and against the entmax package where it is installed.

    Parameters
    ----------
    rows
        Rows at length 1,024; other lengths get as many as make the same number of logits.
    lengths
        Row lengths to measure, e.g. 128,1024.
    repeats
        Repeats of each measurement; medians are reported.
    only
        The normalizers to measure, e.g. sparsemax,entmax15; all unless given.
    json
        Print one JSON object on standard output and nothing else.
    """
    from attnscope.bench.normalizers import measure

    report = measure(
        rows,
        whole_numbers("--lengths", lengths),
        repeats,
        None if only is None else only.split(","),
        progress=lambda line: print(f"  {line}", file=sys.stderr),
    )
    if json:
        print(json_module.dumps(report))
    else:
        _print_table(report)
    return 0


def _print_table(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"normalizers against torch.softmax, {report['threads']} threads, float32")
    table.add_column("normalizer")
    peer = report["peer"] or "entmax (not installed)"
    for heading in ("length", "rows", "s", "ratio", "s+back", "ratio", f"x {peer}", "error"):
        table.add_column(heading, justify="right")
    for result in report["results"]:
        speedup = result["peer_speedup"]
        table.add_row(
            result["normalizer"],
            f"{result['length']:,}",
            f"{result['rows']:,}",
            f"{result['forward_seconds']:.3f}",
            f"{result['forward_ratio']:.2f}",
            f"{result['total_seconds']:.3f}",
            f"{result['total_ratio']:.2f}",
            "" if speedup is None else f"{speedup:.0f}x",
            f"{result['largest_error']:.0e}",
        )
    Console().print(table)
    print(f"memory: {report['memory']}")


@bench.command
def scan(
    *,
    length: WholeNumber = 1024,
    layers: WholeNumber = 12,
    heads: WholeNumber = 12,
    width: WholeNumber = 768,
    rows: WholeNumber | None = None,
    repeats: WholeNumber = 3,
    only: str | None = None,
    models: str = "random,sample",
    shorter: WholeNumber | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Time scans, the naive way and other capture tools against the model's plain forward pass.

    Parameters
    ----------
    length
        Tokens of the window; --length 16384 --shorter 4096 --layers 4 --rows 64 --only last --models random is the
        long-context case.
    layers
        Layers of the GPT-2-like model with random weights.
    heads
        Heads of a layer.
    width
        Width of the model.
    rows
        Also scan so many rows, spread evenly.
    repeats
        Repeats of each measurement, up to four times as many where they take seconds; medians are reported.
    only
        The subjects to measure, e.g. last,all+bounds, of last, last+bounds, all, all+bounds, first, naive,
        transformer_lens, nnsight; all unless given.
    models
        random: GPT-2-like with random weights, as large as said; sample: the embedded model and text.
    shorter
        Also measure peak memory at this length, and report how it grows.
    json
        Print one JSON object on standard output and nothing else.
    """
    from attnscope.bench.scan import measure

    report = measure(
        length,
        layers,
        heads,
        width,
        rows,
        repeats,
        None if only is None else tuple(only.split(",")),
        tuple(models.split(",")),
        shorter,
        progress=lambda line: print(f"  {line}", file=sys.stderr),
    )
    if json:
        print(json_module.dumps(report))
    else:
        _print_scan_table(report)
    return 0


def _print_scan_table(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"against the plain forward pass, {report['threads']} threads")
    table.add_column("model")
    table.add_column("subject")
    grown = () if report["shorter"] is None else (f"MB at {report['shorter']:,}", "growth")
    for heading in ("s", "forward s", "ratio", "peak MB", "forward MB", "ratio", *grown):
        table.add_column(heading, justify="right")
    for result in report["results"]:
        if not result["installed"]:
            table.add_row(result["model"], result["subject"], "not installed")
            continue
        if result["subject"] == "first":
            table.add_row(result["model"], "first scan, compiling", f"{result['seconds']:.1f}")
            continue
        names = ("peak_bytes", "forward_peak_bytes", "shorter_peak_bytes")
        peaks = ["" if result.get(name) is None else f"{result[name] / 1e6:,.0f}" for name in names]
        growth = () if report["shorter"] is None else (peaks[2], _number(result["growth"]))
        table.add_row(
            result["model"],
            result["subject"] + (f" ({result['heads_timed']} heads timed)" if "heads_timed" in result else ""),
            f"{result['seconds']:.3f}",
            f"{result['forward_seconds']:.3f}",
            f"{result['time_ratio']:.2f}",
            *peaks[:2],
            _number(result["memory_ratio"]),
            *growth,
        )
    Console().print(table)
    for model, ratio in report["naive_over_all"].items():
        if ratio is not None:
            print(f"{model}: the naive way takes {ratio:g} times as long as our scan of all rows")


@bench.command
def protocol(
    *,
    length: WholeNumber = 1024,
    layers: WholeNumber = 12,
    heads: WholeNumber = 12,
    width: WholeNumber = 768,
    repeats: WholeNumber = 3,
    only: str = "1,2,3,4,5",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Time each algorithm of the paper's protocol over all rows, beside the plain forward and the paper's minutes.

    Examples:

        attnscope bench protocol --only 1,2,4,5

        attnscope bench protocol --repeats 1 --json

    Parameters
    ----------
    length
        Tokens of the window, which is the longest length.
    layers
        Layers of the GPT-2-like model with random weights.
    heads
        Heads of a layer.
    width
        Width of the model.
    repeats
        Repeats of each measurement, up to four times as many where they take seconds; medians are reported.
    only
        The algorithms to measure, e.g. 1,3.
    json
        Print one JSON object on standard output and nothing else.
    """
    from attnscope.bench.protocol import measure

    report = measure(
        length, layers, heads, width, repeats, whole_numbers("--only", only),
        progress=lambda line: print(f"  {line}", file=sys.stderr),
    )  # fmt: skip
    if json:
        print(json_module.dumps(report))
    else:
        _print_protocol_table(report)
    return 0


def _print_protocol_table(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"the paper's algorithms over all rows, {report['threads']} threads")
    for heading in ("algorithm", "s", "forward s", "ratio", "peak MB", "paper s", "times faster"):
        table.add_column(heading, justify="right")
    for result in report["results"]:
        peak = result["peak_bytes"]
        table.add_row(
            str(result["algorithm"]),
            f"{result['seconds']:.1f}",
            f"{result['forward_seconds']:.2f}",
            f"{result['time_ratio']:.1f}",
            "" if peak is None else f"{peak / 1e6:,.0f}",
            f"{result['paper_seconds']:,.0f}",
            f"{result['times_faster']:g}",
        )
    Console().print(table)
    print(f"the paper's times: {report['paper_machine']}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
