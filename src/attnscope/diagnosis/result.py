"""The result of a diagnosis: what `findings.json` holds, with its states as a table and a map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope import columns
from attnscope.errors import OutputError
from attnscope.show.result import Result

if TYPE_CHECKING:
    from attnscope.diagnosis.view import DiagnosisPlots
    from attnscope.show.blocks import Block


LABELS: dict[str, pl.DataType] = {
    "state": pl.String(),
    "sureness": pl.Float64(),
    "edge": pl.String(),
    "withdrawn": pl.String(),
}
# Measured by a scan and by a diagnosis, on other rows: the diagnosis has them under these names.
MEASURED_TWICE = {f"{name}_diagnosed": name for name in ("separability", "participation", "sink_weight", "max_weight")}
EVIDENCE = (
    *MEASURED_TWICE,
    *(
        name
        for column in columns.DIAGNOSIS
        if column.name not in LABELS
        for name in ((column.name, f"{column.name}_low", f"{column.name}_high") if column.interval else (column.name,))
    ),
)


@dataclass(frozen=True, repr=False, eq=False)
class Diagnosis(Result, Mapping[str, Any]):
    """What a diagnosis found: every head's state with its evidence, ranked findings, a verdict.

    >>> found = attnscope.diagnose(length=64, windows=2, rows=8, progress=False)
    >>> found.headline == found["verdict"]["headline"]
    True
    >>> found.heads.height == len(found["heads"])
    True

    It is also the mapping that `findings.json` holds (docs/diagnosis.md): `found["heads"]`, `found["findings"]`,
    `found["verdict"]`, `found["agreement"]`, `found["verification"]`, `found["thresholds"]`.

    Attributes
    ----------
    content
        The content of `findings.json`.
    """

    content: dict[str, Any]

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        headline: str = self.content["verdict"]["headline"]
        return headline

    @cached_property
    def heads(self) -> pl.DataFrame:
        """One line for each head: `layer`, `head`, `state`, `sureness` and the evidence (docs/python.md)."""
        return diagnosed_heads(self.content)

    @property
    def plot(self) -> DiagnosisPlots:
        """Charts: `plot.map("state")`, `plot.map("tokens_needed")`."""
        from attnscope.diagnosis.view import DiagnosisPlots

        return DiagnosisPlots(self)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self.content == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def write(self, folder: Path) -> None:
        """Write `findings.json` into a folder that is locked already."""
        from attnscope.store.folders import as_file, write_all

        write_all(folder, {"findings.json": as_file(self.content)})

    @classmethod
    def load(cls, folder: str | Path) -> Diagnosis:
        """Read a diagnosis that was saved before."""
        from attnscope.store.tables import load_findings

        content = load_findings(Path(folder))
        if content is None:
            raise OutputError(f"findings.json in {str(folder)!r} cannot be read; diagnose again")
        return cls(content)

    def blocks(self, verbose: bool = False) -> list[Block]:
        """The verdict, the heads that matter most, a map of the states, all findings."""
        from attnscope.diagnosis import view

        return view.blocks(self, verbose)

    def brief(self) -> list[str]:
        """What was run, the verdict, how far to trust it, the findings."""
        from attnscope.diagnosis import view

        return view.brief(self)

    def calls(self) -> tuple[str, ...]:
        """What to call next."""
        return (".summary()", ".heads", '["findings"]', '.plot.map("tokens_needed")', ".show()")


def diagnosed_heads(findings: Mapping[str, Any] | None) -> pl.DataFrame:
    """What a diagnosis found for every head; without a diagnosis no lines."""
    schema = {"layer": pl.Int32(), "head": pl.Int32()} | LABELS | dict.fromkeys(EVIDENCE, pl.Float64())
    lines = [
        {name: head.get(name) for name in ("layer", "head", *LABELS)}
        | {name: _evidence(head, MEASURED_TWICE.get(name, name)) for name in EVIDENCE}
        for head in (findings["heads"] if findings else ())
    ]
    return pl.DataFrame(lines, schema=schema)


def _evidence(head: Mapping[str, Any], name: str) -> float | None:
    """A number of a head's entry or of its evidence; older findings lack some."""
    value: float | None = head["evidence"].get(name, head.get(name))
    return value
