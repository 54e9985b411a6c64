"""Other normalizers in a model, side by side, and the paper's guidelines for designing attention, tested.

| file | contents |
|---|---|
| `comparing`, `calibration` | `compare`: swapped or as what-ifs, with settings fitted to the model |
| `chart` | capacity against length |
| `guidelines` | `guidelines`: what each predicts, what was measured, a verdict |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.store.kinds import Description, Kind, Verb


def describe(folder: Path, content: Mapping[str, Any]) -> Description:
    """One comparison as a line of a list."""
    run = content["run"]
    names = list(dict.fromkeys(line["normalizer"] for line in content["table"]))
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return Description(run["model"], run["text"]["source"], f"comparison of {listed}: {_size(run)}")


def describe_guidelines(folder: Path, content: Mapping[str, Any]) -> Description:
    """One test of the guidelines as a line of a list."""
    run = content["run"]
    verdict = ", ".join(f"{finding['guideline']}: {finding['verdict']}" for finding in content["findings"])
    return Description(run["model"], run["text"]["source"], f"guidelines: {_size(run)}", verdict)


def _size(run: Mapping[str, Any]) -> str:
    return f"{run['settings']['windows']:,} x {run['settings']['length']:,} tokens"


KINDS = (
    Kind(
        "comparison",
        load="attnscope.studies.compare.comparing:Comparison.load",
        describe="attnscope.studies.compare:describe",
        record="compare.json",
        needs=(("compare.parquet",),),
        written=("compare.json", "compare.parquet", "capacity.*", "report.html"),
        verbs=(Verb("compare", "attnscope.studies.compare.verb:compare", "Decide"),),
    ),
    Kind(
        "guidelines",
        load="attnscope.studies.compare.guidelines:Guidelines.load",
        describe="attnscope.studies.compare:describe_guidelines",
        record="guidelines.json",
        written=("guidelines.json", "report.html"),
        verbs=(Verb("guidelines", "attnscope.studies.compare.verb:guidelines", "The paper"),),
    ),
)
