"""`attnscope recall`: train small models with each normalizer at a short length, and test them far beyond.

`attnscope scorecard`: everything that can be said about normalizers, side by side.
"""

from __future__ import annotations

import math
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from attnscope.errors import InputError, shown
from attnscope.options import Decimals, Flag, JsonOption, Names, OutOption, WholeNumber, WholeNumbers, arguments, listed

if TYPE_CHECKING:
    pass


Switch = bool | Literal["on", "off"]  # cyclopts takes a tuple of bool for a flag without a value


def _switch(word: str) -> bool:
    if word.strip() not in ("on", "off"):
        raise InputError(f"--qk-norm takes on, off or on,off; received {shown(word)}")
    return word.strip() == "on"


def _bound(word: str) -> float:
    try:
        return math.inf if word.strip() == "none" else float(word)
    except ValueError:
        raise InputError(f"--budgets takes numbers or none, separated by commas; received {shown(word)}") from None


@Parameter(name="*")
@dataclass(frozen=True)
class RecallOptions:
    """What differs from the plan of `recall`, or of `recall --quick`: see `attnscope.studies.recall.Plan`.

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
    """

    normalizers: Names | None = None
    tasks: Names | None = None
    positions: Names | None = None
    qk_norm: Annotated[tuple[Switch, ...] | None, Parameter(converter=listed(_switch), negative="")] = None
    budgets: Annotated[tuple[float, ...] | None, Parameter(converter=listed(_bound), negative="")] = None
    seeds: WholeNumber | None = None
    first_seed: WholeNumber | None = None
    length_ratios: WholeNumbers | None = None
    examples: WholeNumber | None = None
    effort: float | None = None
    learning_rates: Decimals | None = None


def recall(
    *,
    options: RecallOptions = RecallOptions(),
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
    quick
        Fewer tasks, budgets, normalizers and seeds: less than 10 minutes on two free cores.
    workers
        Processes that train at the same time. Default: one for each core.
    out
        Folder for the results. Default: runs/recall, or runs/recall-quick.
    """
    from attnscope.show.command import answer, command_line
    from attnscope.studies.recall.running import QUICK, Plan, changed, recall as train_and_test
    from attnscope.studies.recall.view import PICTURE, draw_picture

    plan = changed(QUICK if quick else Plan(), **arguments(options))
    folder = out or Path("runs") / ("recall-quick" if quick else "recall")
    try:
        with redirect_stdout(sys.stderr):  # standard output is for the result, whatever a user's class prints
            result = train_and_test(plan, out=folder, workers=workers)
    except KeyboardInterrupt:
        print("attnscope: what is finished is saved; repeat the command to resume", file=sys.stderr)
        raise
    pictures = draw_picture(folder, result.means)
    files = ["recall.parquet", "summary.parquet", "run.json", *pictures]
    paths = {name: str(folder / name) for name in files}
    card = command_line("scorecard", *plan.normalizers[:3], recall=folder)
    return answer(
        result.print_summary,
        lambda: {"run": result.run, "files": paths, "summary": result.means.to_dicts()},
        json,
        folder=folder,
        files=files,
        page=folder / PICTURE if pictures else None,
        commands={card: "Everything that is known about some of them, side by side."},
    )


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
    from attnscope.show.command import answer, running
    from attnscope.studies.recall.cards import scorecard as measure
    from attnscope.studies.recall.running import QUICK, changed

    if no_recall and recall is not None:
        raise InputError("--recall and --no-recall exclude each other")
    if (no_recall or recall is not None) and (seeds, effort, workers) != (None, None, None):
        raise InputError("nothing is trained with --recall or --no-recall: leave out --seeds, --effort and --workers")
    folder = out or Path("runs") / "scorecard"
    plan = None if no_recall else changed(QUICK, seeds=seeds, effort=effort)
    with running(), redirect_stdout(sys.stderr):  # whatever a user's class prints
        card = measure(normalizers, out=folder, recall_run=recall, plan=plan, workers=workers)

    return answer(
        card.print_summary,
        lambda: card.data,
        json,
        folder=folder,
        files=["scorecard.html", "scorecard.json"],
        page=folder / "scorecard.html",
    )
