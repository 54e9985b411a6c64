"""`attnscope bench`: measure this library against its peers, on this machine."""

from __future__ import annotations

import json as json_module
from typing import Annotated

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
    from rich.console import Console

    from attnscope.bench.normalizers import measure
    from attnscope.cli.bench_tables import print_normalizers

    report = measure(
        rows,
        whole_numbers("--lengths", lengths),
        repeats,
        None if only is None else only.split(","),
    )
    if json:
        print(json_module.dumps(report))
    else:
        print_normalizers(Console(), report)
    return 0


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
    from rich.console import Console

    from attnscope.bench.scan import measure
    from attnscope.cli.bench_tables import print_scans

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
    )
    if json:
        print(json_module.dumps(report))
    else:
        print_scans(Console(), report)
    return 0


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
    from rich.console import Console

    from attnscope.bench.protocol import measure
    from attnscope.cli.bench_tables import print_protocol

    report = measure(
        length, layers, heads, width, repeats, whole_numbers("--only", only),
    )  # fmt: skip
    if json:
        print(json_module.dumps(report))
    else:
        print_protocol(Console(), report)
    return 0
