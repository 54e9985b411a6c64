"""Kinds of runs: found, told apart, described and loaded; studies come and go."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from every_kind import EVERY_KIND

import attnscope.studies
from attnscope.errors import OutputError
from attnscope.serve.library import Library
from attnscope.store.kinds import describe, files_of, kind_of, kinds, load_run, read_record, resolve

NAMES = pytest.mark.parametrize("name", EVERY_KIND)


@NAMES
def test_a_folder_of_every_kind_is_recognized_described_and_loaded(runs_of_every_kind: Path, name: str) -> None:
    folder = runs_of_every_kind / name
    kind = kind_of(folder)
    assert kind.name == EVERY_KIND[name][0]
    record = read_record(folder, kind)
    assert record.get("kind") == (kind.name if kind.record == "run.json" else None)
    line = describe(folder)
    assert line.settings
    assert line.model or kind.name in ("audit", "recall", "scorecard")
    assert line.verdict or kind.name in ("scan", "comparison")
    assert load_run(folder) is not None


@NAMES
def test_a_record_of_0_2_0_names_no_kind(runs_of_every_kind: Path, name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(runs_of_every_kind / name, folder)
    kind = kind_of(folder)
    record = read_record(folder, kind)
    record.pop("kind", None)
    (folder / "run.json").unlink(missing_ok=True)
    (folder / kind.record).write_text(json.dumps(record))
    assert kind_of(folder) == kind
    (folder / kind.record).write_text('{"mod')
    assert kind_of(folder) == kind
    with pytest.raises(OutputError, match="cannot be read"):
        load_run(folder)


def test_older_formats_are_refused_by_version(runs_of_every_kind: Path, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(runs_of_every_kind / "scan", folder)
    record = json.loads((folder / "run.json").read_text("utf-8"))
    (folder / "run.json").write_text(json.dumps(record | {"attnscope": "0.1.3"}))
    with pytest.raises(OutputError, match=r"attnscope 0\.1\.3, which is no longer read"):
        load_run(folder)


def test_every_file_of_a_run_is_declared(runs_of_every_kind: Path) -> None:
    for name in EVERY_KIND:
        folder = runs_of_every_kind / name
        declared = {file for pattern in files_of(kind_of(folder)) for file in folder.glob(pattern)}
        assert {file for file in folder.rglob("*") if file.is_file()} <= declared, name


def test_all_targets_are_there_and_names_are_different() -> None:
    found = list(kinds())
    assert len({kind.name for kind in found}) == len(found)
    for kind in found:
        targets = (kind.load, kind.describe, *(verb.function for verb in kind.verbs))
        assert all(callable(resolve(target)) for target in targets)


def test_kinds_are_found_without_loading_anything_heavy() -> None:
    code = (
        "import sys; from attnscope.store.kinds import kinds; assert len(list(kinds())) > 9; "
        "assert not {'torch', 'polars', 'numpy', 'transformers', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A study from elsewhere, with a run of its kind."""
    package = tmp_path / "path" / "tides"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from attnscope.store.kinds import Description, Kind\n"
        "def describe(folder, run):\n    return Description(run['model'], '', 'tides', 'high')\n"
        "def load(folder):\n    return 'the tides'\n"
        "KINDS = (Kind('tides', 'attnscope.studies.tides:load', 'attnscope.studies.tides:describe'),)\n"
    )
    monkeypatch.setattr(attnscope.studies, "__path__", [*attnscope.studies.__path__, str(package.parent)])
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"kind": "tides", "attnscope": "0.3.0", "model": "the sea"}))
    yield run
    sys.modules.pop("attnscope.studies.tides", None)


def test_a_study_that_a_stranger_adds_or_removes_is_handled(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_run(stranger) == "the tides"
    assert describe(stranger).model == "the sea"
    monkeypatch.undo()
    with pytest.raises(OutputError, match="of the kind 'tides', which is not part of this attnscope"):
        kind_of(stranger)


@NAMES
def test_run_json_names_the_kind_for_the_time_when_its_study_is_deleted(
    runs_of_every_kind: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kind = runs_of_every_kind / name, EVERY_KIND[name][0]
    if kind == "diagnosis":
        return  # not of a study
    assert json.loads((folder / "run.json").read_text("utf-8"))["kind"] == kind
    others = tuple(each for each in kinds() if each.name != kind)
    monkeypatch.setattr("attnscope.store.kinds.kinds", lambda: others)
    with pytest.raises(OutputError, match=f"of the kind '{kind}', which is not part of this attnscope"):
        kind_of(folder)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"kind": "something else"}')
    with pytest.raises(OutputError, match=r"run\.json in .* cannot be read as that of a run"):
        kind_of(tmp_path)
    with pytest.raises(OutputError, match="is not a folder"):
        kind_of(tmp_path / "nowhere")


def test_the_schemas_are_those_of_what_is_written() -> None:
    from attnscope.monitor import run_files
    from attnscope.store import tables

    written = {
        "scan": tables.SCHEMA_VERSION,
        "diagnosis": tables.FINDINGS_VERSION,
        "training": run_files.SCHEMA_VERSION,
    }
    assert {kind.name: kind.schema for kind in kinds() if kind.schema} == written


@NAMES
def test_a_run_that_lacks_a_file_or_has_another_format_is_not_listed_as_finished(
    runs_of_every_kind: Path, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / name
    shutil.copytree(runs_of_every_kind / name, folder)
    kind, library = kind_of(folder), Library(tmp_path)
    for files in kind.needs:
        kept = {file: (folder / file).read_bytes() for file in files if (folder / file).is_file()}
        for file in kept:
            (folder / file).unlink()
        assert_damaged(folder, library, f"{files[0]} ")
        for file, content in kept.items():
            (folder / file).write_bytes(content)
    if kind.schema:
        record = read_record(folder, kind)
        (folder / kind.record).write_text(json.dumps(record | {"schema": 99}))
        assert_damaged(folder, library, "newer attnscope")


def test_records_with_values_of_another_type_are_refused(runs_of_every_kind: Path, tmp_path: Path) -> None:
    library = Library(tmp_path)
    scan = shutil.copytree(runs_of_every_kind / "diagnosed", tmp_path / "diagnosed")
    record = json.loads((scan / "run.json").read_text("utf-8"))
    record["model"]["name"] = 7
    (scan / "run.json").write_text(json.dumps(record))
    assert_damaged(scan, library, "7 is no text")
    shutil.rmtree(scan)
    comparison = shutil.copytree(runs_of_every_kind / "comparison", tmp_path / "comparison")
    record = json.loads((comparison / "compare.json").read_text("utf-8"))
    record["run"]["settings"]["windows"] = "two"
    (comparison / "compare.json").write_text(json.dumps(record))
    assert_damaged(comparison, library, "is damaged")


def assert_damaged(folder: Path, library: Library, words: str) -> None:
    """The run is listed as one that cannot be read, with the reason that reading it gives."""
    (entry,) = library.entries()
    assert (entry.state, entry.opens) == ("unreadable", False)
    assert words in entry.reason
    with pytest.raises(OutputError) as caught:
        load_run(folder)
    assert str(caught.value) == entry.reason
    assert "\n" not in entry.reason
