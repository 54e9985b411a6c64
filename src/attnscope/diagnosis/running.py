"""`attnscope.diagnose`: watch a model on a few windows, label its heads, and say what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.capture.inputs import spread_windows
from attnscope.capture.models import Model, load_model
from attnscope.capture.text import Text, read_text, tokenize
from attnscope.diagnosis.findings import findings
from attnscope.diagnosis.heads import Labels, describe, label
from attnscope.diagnosis.observing import Head, WindowRows, observe_window
from attnscope.diagnosis.statistics import agreement
from attnscope.diagnosis.thresholds import Thresholds
from attnscope.errors import InputError, ModelError
from attnscope.planning import DEFAULT_LENGTH

if TYPE_CHECKING:
    import polars as pl
    from transformers import PreTrainedModel

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
    windows: int = WINDOWS,
    rows: int = ROWS,
    bos: bool = False,
    thresholds: Thresholds | None = None,
    verify: bool = False,
    what_if: pl.DataFrame | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    progress: Report | None = None,
) -> dict[str, Any]:
    """Label every head with the simpler rule that would do its work, and say what follows.

        >>> found = attnscope.diagnose("path/to/model", Path("book.txt"))
        >>> [finding["sentence"] for finding in found["findings"]]

    `windows` of `length` tokens, spread over the text, are watched at `rows` rows each. With `verify`, the labels are
    tried on one more window: heads' weights are replaced inside the model by what their state says would be enough, and the change of
    the next-token distribution is compared with that for random heads. `what_if` is the rows table of a scan with
    other normalizers. Returns what `findings.json` holds (docs/diagnosis.md).
    """
    limits = thresholds or Thresholds()
    for name, value, least in (("--windows", windows, 2), ("rows", rows, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"a diagnosis takes {name} from {least} up; received {value!r}")
    text = Text(text, "the string given") if isinstance(text, str) else text
    text = text if isinstance(text, Text) else read_text(text)
    if not isinstance(model, Model):
        model = load_model(model, tokenizer=tokenizer, device=device, dtype=dtype, revision=revision)
    length = length or min(DEFAULT_LENGTH, model.positions or DEFAULT_LENGTH)
    if verify:
        from attnscope.diagnosis.verify import check_verifiable

        check_verifiable(model)
    tokens = tokenize(model.tokenizer, text)
    inputs = spread_windows(model, text, tokens, length, windows + verify, bos)
    held_out = [inputs.pop(len(inputs) // 2)] if verify else []
    tell = progress or (lambda what, done, total: None)
    training = model.module.training
    model.module.eval()
    try:
        seen = _observe(model, inputs, rows, limits, seed, tell)
        labels, share, kappa, skipped = _labels(seen, limits, model)
        checked = None
        if verify:
            from attnscope.diagnosis.verify import verify as verify_states

            checked = verify_states(model, held_out, labels, limits, seed, tell, _shares(seen, labels))
    finally:
        model.module.train(training)
    heads = describe(seen, labels, limits, seed)
    return {
        "schema": SCHEMA_VERSION,
        "length": length,
        "windows": windows,
        "rows": rows,
        "thresholds": limits.as_json(),
        "heads": heads,
        "skipped_heads": [{"layer": place[0], "head": place[1], "reason": why} for place, why in skipped.items()],
        "agreement": {"share": share, "kappa": kappa, "windows": windows},
        "findings": findings(heads, seen, share, kappa, length, limits, checked, what_if, seed),
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
) -> tuple[dict[Head, Labels], float, float, dict[Head, str]]:
    """Every head's labels from all windows, and how far those of the even and the odd windows agree."""
    skipped = {place: why for window in seen for place, why in window.skipped.items()}
    places = [place for place in sorted(seen[0].rows) if place not in skipped]
    if not places:
        raise ModelError(f"{model.name}: no head has finite logits and values; there is nothing to diagnose")
    labels = {place: label(seen, place, thresholds) for place in places}
    halves = [[label(half, place, thresholds).state for place in places] for half in (seen[::2], seen[1::2])]
    share, kappa = agreement(*halves)
    return labels, share, kappa, dict(sorted(skipped.items()))


def _shares(seen: list[WindowRows], labels: dict[Head, Labels]) -> dict[Head, float]:
    """The share of its keys that each head needs, in the mean over its rows."""
    return {
        place: float(np.mean(np.concatenate([w.rows[place]["keys_enough"] / w.rows[place]["length"] for w in seen])))
        for place in labels
    }
