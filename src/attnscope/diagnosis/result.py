"""The result of a diagnosis: what `findings.json` holds, with its states as a table and a map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import OutputError
from attnscope.results.base import Result, View

if TYPE_CHECKING:
    import polars as pl

    from attnscope.scanning.plots import DiagnosisPlots


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
        from attnscope.results.heads import diagnosed_heads

        return diagnosed_heads(self.content)

    @property
    def plot(self) -> DiagnosisPlots:
        """Charts: `plot.map("state")`, `plot.map("tokens_needed")`."""
        from attnscope.scanning.plots import DiagnosisPlots

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

    @staticmethod
    def _view() -> View:
        from attnscope.results import diagnosis_view

        return diagnosis_view
