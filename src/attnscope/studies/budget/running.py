"""Make a budget for a model: measure on some windows of a text, allocate, compare on others, write the files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl
import torch

from attnscope._process import refuses_after_fork
from attnscope.capture.models import Model, resolve_model
from attnscope.capture.modules import evaluating
from attnscope.capture.text import Text, given_text
from attnscope.capture.tokens import TokenizedText, WindowChoice, WindowTokens, tokenized
from attnscope.errors import InputError, OutputError, parameter
from attnscope.progress import Progress, Step, reporting
from attnscope.show.numbers import short_path
from attnscope.show.result import Result
from attnscope.store.folders import as_file, reason_of, write_all
from attnscope.store.kinds import name_kind
from attnscope.store.tables import OWN
from attnscope.studies.budget.allocation import (
    allocate,
    beyond_window,
    duo_attention,
    key_budget,
    layer_budgets,
    measure_needs,
)
from attnscope.studies.budget.comparison import compare_window, summarize
from attnscope.studies.budget.selection import KeptKeys, plan_budget, refuse_share
from attnscope.swapping import apply_budget, cache_bytes
from attnscope.swapping.key_budget import FILE, KeyBudget, load_budget
from attnscope.swapping.replacement import sites

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.show.blocks import Block

FILES = (FILE, "full_attention_heads.tsv", "config.json", "layers.json", "comparison.parquet")


class Predicted(Protocol):
    """What `attnscope.horizon` returns."""

    @property
    def heads(self) -> pl.DataFrame:
        """One line for each normalizer and head, with its reach."""


@dataclass(frozen=True, repr=False)
class BudgetResult(Result):
    """A budget, and the methods it was compared with.

    Attributes
    ----------
    budget
        To apply with `attnscope.swapping.apply_budget`.
    table
        One line for each task, window and method (`comparison.parquet`).
    """

    budget: KeyBudget
    table: pl.DataFrame

    @classmethod
    def load(cls, folder: str | Path) -> BudgetResult:
        """Read a budget that was saved before."""
        path = Path(folder)
        try:
            return cls(load_budget(path), pl.read_parquet(path / "comparison.parquet"))
        except (InputError, OSError, pl.exceptions.PolarsError) as error:
            raise OutputError(f"{str(path)!r} is not a readable budget: {reason_of(error)}") from error

    def save(self, folder: str | Path) -> Path:
        """Write the budget, its forms for other programs and the comparison to a folder.

        Returns
        -------
        Path
            The folder; attnscope.OutputError if it holds something else.
        """
        refuse_folder(Path(folder))
        return super().save(folder)

    def write(self, folder: Path) -> None:
        """Write the same into a folder that is locked already."""
        heads, sizes = duo_attention(self.budget)
        files: dict[str, Callable[[Path], object]] = {
            FILE: as_file(self.budget.as_json()),
            "full_attention_heads.tsv": lambda path: path.write_text(heads, encoding="utf-8"),
            "config.json": as_file(sizes),
            "layers.json": as_file(layer_budgets(self.budget)),
            "comparison.parquet": self.table.write_parquet,
        }
        write_all(folder, files)
        name_kind(folder, "budget")

    def blocks(self, verbose: bool = False) -> list[Block]:
        """What heads keep, and the methods that the budget was compared with."""
        from attnscope.studies.budget.view import blocks

        return blocks(self.budget)

    def page_title(self) -> str:
        """What a browser calls the page."""
        return f"key budget of {short_path(self.budget.about['model'])}"


def refuse_folder(folder: Path) -> None:
    """Raise for a folder with files of something else: a model has a config.json too."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(
            f"cannot write to {str(folder)!r}: {error.strerror}; choose another {parameter('out')}"
        ) from None
    if names and FILE not in names:
        raise OutputError(
            f"{str(folder)!r} holds something else than a budget ({', '.join(names[:3])}), and a budget has a "
            f"config.json of its own; choose another {parameter('out')}"
        )


@refuses_after_fork
def budget(
    model: str | Path | PreTrainedModel | Model | None = None,
    text: str | Path | Text | None = None,
    *,
    keep: float = 0.25,
    length: int | None = None,
    windows: int = 8,
    calibration_windows: int = 4,
    seed: int = 0,
    horizon: Predicted | str | Path | None = None,
    tokenizer: Any = None,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress = None,
) -> BudgetResult:
    """How many keys every head should keep, if only a share of all keys can be kept.

    >>> from attnscope.studies.budget.running import budget
    >>> result = budget(keep=0.25, length=64, windows=3, calibration_windows=1, progress=False)
    >>> abs(result.budget.share() - 0.25) < 0.01
    True

    The errors of heads are measured on windows of the first half of the text; the budget is compared with other
    methods, at the same number of kept key-value pairs, on windows of the second half.

    Parameters
    ----------
    model, text, tokenizer, device, dtype, revision, trust_remote_code
        As in `attnscope.scan`.
    keep
        The share of all key-value pairs to keep, above 0 and at most 1.
    length
        Tokens of the context whose keys are kept or dropped. Default: 1024, or what the model allows.
    windows
        How many windows to compare on; at least 3.
    calibration_windows
        How many windows to measure on.
    seed
        For the methods that draw, and the recall task.
    horizon
        What `attnscope.horizon` predicted for the same model, or its folder: `budget.about["beyond_window"]` then lists
        the heads that reach further than the window that they keep, which longer texts would show.
    progress
        As in `attnscope.scan`.

    Returns
    -------
    BudgetResult
        The budget and the comparison, with `save(folder)`.
    """
    refuse_share(keep)
    content = given_text(text)
    reach = None if horizon is None else _reach(horizon)
    started = time.perf_counter()
    with reporting(progress, "loading the model") as report:
        loaded = resolve_model(
            model,
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        settings = plan_budget(loaded, keep, length, windows, calibration_windows, seed)
        tokens, size = tokenized(loaded, content, WindowChoice()), settings.length + settings.observed
        measured = _windows_of_half("first", tokens, size, settings.calibration_windows)
        fresh = _windows_of_half("second", tokens, size, settings.windows)
        with evaluating(loaded.module):
            kv_heads = [site.kv_heads for site in sorted(sites(loaded.module), key=lambda site: site.layer)]
            plan = KeptKeys(settings, kv_heads, allocate(measure_needs(loaded, measured, settings, report), settings))
            made = key_budget(plan.ours, kv_heads, settings, {})
            tables = []
            for number, ids in enumerate(fresh):
                report(Step(number, len(fresh), f"comparing on window {number + 1} of {len(fresh)}"))
                tables.append(compare_window(loaded.module, plan, made, ids, number))
            table = pl.concat(tables)
            about = {
                "model": loaded.name,
                "family": loaded.family,
                "text": {"source": content.source, "sha256": content.digest},
                "settings": settings.as_json(),
                "cache": _measured_cache(loaded.module, made, fresh[0][: settings.length]),
                "comparison": summarize(table),
                "beyond_window": None if reach is None else beyond_window(made, reach, "the given horizon"),
                "seconds": round(time.perf_counter() - started, 3),
            }
    return BudgetResult(KeyBudget(made.heads, made.length, about), table)


def _reach(horizon: Predicted | str | Path) -> pl.DataFrame:
    """How far each head reaches with the model's own normalizer, from a prediction or its `heads.parquet`."""
    if not isinstance(horizon, str | Path):
        return horizon.heads.filter(normalizer=OWN)
    try:
        heads = pl.read_parquet(Path(horizon) / "heads.parquet", columns=["normalizer", "layer", "head", "reach"])
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OutputError(f"{str(horizon)!r} is not a readable prediction: {reason}; predict again") from error
    return heads.filter(normalizer=OWN)


def _windows_of_half(which: str, text: TokenizedText, size: int, count: int) -> list[list[int]]:
    """Windows spread evenly over the first or second half of a text."""
    middle = len(text) // 2
    start, stop = (0, middle) if which == "first" else (middle, len(text))
    half = replace(
        text,
        source=f"the {which} half of {text.source}",
        ends=np.array([stop - start]),
        read=lambda first, last: text.read(start + first, start + last),
    )
    windows: list[list[int]] = WindowTokens(half, half.starts(size, count, WindowChoice("even")), size)[:].tolist()
    return windows


def _measured_cache(module: Any, made: KeyBudget, tokens: list[int]) -> dict[str, int]:
    """The bytes that a cache of these tokens stores, without and with the budget."""
    ids = torch.tensor(tokens, device=module.device)[None]
    with torch.no_grad():
        full = cache_bytes(module(input_ids=ids, use_cache=True).past_key_values)
        with apply_budget(module, made):
            stored = cache_bytes(module(input_ids=ids, use_cache=True).past_key_values)
    return {"tokens": len(tokens), "bytes": full, "bytes_with_budget": stored}
