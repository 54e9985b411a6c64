"""The paper's three guidelines for designing attention, as experiments on any model.

Each states what the guideline predicts, measures it by swapping the model's normalizer, and computes a verdict from all
values of the sweep at which the measure is defined: `agrees`, `disagrees`, or `undecided` if the measured quantity
hardly changes, or changes in both directions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from attnscope._process import refuses_after_fork
from attnscope.capture.models import Model, resolve_model
from attnscope.capture.text import Text, given_text
from attnscope.errors import OutputError
from attnscope.measure.settings import plan
from attnscope.progress import Progress, reporting
from attnscope.show.numbers import short_path
from attnscope.show.result import Result
from attnscope.store.folders import as_file, without_infinities, write_all
from attnscope.store.kinds import name_kind
from attnscope.store.tables import OWN
from attnscope.studies.compare.calibration import comparable
from attnscope.studies.compare.comparing import SCHEMA, Comparison, compare

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.show.blocks import Block

Verdict = Literal["agrees", "disagrees", "undecided"]
SHARES = (1 / 64, 1 / 16, 1 / 4, 1.0)
TEMPERATURES = (0.25, 0.5, 1.0, 2.0)
# A change below this share of the larger value counts as none.
MARGIN = 0.02


@dataclass(frozen=True)
class Finding:
    """One guideline: what it predicts, what was measured, and the verdict on each prediction."""

    guideline: str
    predicts: str
    measured: str
    verdict: Verdict
    table: list[dict[str, Any]]


@dataclass(frozen=True, repr=False)
class Guidelines(Result):
    """The three findings and the comparison they were read from."""

    findings: list[Finding]
    comparison: Comparison

    @classmethod
    def load(cls, folder: str | Path) -> Guidelines:
        """Read the findings that were saved before; the table of the comparison is not kept."""
        path = Path(folder)
        try:
            content = json.loads((path / "guidelines.json").read_text("utf-8"))
            found = [Finding(**each) for each in content["findings"]]
            return cls(found, Comparison(pl.DataFrame(schema=SCHEMA), content["run"]))
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise OutputError(f"guidelines.json in {str(path)!r} cannot be read ({reason}); run again") from error

    def write(self, folder: Path) -> None:
        """Write `guidelines.json` into a folder that is locked already."""
        write_all(folder, {"guidelines.json": as_file(without_infinities(self.as_json()))})
        name_kind(folder, "guidelines")

    def blocks(self, verbose: bool = False) -> list[Block]:
        """The verdicts, and each guideline with its numbers."""
        from attnscope.studies.compare.view import guidelines_blocks

        return guidelines_blocks(self)

    def page_title(self) -> str:
        """What a browser calls the page."""
        return f"guidelines on {short_path(self.comparison.run['model'])}"

    def as_json(self) -> dict[str, Any]:
        """For `guidelines.json`."""
        return {"run": self.comparison.run, "findings": [asdict(finding) for finding in self.findings]}


@refuses_after_fork
def guidelines(
    model: str | Path | PreTrainedModel | Model | None = None,
    text: str | Path | Text | None = None,
    *,
    lengths: Sequence[int] | None = None,
    windows: int = 1,
    top_n: int = 20,
    progress: Progress = None,
    **options: Any,
) -> Guidelines:
    """Test the paper's three guidelines for designing attention on a causal model and a text.

    >>> from attnscope.studies.compare.guidelines import guidelines
    >>> tested = guidelines(lengths=[8, 16], top_n=2, progress=False)
    >>> [finding.guideline for finding in tested.findings]
    ['keep the active set small', 'watch the entropy', 'avoid overly sharp softmax']

    Parameters
    ----------
    model, text
        As in `attnscope.scan`.
    lengths
        Prefixes of each window, in tokens. Default: powers of two up to the model's limit or 1,024.
    windows
        How many consecutive windows of the text to evaluate.
    top_n
        The size of the top set.
    progress
        What to show: see `attnscope.progress`.
    **options
        How the model is loaded: see `load_model`.

    Returns
    -------
    Guidelines
        A finding with a verdict for each guideline, and the comparison they were read from.
    """
    plan(None, None, lengths, [top_n], windows=windows)  # refuses invalid settings before the model is loaded
    text = given_text(text)
    with reporting(progress, "loading the model") as report:
        model = resolve_model(model, **options)
        lengths = plan(model.positions, None, lengths, [top_n]).lengths
        length = max(lengths)
        counts = sorted({max(1, round(share * length)) for share in SHARES})
        active = {f"topk:k={count}": count / length for count in counts}
        sharp = {f"softmax:temperature={t:g}": t for t in TEMPERATURES}
        compared = compare(
            model,
            text,
            [*active, *sharp],
            lengths=lengths,
            windows=windows,
            top_n=top_n,
            modes=["swapped"],
            progress=report,
        )
    longest = compared.table.filter(length=length)
    findings = [
        small_active_set(longest, active),
        entropy_with_length(compared.table),
        no_sharp_softmax(longest, sharp),
    ]
    return Guidelines(findings, compared)


def small_active_set(table: pl.DataFrame, shares: dict[str, float]) -> Finding:
    """Keep the active set small: top-k with k a share of the length."""
    lines = _select(table, shares, "share", ["perplexity", "separability", "defined", "support"])
    known = _select(comparable(table), shares, "share", ["separability"])
    best = min(lines, key=lambda line: line["perplexity"])
    undefined = [f"{line['share']:.3g}" for line in lines if line["share"] not in {one["share"] for one in known}]
    measured = (
        f"separability {_sweep(known, 'separability', 'share')} (k/L)"
        + (f", not defined at {', '.join(undefined)}: fewer keys than the top set get weight" if undefined else "")
        + f"; perplexity {_sweep(lines, 'perplexity', 'share')}, lowest at {best['share']:.3g}"
    )
    return Finding(
        "keep the active set small",
        "the smaller the share of keys that get weight, the more separable the top tokens",
        measured,
        trend([line["separability"] for line in known]),
        lines,
    )


def entropy_with_length(table: pl.DataFrame) -> Finding:
    """Watch the entropy: the model's own heads, from the shortest to the longest prefix."""
    columns = ["length", "entropy_ratio", "separability"]
    lines = comparable(table).filter(normalizer=OWN).sort("length").select(columns).to_dicts()
    entropy, capacity = ([line[name] for line in lines] for name in columns[1:])
    # The guideline uses entropy as a warning: when it changes, separability must change the other way.
    moves = {trend(entropy), trend(capacity)}
    verdict: Verdict = "undecided" if "undecided" in moves else "agrees" if len(moves) == 2 else "disagrees"
    measured = (
        f"entropy ratio {_sweep(lines, 'entropy_ratio', 'length')} tokens; "
        f"separability {_sweep(lines, 'separability', 'length')} tokens"
    )
    return Finding(
        "watch the entropy",
        "where the entropy of the weights comes nearer to that of uniform ones, separability falls",
        measured,
        verdict,
        lines,
    )


def no_sharp_softmax(table: pl.DataFrame, temperatures: dict[str, float]) -> Finding:
    """Avoid overly sharp softmax: the temperature sweep."""
    columns = ["perplexity", "separability", "defined", "jacobian_norm", "kl"]
    lines = _select(table, temperatures, "temperature", columns)
    known = _select(comparable(table), temperatures, "temperature", ["separability"])
    measured = (
        f"Jacobian norm {_sweep(lines, 'jacobian_norm', 'temperature')} (T); "
        f"separability {_sweep(known, 'separability', 'temperature')}; "
        f"perplexity {_sweep(lines, 'perplexity', 'temperature')}"
    )
    return Finding(
        "avoid overly sharp softmax",
        "the lower the temperature, the larger the Jacobian norm: gains in separability are paid in stability",
        measured,
        trend([line["jacobian_norm"] for line in lines]),
        lines,
    )


def trend(values: Sequence[float]) -> Verdict:
    """Whether values fall along a sweep, as predicted: from end to end, without a step in the other direction."""
    if len(values) < 2:
        return "undecided"
    whole = direction(values[0], values[-1])
    steps = {direction(one, following) for one, following in pairwise(values)}
    return whole if steps <= {whole, "undecided"} else "undecided"


def direction(higher: float, lower: float) -> Verdict:
    """Whether the first is larger than the second, as predicted, by more than the margin."""
    if abs(higher - lower) <= MARGIN * max(abs(higher), abs(lower)):
        return "undecided"
    return "agrees" if higher > lower else "disagrees"


def _sweep(lines: list[dict[str, Any]], name: str, at: str) -> str:
    """The values of a column along a sweep, in words."""
    return ", ".join(f"{line[name]:.4g} at {line[at]:.3g}" for line in lines) or "not defined anywhere"


def _select(table: pl.DataFrame, values: dict[str, float], name: str, columns: list[str]) -> list[dict[str, Any]]:
    """The lines of these normalizers with the value that each stands for, smallest first."""
    by_label = {line["normalizer"]: line for line in table.to_dicts()}
    chosen = [(value, by_label[label]) for label, value in values.items() if label in by_label]
    return sorted(
        ({name: value} | {c: line[c] for c in columns} for value, line in chosen), key=lambda line: line[name]
    )
