"""`attnscope recall`: train small models with each normalizer at a short length, and test them far beyond."""

from __future__ import annotations

import json as json_module
import math
import sys
from contextlib import redirect_stdout
from pathlib import Path

from attnscope.cli.numbers import WholeNumber, decimals, whole_numbers
from attnscope.cli.runs import Flag, JsonOption, OutOption
from attnscope.errors import InputError, shown


def recall(
    *,
    normalizers: str | None = None,
    tasks: str | None = None,
    positions: str | None = None,
    qk_norm: str | None = None,
    budgets: str | None = None,
    seeds: WholeNumber | None = None,
    first_seed: WholeNumber | None = None,
    length_ratios: str | None = None,
    examples: WholeNumber | None = None,
    effort: float | None = None,
    learning_rates: str | None = None,
    quick: Flag = False,
    workers: WholeNumber | None = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> int:
    """Train small models with each normalizer at a short length, and test them at up to 64 times that length.

    Writes recall.parquet (each seed), summary.parquet (means with intervals), run.json and a picture of accuracy
    against Jacobian budget. The same command with the same --out resumes an interrupted run, and trains only what is
    new.

    For example:

    - `attnscope recall --quick`
    - `attnscope recall --quick --normalizers softmax,ssmax,entmax15,lipmax --first-seed 100`
    - `attnscope recall --tasks needle --budgets none,1.5,3,6,12 --seeds 5 --out runs/budgets`
    - `attnscope recall --tasks lookback --positions none,rope,alibi --qk-norm on,off --budgets none`

    Parameters
    ----------
    normalizers
        Names with optional settings, or file.py:Class, separated by commas. Named without settings, a normalizer learns
        its parameters. Default: all that can be trained; with --quick six of them.
    tasks
        Of max, needle, needles, mean, lookback and mqar. Default: all; with --quick max, needle and mean.
    positions
        Position encodings to cross with: none, rope, alibi. Default: none, or rope where a task needs positions.
    qk_norm
        on, off or on,off: whether queries and keys are normalized. Default: on.
    budgets
        Bounds on the Jacobian norm, e.g. none,3,12. They need QK-norm. Default: none,1.5,3,6,12; with --quick
        none,1.5,6.
    seeds
        How many models of each kind. Default: 5; with --quick 3.
    first_seed
        The first seed; the others follow it.
    length_ratios
        Tested lengths as multiples of the training length. Default: 1,4,16,64; with --quick 1,16,64.
    examples
        Test examples of each length and seed; an eighth of them for mqar. Default: 1024; with --quick 512.
    effort
        Factor on the training steps of each task.
    learning_rates
        The one with the smallest validation loss is taken for each setting. Default: 0.003,0.01,0.03.
    quick
        Fewer tasks, budgets, normalizers and seeds: less than 10 minutes on two free cores.
    workers
        Processes that train at the same time. Default: one for each core.
    out
        Folder for the results. Default: runs/recall, or runs/recall-quick.
    """
    from rich.console import Console

    from attnscope.cli.closing import command_line, print_closing
    from attnscope.studies.recall.running import QUICK, Plan, changed
    from attnscope.studies.recall.running import recall as train_and_test
    from attnscope.studies.recall.summary import PICTURE, draw_picture
    from attnscope.studies.recall.view import print_recall

    plan = changed(
        QUICK if quick else Plan(),
        normalizers=_names(normalizers),
        tasks=_names(tasks),
        positions=_names(positions),
        qk_norm=None if qk_norm is None else tuple(_switch(word) for word in qk_norm.split(",")),
        budgets=None if budgets is None else tuple(_budget(word) for word in budgets.split(",")),
        seeds=seeds,
        first_seed=first_seed,
        length_ratios=None if length_ratios is None else tuple(whole_numbers("--length-ratios", length_ratios)),
        examples=examples,
        effort=effort,
        learning_rates=None if learning_rates is None else tuple(decimals("--learning-rates", learning_rates)),
    )
    folder = out or Path("runs") / ("recall-quick" if quick else "recall")
    try:
        with redirect_stdout(sys.stderr):  # standard output is for the result, whatever a user's class prints
            result = train_and_test(plan, out=folder, workers=workers)
    except KeyboardInterrupt:
        print("attnscope: what is finished is saved; repeat the command to resume", file=sys.stderr)
        raise
    pictures = draw_picture(folder, result.summary)
    files = ["recall.parquet", "summary.parquet", "run.json", *pictures]
    if json:
        paths = {name: str(folder / name) for name in files}
        print(json_module.dumps({"run": result.run, "files": paths, "summary": result.summary.to_dicts()}))
        return 0
    console = Console()
    print_recall(console, result.summary)
    card = command_line("scorecard", *plan.normalizers[:3], recall=folder)
    commands = {card: "Everything that is known about some of them, side by side."}
    print_closing(console, folder, files, folder / PICTURE if pictures else None, commands)
    return 0


def _names(value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(word.strip() for word in value.split(","))


def _switch(word: str) -> bool:
    if word.strip() not in ("on", "off"):
        raise InputError(f"--qk-norm takes on, off or on,off; received {shown(word)}")
    return word.strip() == "on"


def _budget(word: str) -> float:
    try:
        return math.inf if word.strip() == "none" else float(word)
    except ValueError:
        raise InputError(f"--budgets takes numbers or none, separated by commas; received {shown(word)}") from None
