"""`attnscope scorecard`: everything that can be said about normalizers, side by side."""

from __future__ import annotations

import json as json_module
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attnscope.cli.numbers import WholeNumber
from attnscope.cli.runs import Flag, JsonOption, OutOption, compiling_announced
from attnscope.errors import InputError


def scorecard(
    normalizers: Annotated[list[str], Parameter(help="Names with settings, or file.py:Class.")],
    /,
    *,
    recall: Path | None = None,
    no_recall: Flag = False,
    seeds: WholeNumber | None = None,
    effort: float | None = None,
    workers: WholeNumber | None = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> int:
    """Measure normalizers side by side: facts, bounds, gradients, selectivity, capacity, recall and speed.

    Writes scorecard.html and scorecard.json. A class of your own needs `weights(logits, visible=None)`; each contract
    that it breaks is an error that says what was found. With a method `lipschitz(length)` it is also trained within
    budgets. Its file is run: it runs with your permissions.

    For example:

    - `attnscope scorecard sparsemax ssmax:s=0.5 --no-recall`
    - `attnscope scorecard softmax lipmix mine.py:MyNormalizer`
    - `attnscope scorecard softmax lipmax --recall runs/recall-quick`

    Parameters
    ----------
    recall
        Folder of an earlier `attnscope recall`, to read instead of training models.
    no_recall
        Train no models.
    seeds
        How many models of each kind to train. Default: 3.
    effort
        Factor on the training steps of each task.
    workers
        Processes that train at the same time. Default: one for each core.
    out
        Folder for the results. Default: runs/scorecard.
    """
    from rich.console import Console

    from attnscope.cli.closing import print_closing
    from attnscope.studies.recall.cards import scorecard as measure
    from attnscope.studies.recall.cards_view import print_scorecard
    from attnscope.studies.recall.running import QUICK, changed
    from attnscope.studies.recall.view import print_recall

    if no_recall and recall is not None:
        raise InputError("--recall and --no-recall exclude each other")
    if (no_recall or recall is not None) and (seeds, effort, workers) != (None, None, None):
        raise InputError("nothing is trained with --recall or --no-recall: leave out --seeds, --effort and --workers")
    folder = out or Path("runs") / "scorecard"
    plan = None if no_recall else changed(QUICK, seeds=seeds, effort=effort)
    with compiling_announced(), redirect_stdout(sys.stderr):  # whatever a user's class prints
        card = measure(normalizers, out=folder, recall_run=recall, plan=plan, workers=workers)
    if json:
        print(json_module.dumps(card.data))
        return 0
    console = Console()
    print_scorecard(console, card.data)
    if card.data["recall"]:
        import polars as pl

        console.print()
        print_recall(console, pl.DataFrame(card.data["recall"]))
    print_closing(console, folder, ["scorecard.html", "scorecard.json"], folder / "scorecard.html")
    return 0
