"""What attnscope has written: which folders are its runs, and which files in them are not its own."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

REQUEST = ".request.json"

# The files of a scan, a prediction for longer inputs, a reproduction, a training run, and of any of them while it runs.
_WRITTEN = (
    *("run.json", "rows.parquet", "topn.parquet", "weights.parquet", "patterns.parquet", "tokens.json"),
    *("horizon.json", "horizon.parquet", "heads.parquet"),
    *("findings.json", "report.html", "claims.json", "claims.md", "protocol.html", "tables/*.parquet"),
    *("alarms.jsonl", "scalars.jsonl", "heads/part-*.parquet", "parameters/part-*.parquet"),
    *(f"figures/*/*.{kind}" for kind in ("svg", "pdf", "png", "parquet", "json")),
    *(
        f"{folder}/{name}"
        for folder in (".parts", "parts")
        for name in ("manifest.jsonl", "*.parquet", "overview.json")
    ),
    *(REQUEST, ".parts/plan.json", ".parts/window-*", ".attnscope-*", "*/.attnscope-*"),
)
# Beside a record that cannot be read, they show whose it was.
_TABLES = ("topn.parquet", "tables/topn.parquet", "parts/manifest.jsonl")


def is_run(folder: Path, record: Mapping[str, Any] | None) -> bool:
    """Whether a folder with a `run.json`, whose content is the record, is a run of attnscope, damaged or not."""
    known = record or {}
    named = "attnscope" in known or known.get("kind") == "training"
    return named or any((folder / table).is_file() for table in _TABLES)


def foreign_files(folder: Path) -> list[str]:
    """Files below a folder, as relative paths, that attnscope does not write."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    paths = (path.relative_to(folder).as_posix() for path in files)
    return [path for path in paths if not any(fnmatchcase(path, written) for written in _WRITTEN)]
