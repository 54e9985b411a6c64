"""The tables of every kind of model that can be scanned, and of runs that were interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from families import tiny_model
from models import build
from reproductions import BOOK, collect

import attnscope
from attnscope.capture.models import load_model
from attnscope.engine.blocks import LocalEngine
from attnscope.engine.store import BlocksInMemory, BlocksOnDisk
from attnscope.errors import ModelError
from attnscope.progress import Step
from attnscope.store.manifest import Manifest
from attnscope.studies.paper import reproduction
from attnscope.studies.paper.collect import Collected, ReproductionWork
from attnscope.studies.paper.collect import collect as collect_all
from attnscope.studies.paper.settings import plan
from attnscope.studies.paper.store import LAST_ROW_NAMES, PROTOCOL_NAMES

TABLE_NAMES = LAST_ROW_NAMES + PROTOCOL_NAMES
OPTIONS: dict[str, Any] = {"length": 64, "windows": 2, "draws": 9}
SCANNED: Any = {"length": 64, "lengths": [32, 64], "windows": 2, "bounds": "paper"}
KEYS = ["window", "layer", "head", "length", "n"]
COLUMNS = ("top_mass", "distance", "expected_printed", "separability", "distance_bound_printed")


def lines(table: pl.DataFrame) -> pl.DataFrame:
    return table.with_columns(pl.col(KEYS).cast(pl.Int64))


@pytest.mark.parametrize("family", ["bloom", "gptj", "bert", "t5"])
def test_every_family_that_can_be_scanned(family: str, tokenizer: Any) -> None:
    """Logits of the model's own making (bloom, gptj), encoders, and encoder-decoders."""
    module = tiny_model(family)
    tables = collect(module, **OPTIONS)
    scan = attnscope.scan(module, BOOK.content, tokenizer=tokenizer, top_n=[5, 20], **SCANNED)
    ours = lines(tables["topn"].filter(sink="kept"))
    # An encoder's scan measures the last row of each length, as this does.
    both = lines(scan.topn).join(ours, on=KEYS, suffix="_ours")
    assert len(both) == len(scan.topn)
    for name in COLUMNS:
        assert both[name].to_numpy() == pytest.approx(both[f"{name}_ours"].to_numpy(), rel=1e-9, abs=1e-12)
    assert set(tables["gradient"]["reading"]) == ({"scaled"} if family in ("bloom", "gptj") else {"scaled", "raw"})


@pytest.mark.parametrize("kind", ["output", "hidden"])
def test_every_kind_of_vectors(kind: str, tokenizer: Any) -> None:
    module = build("llama-gqa")
    tables = collect(module, vectors=("value", kind), **OPTIONS)
    scan = attnscope.scan(module, BOOK.content, tokenizer=tokenizer, top_n=[5], vectors=kind, **SCANNED)
    both = lines(scan.topn).join(lines(tables["topn"].filter(sink="kept", vectors=kind)), on=KEYS, suffix="_ours")
    assert len(both) == len(scan.topn) == 2 * 2 * 12
    for name in COLUMNS:
        assert both[name].to_numpy() == pytest.approx(both[f"{name}_ours"].to_numpy(), rel=1e-9)
    assert set(tables["tests"]["vectors"]) == {"value", kind}


@pytest.mark.parametrize("family", ["gemma2-softcap", "t5"])
def test_heads_are_tested_together_where_their_rows_are_equally_long(family: str) -> None:
    """Of layers that see different numbers of keys (a sliding window, a decoder beside its encoder): the longest."""
    module = tiny_model(family) if family == "t5" else build(family, "eager")
    tables = collect(module, rows=2, **OPTIONS)
    keys = ["window", "row", "prefix", "sink"]
    lengths = tables["rows"].select(*keys, "layer", "head", "length").unique()
    assert lengths.group_by(keys).agg(pl.col("length").n_unique())["length"].max() > 1
    longest = lengths.filter(pl.col("length") == pl.col("length").max().over(keys))
    expected = longest.group_by(*keys, "length").agg(heads=pl.len())
    tested = tables["tests"].select(*keys, "length", "heads").unique()
    assert sorted(tested.rows()) == sorted(expected.rows())


def test_lines_stand_in_one_order_whichever_thread_is_done_first() -> None:
    tables = collect(build("llama-gqa"), vectors=("value", "output"), rows=2, **OPTIONS)
    for name in ("rows", "topn", "drawn", "gradient", "sharpness", "coverage"):
        table = tables[name]
        keys = ["window", "layer", "prefix", "row", "sink", "vectors", "reading", "step", "head", "heads", "n"]
        orders = {"sink": ["kept", "dropped"], "vectors": ["value", "output"], "reading": ["scaled", "raw"]}
        ranks = [
            [orders[key].index(value) for value in table[key]] if key in orders else table[key].to_list()
            for key in keys
            if key in table.columns
        ]
        places = list(zip(*ranks, strict=True))
        assert places == sorted(places), name


def test_a_swapped_model_is_refused() -> None:
    module = build("gpt2")
    with attnscope.swap(module, "softmax:temperature=2"), pytest.raises(ModelError, match="swapped normalizer"):
        collect(module, **OPTIONS)


def test_a_broken_head_is_left_out_and_named(tokenizer: Any) -> None:
    module = build("gpt2")
    with torch.no_grad():
        module.transformer.h[1].attn.c_attn.bias[2 * 35 + 7 * 2] = torch.nan  # a value of head 2
    model = load_model(module, tokenizer=tokenizer)
    work = ReproductionWork.planned(model.facts, BOOK, plan(model.positions, length=32, windows=1, draws=9))
    collected = collect_all(LocalEngine(model), work, BlocksInMemory())
    tables = collected.tables
    assert (1, 2) in collected.skipped
    assert tables["topn"].filter(layer=1, head=2).is_empty()
    assert not tables["topn"].filter(layer=1, head=3).is_empty()


class StoppedError(Exception):
    pass


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, tokenizer: Any) -> None:
    model = load_model(build("gpt2"), tokenizer=tokenizer)
    work = ReproductionWork.planned(model.facts, BOOK, plan(model.positions, length=32, windows=3, draws=9))
    seen: list[int] = []

    def stop(step: Step) -> None:
        assert step.total == 9
        if step.done == 8:
            raise StoppedError

    def run(progress: Any) -> Collected:
        with BlocksOnDisk(tmp_path, {"of": (1, 2)}, work.blocks) as parts:
            return collect_all(LocalEngine(model), work, parts, progress)

    with pytest.raises(StoppedError):
        run(stop)
    again = run(lambda step: seen.append(step.done))
    assert seen == [7, 8, 9]
    assert again.resumed == 2
    whole = collect_all(LocalEngine(model), work, BlocksInMemory()).tables
    for name in TABLE_NAMES:
        keys = [column for column, kind in whole[name].schema.items() if not kind.is_float()]
        assert again.tables[name].sort(keys).equals(whole[name].sort(keys)), name


def _finished(parts: Path) -> int:
    manifest = Manifest.read(parts)
    return 0 if manifest is None else manifest.finished_windows


def test_a_killed_command_goes_on_where_it_stopped(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book, out = tmp_path / "book.txt", tmp_path / "out"
    book.write_text(BOOK.content, "utf-8")
    options = {"length": "64", "windows": "6", "draws": "99"}
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "attnscope.cli", "reproduce", str(model_folder), "--text", str(book)]
    process = subprocess.Popen([*command, *given, "--out", str(out)], stderr=subprocess.PIPE)
    parts = out / ".parts"
    deadline = time.monotonic() + 120
    while process.poll() is None and not _finished(parts) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    kept = _finished(parts)
    assert 1 <= kept < 6
    assert not (out / "run.json").exists()
    monkeypatch.setattr("attnscope.experiments.figures.draw_all", lambda *_: {})  # pictures are not in question
    numbers = {name: int(value) for name, value in options.items()}
    result = reproduction.reproduce(str(model_folder), book, out=out, **numbers)
    assert result.run["resumed_windows"] == kept
    assert f"{kept} windows were finished by an earlier run" in capsys.readouterr().err
    assert not parts.exists()
