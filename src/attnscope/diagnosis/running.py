"""`attnscope.diagnose`: watch a model on a few windows, label its heads, and say what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope.capture.models import Model, load_model
from attnscope.capture.modes import evaluating
from attnscope.capture.text import Text, given_text, tokenize
from attnscope.capture.windows import spread_windows
from attnscope.diagnosis.budgets import budget_by_error, budget_by_share
from attnscope.diagnosis.findings import findings, verdict
from attnscope.diagnosis.heads import Labels, describe, label
from attnscope.diagnosis.observing import Head, WindowRows, observe_window
from attnscope.diagnosis.statistics import agreement
from attnscope.diagnosis.thresholds import Thresholds
from attnscope.errors import InputError, ModelError
from attnscope.planning import plan

if TYPE_CHECKING:
    import polars as pl
    from transformers import PreTrainedModel

    from attnscope.normalizers import Normalizer

SCHEMA_VERSION = 1
WINDOWS, ROWS = 4, 64

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def diagnose(
    model: str | Path | PreTrainedModel | Model | None = None,
    text: str | Path | Text | None = None,
    *,
    tokenizer: Any = None,
    length: int | None = None,
    windows: int | None = None,
    rows: int = ROWS,
    bos: bool = False,
    thresholds: Thresholds | None = None,
    verify: bool = False,
    what_if: pl.DataFrame | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Report | None = None,
) -> dict[str, Any]:
    """Label every head with the simpler rule that would do its work, and say what follows.

        >>> found = attnscope.diagnose("path/to/model", Path("book.txt"))
        >>> [finding["sentence"] for finding in found["findings"]]

    `windows` of `length` tokens (4, or as many as fit), spread over the text, are watched at `rows` rows each. With
    `verify`, the labels are tried on one more window: heads' weights are replaced inside the model by what their state
    says would be enough, and the change of the next-token distribution is compared with that for random heads.
    `what_if` is the rows table of a scan with other normalizers. Returns what `findings.json` holds
    (docs/diagnosis.md).
    """
    limits = thresholds or Thresholds()
    text = given_text(text)
    if not isinstance(model, Model):
        model = load_model(
            model,
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
    settings = plan(model.positions, length, bos=bos, causal=model.causal)
    tokens = tokenize(model.tokenizer, text)
    chosen = choose_windows(model, text, tokens, settings.length, windows, bos, verify)
    return diagnose_windows(model, chosen, rows, limits, what_if, seed, progress)


class Windows(NamedTuple):
    """The windows to watch, and those held out to try the labels on."""

    watched: list[list[int]]
    held_out: list[list[int]]


def choose_windows(
    model: Model, text: Text, tokens: list[int], length: int, windows: int | None, bos: bool, verify: bool
) -> Windows:
    """Windows over the whole text, one in the middle held out to verify; refuses what cannot be diagnosed."""
    if windows is not None and (not isinstance(windows, int) or isinstance(windows, bool) or windows < 2):
        raise InputError(f"a diagnosis takes 2 windows or more; received {windows!r}")
    if model.module.config.is_encoder_decoder:
        raise InputError(
            f"a diagnosis takes decoders and encoders; {model.name} ({model.family}) is an encoder-decoder, whose "
            "cross attention has no nearest keys"
        )
    if verify:
        from attnscope.diagnosis.verify import check_verifiable

        check_verifiable(model)
    count = windows or min(WINDOWS, max(2, len(tokens) // length - verify))
    inputs = spread_windows(model, tokens, length, count + verify, bos, text.source)
    held_out = [inputs.pop(len(inputs) // 2)] if verify else []
    return Windows(inputs, held_out)


def diagnose_windows(
    model: Model,
    chosen: Windows,
    rows: int = ROWS,
    thresholds: Thresholds | None = None,
    what_if: pl.DataFrame | None = None,
    seed: int = 0,
    progress: Report | None = None,
    normalizers: Mapping[str, Normalizer] | None = None,
) -> dict[str, Any]:
    """The diagnosis of a loaded model on windows chosen before; to verify, `normalizers` are tried in every head."""
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise InputError(f"a diagnosis takes rows from 1 up; received {rows!r}")
    limits = thresholds or Thresholds()
    tell = progress or (lambda what, done, total: None)
    with evaluating(model.module):
        seen = _observe(model, chosen.watched, rows, limits, seed, tell)
        labels, agreed, skipped = _labels(seen, limits, model)
        checked = None
        if chosen.held_out:
            from attnscope.diagnosis.verify import verify

            budgets = [budget_by_error(seen, labels, limits.enough), budget_by_share(seen, labels, limits.budget)]
            checked = verify(model, chosen.held_out, labels, limits, seed, tell, budgets, normalizers)
    heads = describe(seen, labels, seed)
    length = len(chosen.watched[0])
    found = findings(heads, seen, agreed, length, limits, checked, what_if, seed)
    return {
        "schema": SCHEMA_VERSION,
        "verdict": verdict(heads, agreed, checked),
        "length": length,
        "windows": len(seen),
        "rows": rows,
        "thresholds": limits.as_json(),
        "heads": heads,
        "skipped_heads": [{"layer": place[0], "head": place[1], "reason": why} for place, why in skipped.items()],
        "agreement": agreed,
        "findings": found,
        "verification": checked,
    }


def _observe(
    model: Model, inputs: Sequence[list[int]], rows: int, thresholds: Thresholds, seed: int, tell: Report
) -> list[WindowRows]:
    layers = model.module.config.get_text_config().num_hidden_layers
    seen = []
    for number, ids in enumerate(inputs):
        done = number * layers

        def layer_done(layer: int, done: int = done) -> None:
            tell("diagnosing", done + layer + 1, len(inputs) * layers)

        seen.append(observe_window(model, ids, rows, thresholds, seed + number, layer_done))
    return seen


def _labels(
    seen: list[WindowRows], thresholds: Thresholds, model: Model
) -> tuple[dict[Head, Labels], dict[str, Any], dict[Head, str]]:
    """Every head's labels from all windows, and how far those of the even and the odd windows agree."""
    skipped = {place: why for window in seen for place, why in window.skipped.items()}
    places = [place for place in sorted(seen[0].rows) if place not in skipped]
    if not places:
        raise ModelError(f"{model.name}: no head has finite logits and values; there is nothing to diagnose")
    labels = {place: label(seen, place, thresholds) for place in places}
    halves = [[label(half, place, thresholds).state for place in places] for half in (seen[::2], seen[1::2])]
    share, kappa = agreement(*halves)
    same = [first == second for place, first, second in zip(places, *halves, strict=True) if labels[place].sure]
    agreed = {
        "share": share,
        "kappa": kappa,
        "windows": len(seen),
        "sure_heads": len(same),
        "sure_share": float(np.mean(same)) if same else None,
    }
    return labels, agreed, dict(sorted(skipped.items()))
