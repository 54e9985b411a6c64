"""`attnscope bench`: measure this library against its peers, on this machine."""

from __future__ import annotations

import json as json_module

from cyclopts import App

from attnscope.cli.numbers import WholeNumber, whole_numbers
from attnscope.cli.runs import JsonOption, ModelOption

bench = App(
    name="bench",
    help="Measure the speed of normalizers, scans, the protocol, the training monitor and workers on this machine.",
    help_epilogue="",
)


@bench.command
def normalizers(
    *,
    rows: WholeNumber = 147_456,
    lengths: str = "128,1024,8192",
    repeats: WholeNumber = 5,
    only: str | None = None,
    json: JsonOption = False,
) -> int:
    """Time every normalizer against torch.softmax, and against the entmax package where it is installed.

    For example:

    - `attnscope bench normalizers`
    - `attnscope bench normalizers --only sparsemax,entmax:alpha=1.2 --repeats 3`

    Parameters
    ----------
    rows
        Rows at length 1,024; other lengths get as many as make the same number of logits.
    lengths
        Row lengths to measure, e.g. 128,1024.
    repeats
        Repeats of each measurement; medians are reported.
    only
        The normalizers to measure, e.g. sparsemax,entmax:alpha=1.2. Default: all.
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
    json: JsonOption = False,
) -> int:
    """Time scans, the naive way and other capture tools against the model's plain forward pass.

    For example:

    - `attnscope bench scan --only last,all`
    - `attnscope bench scan --length 16384 --shorter 4096 --layers 4 --rows 64 --only last --models random`

    Parameters
    ----------
    length
        Tokens in the window.
    layers
        Layers of the GPT-2-like model with random weights.
    heads
        Heads of a layer.
    width
        Width of the model.
    rows
        Also scan this many rows, spread evenly.
    repeats
        Repeats of each measurement, up to four times as many where they take seconds; medians are reported.
    only
        What to measure: last, last+bounds, all, all+bounds, first, naive, transformer_lens or nnsight, or several of
        them separated by commas. Default: all.
    models
        random: a GPT-2-like model with random weights, of the size given; sample: the embedded model and text.
    shorter
        Also measure peak memory at this length, and report how it grows.
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
    json: JsonOption = False,
) -> int:
    """Time each algorithm of the paper's protocol, against the plain forward pass and the paper's own time.

    For example:

    - `attnscope bench protocol --only 1,2,4,5`
    - `attnscope bench protocol --repeats 1 --json`

    Parameters
    ----------
    length
        Tokens in the window, which is the longest length.
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


@bench.command
def monitor(
    *,
    length: WholeNumber = 512,
    layers: WholeNumber = 6,
    heads: WholeNumber = 6,
    width: WholeNumber = 384,
    batch: WholeNumber = 4,
    every: WholeNumber = 50,
    steps: WholeNumber = 100,
    measured: WholeNumber = 15,
    json: JsonOption = False,
) -> int:
    """Time training steps with and without `attnscope.Monitor`, and check that both do the same.

    For example:

    - `attnscope bench monitor`
    - `attnscope bench monitor --steps 300 --json`

    Parameters
    ----------
    length
        Tokens of each item.
    layers
        Layers of the GPT-2-like model with random weights.
    heads
        Heads of a layer.
    width
        Width of the model.
    batch
        Items of a batch.
    every
        The monitor measures the first step and every one with a multiple of this number.
    steps
        Steps that are timed in this way, with and without the monitor in turn.
    measured
        Steps that are timed after them, all of them measured.
    """
    from rich.console import Console

    from attnscope.bench.monitor import measure
    from attnscope.cli.bench_tables import print_monitor

    report = measure(length, layers, heads, width, batch, every, steps, measured)
    if json:
        print(json_module.dumps(report))
    else:
        print_monitor(Console(), report)
    return 0


@bench.command
def scale(
    model: ModelOption = None,
    /,
    *,
    length: WholeNumber = 256,
    windows: WholeNumber = 64,
    many: WholeNumber = 10_000,
    repeats: WholeNumber = 3,
    only: str = "speed,memory",
    json: JsonOption = False,
) -> int:
    """Time scans with two Ray workers, one, and none, compare their tables, and measure the driver of a large run.

    Every worker has one thread, and so has the scan without workers. Needs the extra attnscope[ray].

    For example:

    - `attnscope bench scale model.gguf --json`
    - `attnscope bench scale --only memory --many 2000`

    Parameters
    ----------
    length
        Tokens in a window of the scans that are timed.
    windows
        How many windows they have.
    many
        Short windows of the large run, with the embedded model; its memory is compared with that of 100 windows.
    repeats
        How often the scans are timed, in turn; medians of ratios are reported.
    only
        speed: time, and whether tables are equal, also after a kill; memory: the large run and its report.
    """
    from rich.console import Console

    from attnscope.bench.scale import measure
    from attnscope.cli.bench_tables import print_scale

    report = measure(model, length, windows, many, repeats, tuple(only.split(",")))
    if json:
        print(json_module.dumps(report))
    else:
        print_scale(Console(), report)
    return 0
