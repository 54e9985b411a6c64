"""Read what an earlier run has saved, whatever kind of run it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope._process import refuses_after_fork
from attnscope.errors import OutputError, shown
from attnscope.store.folders import given_folder

if TYPE_CHECKING:
    from attnscope.diagnosis.result import Diagnosis
    from attnscope.monitor.training_run import TrainingRun
    from attnscope.scanning.result import ScanResult
    from attnscope.studies.audit import AuditReport
    from attnscope.studies.compare.comparing import Comparison
    from attnscope.studies.horizon.result import Horizon
    from attnscope.studies.paper.reproduction import Reproduction

# What these commands write is read as it is: a table or a page.
_TABLES_ONLY = {"recall.parquet": "recall", "scorecard.html": "scorecard", "budget.json": "budget"}


@refuses_after_fork
def load_run(
    folder: str | Path,
) -> ScanResult | Diagnosis | Comparison | Horizon | Reproduction | AuditReport | TrainingRun:
    """Read a folder that a result was saved to.

    >>> folder = attnscope.scan(length=64, progress=False).save("runs/first")
    >>> attnscope.load_run(folder).run["settings"]["length"]
    64

    Parameters
    ----------
    folder
        What was given as `out` or to `save`. Runs of older versions are read too; what they lack is missing. A training
        run may still be going on.

    Returns
    -------
    ScanResult, Diagnosis, Comparison, Horizon, Reproduction, AuditReport or TrainingRun
        The result as it was, a scan with the horizon that was predicted in its folder; attnscope.OutputError if the
        folder holds none of them.
    """
    path = given_folder(folder)
    if not path.is_dir():
        raise OutputError(f"{shown(str(folder))} is not a folder; give one that a run was saved to")
    if (path / "compare.json").is_file():
        from attnscope.studies.compare.comparing import Comparison

        return Comparison.load(path)
    if (path / "audit.json").is_file():
        from attnscope.studies.audit import AuditReport

        return AuditReport.load(path)
    if not (path / "run.json").is_file() and (path / "findings.json").is_file():
        from attnscope.diagnosis.result import Diagnosis

        return Diagnosis.load(path)
    if (path / "horizon.json").is_file() and not (path / "run.json").is_file():
        from attnscope.studies.horizon.result import Horizon

        return Horizon.load(path)
    for file, command in _TABLES_ONLY.items():
        if (path / file).is_file() and (command == "recall" or not (path / "run.json").is_file()):
            raise OutputError(f"{str(path)!r} holds what `attnscope {command}` wrote: open {file} in it")
    record = _record(path)
    if record.get("kind") == "training":
        from attnscope.monitor.run_files import load

        return load(path)
    if "identity" in record:
        from attnscope.studies.paper.reproduction import Reproduction

        return Reproduction.load(path)
    from attnscope.scanning.result import ScanResult

    return ScanResult.load(path)


def _record(folder: Path) -> dict[str, object]:
    """The content of `run.json`; a folder without one holds no finished run."""
    if not (folder / "run.json").is_file():
        kinds = "run.json of a scan, a reproduction or a training run, compare.json, findings.json or audit.json"
        raise OutputError(f"{str(folder)!r} holds no finished run: there is no {kinds}")
    try:
        content = json.loads((folder / "run.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OutputError(f"run.json in {str(folder)!r} cannot be read ({type(error).__name__}); run again") from error
    return content if isinstance(content, dict) else {}
