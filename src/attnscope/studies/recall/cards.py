"""`scorecard`: the facts, bounds and measurements of normalizers, and how models trained with them recall."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope import __version__
from attnscope._process import refuses_after_fork
from attnscope.errors import InputError, OutputError, parameter, whole_number
from attnscope.normalizers.specs import load_normalizer
from attnscope.progress import Progress, Step, reporting
from attnscope.show.result import Result
from attnscope.store.folders import as_file, output_folder, without_infinities, write_all
from attnscope.store.kinds import name_kind
from attnscope.studies.recall import measuring
from attnscope.studies.recall.contracts import CONTRACTS, require_contracts
from attnscope.studies.recall.running import QUICK, Plan, changed, check, recall, summarize

if TYPE_CHECKING:
    from attnscope.show.blocks import Block

RECALL = "recall.parquet"


@dataclass(frozen=True, repr=False)
class Scorecard(Result):
    """The cards as plain data, and the page that shows them."""

    data: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write `scorecard.json` and `scorecard.html` into a folder that is locked already."""
        page = self.page()
        files = {"scorecard.html": lambda path: path.write_text(page, encoding="utf-8")}
        write_all(folder, {"scorecard.json": as_file(self.data), **files})
        name_kind(folder, "scorecard")

    def blocks(self, verbose: bool = False) -> list[Block]:
        """The most important numbers of each normalizer; with `verbose` all of them."""
        from attnscope.studies.recall.view import scorecard_blocks

        return scorecard_blocks(self.data, verbose)

    @classmethod
    def load(cls, folder: str | Path) -> Scorecard:
        """Read a scorecard that was written before."""
        path = Path(folder)
        try:
            result = cls(json.loads((path / "scorecard.json").read_text("utf-8")))
            result.blocks(verbose=True)
        except (OSError, ValueError, LookupError, TypeError, RecursionError, pl.exceptions.PolarsError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise OutputError(f"{str(path)!r} is not a readable scorecard ({reason}); make it again") from error
        return result


@refuses_after_fork
def scorecard(
    normalizers: Sequence[str],
    *,
    out: str | Path,
    recall_run: str | Path | None = None,
    plan: Plan | None = QUICK,
    workers: int | None = None,
    progress: Progress = None,
) -> Scorecard:
    """Measure normalizers side by side; writes scorecard.json and scorecard.html.

    >>> from attnscope.studies.recall import scorecard
    >>> card = scorecard(["sparsemax"], out="runs/card", plan=None, progress=False)  # doctest: +SKIP
    >>> card.data["cards"][0]["facts"]["sparse"]  # doctest: +SKIP
    True

    Parameters
    ----------
    normalizers
        Names with settings (`"ssmax:s=0.5"`), or classes of your own (`"mine.py:MyNormalizer"`).
    out
        Folder for the results; with `plan`, also for the models that are trained, from which the same call resumes.
    recall_run
        Folder of an earlier `attnscope recall`, to read instead of training.
    plan
        What to train with each normalizer. Default: that of `attnscope recall --quick`. None: nothing.
    workers
        Processes that train at the same time. Default: one for each core.
    progress
        What to show: see `attnscope.progress`.

    Returns
    -------
    Scorecard
        The numbers, and the page; attnscope.InputError names every contract that a class breaks.
    """
    if not normalizers or len(set(normalizers)) < len(normalizers):
        raise InputError(f"give normalizers, each once; received {', '.join(normalizers) or 'none'}")
    made = {spec: load_normalizer(spec) for spec in normalizers}
    measuring.scan_names(made)  # two of the same name are refused before anything is measured
    with reporting(progress, "testing contracts") as report:
        for index, spec in enumerate(made):
            report(Step(index, len(made), f"testing the contracts of {spec}"))
            require_contracts(spec)
    earlier = None if recall_run is None else _earlier(Path(recall_run), normalizers)
    plans = [] if plan is None or earlier is not None else _plans(plan, list(normalizers))
    for _, part in plans:  # before anything is measured
        check(part)
    if workers is not None:
        whole_number("workers", workers, 1)
    with output_folder(Path(out)) as folder, reporting(progress, "loading the sample model") as report:
        model, ids = measuring.sample()
        real = measuring.real_rows(model, ids)
        cards = []
        for index, (spec, normalizer) in enumerate(made.items()):
            report(Step(index, len(made) + 1, spec))
            cards.append(
                {
                    "normalizer": spec,
                    "facts": measuring.facts(normalizer),
                    "contracts": list(CONTRACTS),
                    "bounds": measuring.bounds(normalizer),
                    "selectivity": measuring.selectivities(normalizer, real),
                    "speed": measuring.speed(normalizer),
                }
            )
        report(Step(len(made), len(made) + 1, "capacity on the sample model"))
        capacity = measuring.capacity(made, model)
        if plans:
            tables = [recall(part, out=folder / name, workers=workers, progress=report).table for name, part in plans]
            earlier = pl.concat(tables)
        summary = None if earlier is None else summarize(earlier)
        data = without_infinities(
            {
                "attnscope": __version__,
                "cards": cards,
                "capacity": capacity,
                "recall": [] if summary is None else summary.to_dicts(),
                "recall_run": None if recall_run is None else str(recall_run),
            }
        )
        result = Scorecard(data)
        result.write(folder)
    return result


def _earlier(folder: Path, normalizers: Sequence[str]) -> pl.DataFrame:
    file = folder / RECALL
    if not file.is_file():
        raise InputError(f"{parameter('recall')} takes a folder of `attnscope recall`; {folder} has no {RECALL}")
    table = pl.read_parquet(file)
    missing = [spec for spec in normalizers if spec not in set(table["normalizer"])]
    if missing:
        raise InputError(
            f"{file} has no models with {', '.join(missing)}: train them, or leave {parameter('recall')} out"
        )
    return table.filter(pl.col("normalizer").is_in(list(normalizers)))


def _plans(plan: Plan, specs: list[str]) -> list[tuple[str, Plan]]:
    """What to train, and the folder for it; normalizers without a Lipschitz constant have no budget."""
    bounded = [spec for spec in specs if math.isfinite(load_normalizer(spec).lipschitz(2))]
    unbounded = [spec for spec in specs if spec not in bounded]
    parts = (("recall", bounded, None), ("recall-unbounded", unbounded, (math.inf,)))
    return [(name, changed(plan, normalizers=tuple(some), budgets=budgets)) for name, some, budgets in parts if some]
