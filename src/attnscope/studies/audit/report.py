"""The report of an audit: every claim with its verdict, the results of its forms, and counterexamples."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from attnscope.errors import InputError, OutputError, shown
from attnscope.show.numbers import counted
from attnscope.show.result import Result

if TYPE_CHECKING:
    import polars as pl

    from attnscope.show.blocks import Block
    from attnscope.studies.audit.view import AuditPlots

FILE = "audit.json"

Verdict = Literal["holds", "holds with condition", "fails", "vacuous"]


@dataclass(frozen=True)
class Counterexample:
    """A configuration that violates a form, small enough to check by hand.

    >>> example = Counterexample({"alpha": [1.0]}, smaller=2.0, larger=1.5)
    >>> example.excess
    0.5
    """

    values: dict[str, Any]
    smaller: float
    larger: float

    @property
    def excess(self) -> float:
        """How far the side claimed to be smaller exceeds the other."""
        return self.smaller - self.larger


@dataclass(frozen=True)
class Trial:
    """Result of one form, on `drawn` random configurations and `attacked` ones near the worst of them.

    >>> attnscope.audit("lemma-1").claims[0].printed.violations
    0

    `slack` is the median of larger/smaller where both are positive, `least_slack` its minimum: 1 means attained.
    `empty` is the share of drawn configurations for which the form is trivially true.
    """

    statement: str
    drawn: int
    attacked: int
    violations: int
    violated: bool
    slack: float | None
    least_slack: float | None
    empty: float
    counterexample: Counterexample | None

    @property
    def rate(self) -> float:
        """The share of drawn configurations that violate the form."""
        return self.violations / self.drawn


@dataclass(frozen=True)
class ClaimReport:
    """Verdict on one claim, with the results of its forms.

    >>> attnscope.audit("lemma-1").claim("lemma-1").verdict
    'holds'
    """

    id: str
    place: str
    space: str
    verdict: Verdict
    printed: Trial | None
    corrected: tuple[Trial, ...]
    condition: str | None
    conditioned: Trial | None
    note: str

    @property
    def tried(self) -> int:
        """Number of configurations that the claim was tested on."""
        trials = [trial for trial in (self.printed, self.conditioned, *self.corrected) if trial]
        return max(trial.drawn for trial in trials) + sum(trial.attacked for trial in trials)

    @property
    def corrected_violated(self) -> bool:
        """Whether any corrected form was violated."""
        return any(trial.violated for trial in self.corrected)


@dataclass(frozen=True, repr=False)
class AuditReport(Result):
    """Verdicts on all claims.

    >>> report = attnscope.audit(["lemma-1", "lemma-2-spectral"])
    >>> [(claim.id, claim.verdict) for claim in report.claims]
    [('lemma-1', 'holds'), ('lemma-2-spectral', 'holds with condition')]
    >>> report.sound  # no corrected form was violated
    True

    Attributes
    ----------
    effort, seed
        How the configurations were drawn.
    claims
        One `ClaimReport` for each claim.
    """

    effort: str
    seed: int
    claims: tuple[ClaimReport, ...]

    @property
    def sound(self) -> bool:
        """Whether no corrected form was violated."""
        return not any(claim.corrected_violated for claim in self.claims)

    @cached_property
    def table(self) -> pl.DataFrame:
        """One line for each claim and form: `id`, `verdict`, `form`, `statement`, `drawn`, `rate`, `slack`, ..."""
        from attnscope.studies.audit.view import table

        return table(self)

    def claim(self, id: str) -> ClaimReport:
        """The report on one claim.

        >>> attnscope.audit(["lemma-1", "corollary-3"], progress=False).claim("corollary-3").verdict
        'fails'

        Parameters
        ----------
        id
            That of the claim, e.g. "lemma-1".

        Returns
        -------
        ClaimReport
            attnscope.InputError lists the ids if there is none.
        """
        match = next((claim for claim in self.claims if claim.id == id), None)
        if match is None:
            raise InputError(f"no claim {shown(id)}; there are {', '.join(claim.id for claim in self.claims)}")
        return match

    @property
    def plot(self) -> AuditPlots:
        """Altair charts: `plot.violations()`."""
        from attnscope.studies.audit.view import AuditPlots

        return AuditPlots(self)

    def as_json(self) -> dict[str, Any]:
        """What `attnscope audit --json` prints and `audit.json` holds; infinities and NaN are strings."""
        claims = []
        for claim in self.claims:
            content = asdict(claim) | {"tried": claim.tried}
            trials = [content["printed"], content["conditioned"], *content["corrected"]]
            for trial, source in zip(trials, (claim.printed, claim.conditioned, *claim.corrected), strict=True):
                if source is not None:
                    trial["rate"] = source.rate
            claims.append(content)
        content = {"effort": self.effort, "seed": self.seed, "sound": self.sound, "claims": claims}
        return cast(dict[str, Any], _with_finite_numbers(content))

    def write(self, folder: Path) -> None:
        """Write `audit.json` into a folder that is locked already."""
        from attnscope.store.folders import as_file, write_all
        from attnscope.store.kinds import name_kind

        write_all(folder, {FILE: as_file(self.as_json())})
        name_kind(folder, "audit")

    @classmethod
    def load(cls, folder: str | Path) -> AuditReport:
        """Read an audit that was saved before."""
        try:
            content = json.loads((Path(folder) / FILE).read_text("utf-8"))
            return cls(content["effort"], content["seed"], tuple(_claim(claim) for claim in content["claims"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OutputError(
                f"{str(folder)!r} is not a readable audit ({type(error).__name__}: {error}); audit again"
            ) from error

    def blocks(self, verbose: bool = False) -> list[Block]:
        """A verdict and one line for each claim; with `verbose` also places and counterexamples."""
        from attnscope.studies.audit.view import blocks

        return blocks(self)

    def page_title(self) -> str:
        """What a browser calls the page."""
        return "audit of the paper's claims"

    def brief(self) -> list[str]:
        """How many claims were tested, before the verdict."""
        return [f"AuditReport: {counted(len(self.claims), 'claim')}", *super().brief()]

    def calls(self) -> Sequence[str]:
        return (".summary()", '.claim("lemma-1")', ".table", ".plot.violations()", ".show()")


def _with_finite_numbers(value: Any) -> Any:
    """The value with infinities and NaN as strings, which JSON numbers cannot express."""
    if isinstance(value, dict):
        return {key: _with_finite_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_finite_numbers(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _claim(content: dict[str, Any]) -> ClaimReport:
    """A claim's report from JSON."""
    forms = {name: None if content[name] is None else _trial(content[name]) for name in ("printed", "conditioned")}
    corrected = tuple(_trial(trial) for trial in content["corrected"])
    return ClaimReport(**_fields_of(ClaimReport, content) | forms | {"corrected": corrected})


def _trial(content: dict[str, Any]) -> Trial:
    example = content["counterexample"]
    if example is not None:
        example = Counterexample(example["values"], float(example["smaller"]), float(example["larger"]))
    slacks = {name: None if content[name] is None else float(content[name]) for name in ("slack", "least_slack")}
    return Trial(**_fields_of(Trial, content) | slacks | {"counterexample": example})


def _fields_of(kind: Any, content: dict[str, Any]) -> dict[str, Any]:
    return {field.name: content[field.name] for field in fields(kind)}
