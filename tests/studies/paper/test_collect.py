"""The tables of every kind of model that can be scanned, and of runs that were interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import protocol_oracle as oracle
import pytest
import torch
from families import tiny_model
from models import build
from protocol_heads import plain_heads
from reproductions import BOOK, collect
from scipy import stats

import attnscope
from attnscope.capture.models import load_model
from attnscope.engine.blocks import LocalEngine
from attnscope.engine.store import BlocksInMemory, BlocksOnDisk
from attnscope.errors import ModelError
from attnscope.progress import Step
from attnscope.store.manifest import Manifest
from attnscope.studies.paper import reproduction
from attnscope.studies.paper.reproduction import Collected, ReproductionWork, collect as collect_all
from attnscope.studies.paper.settings import TABLE_NAMES, plan

OPTIONS: dict[str, Any] = {"length": 64, "windows": 2}
KEYS = ["window", "layer", "head", "length", "n"]


def lines(table: pl.DataFrame) -> pl.DataFrame:
    return table.with_columns(pl.col(KEYS).cast(pl.Int64))


@pytest.mark.parametrize("family", ["bloom", "gptj", "bert", "t5"])
def test_every_family_that_can_be_scanned(family: str) -> None:
    """Logits of the model's own making (bloom, gptj), encoders, and encoder-decoders."""
    tables = collect(tiny_model(family), **OPTIONS)
    assert set(tables["protocol_gradient"]["logit_scale"]) == (
        {"scaled"} if family in ("bloom", "gptj") else {"scaled", "raw"}
    )
    for name in TABLE_NAMES:
        assert not tables[name].is_empty(), name


def test_means_over_rows_are_those_of_a_scan_of_all_rows(tokenizer: Any) -> None:
    """In the visible reading, of one length: the mean over the rows with at least N + 1 keys."""
    module = build("llama-gqa")
    tables = collect(module, vectors=("value", "hidden"), length=64, windows=2)
    options: Any = {"length": 64, "windows": 2, "rows": "all", "top_n": [5], "vectors": "hidden"}
    scan = attnscope.scan(module, BOOK.content, tokenizer=tokenizer, **options)
    keys = ["window", "layer", "head"]
    means = lines(scan.topn).group_by(keys).agg(pl.mean("distance", "expected_printed"), pl.len())
    ours = tables["protocol_distance"].filter(reading="visible", vectors="hidden", length=64, n=5)
    both = means.join(ours, on=keys, suffix="_ours")
    assert len(both) == len(ours) == 2 * 12
    assert both["len"].to_list() == both["rows"].to_list()
    for name in ("distance", "expected_printed"):
        assert both[name].to_numpy() == pytest.approx(both[f"{name}_ours"].to_numpy(), rel=1e-9)
    several = scan.rows.with_columns(pl.col(*keys, "length").cast(pl.Int64)).filter(pl.col("length") > 1)
    means = several.group_by(keys).agg(pl.mean("entropy_ratio", "max_weight"))
    both = means.join(tables["protocol_rows"].filter(reading="visible", length=64), on=keys, suffix="_ours")
    assert len(both) == 2 * 12
    for name in ("entropy_ratio", "max_weight"):
        assert both[name].to_numpy() == pytest.approx(both[f"{name}_ours"].to_numpy(), rel=1e-9)


def test_without_the_first_key_a_row_is_the_softmax_of_the_others() -> None:
    """Of a window whose keys are shifted by one: the second row has one key."""
    module = build("gpt2")
    tables = collect(module, length=32, windows=1, first_key="dropped")
    heads = plain_heads(module, BOOK, (32,), ("value",))
    for (_, layer, number), head in heads.items():
        weights = head.weights[1:, 1:] / head.weights[1:, 1:].sum(-1, keepdims=True)
        right = oracle.distance_columns(weights, head.visible[1:, 1:], head.vectors["value"][1:], 5, "literal")
        line = tables["protocol_distance"].filter(layer=layer, head=number, length=32, n=5, reading="literal")
        for column, value in right.items():
            assert line[column].item() == pytest.approx(value, rel=2e-5), column
    assert tables["protocol_tests"].filter(length=32)["n"].to_numpy().max() == 30


def test_the_tests_at_every_n_are_those_of_the_heads() -> None:
    tables = collect(build("gpt2"), length=64, windows=1)
    keys = {"length": 64, "reading": "visible"}
    heads = tables["protocol_distance"].filter(n=20, **keys)
    line = tables["protocol_tests"].filter(n=20, expectation="printed", **keys).row(0, named=True)
    expected = stats.ks_2samp(heads["distance"], heads["expected_printed"], method="exact")
    assert line["p"] == pytest.approx(expected.pvalue, rel=1e-9)
    assert line["gap"] == pytest.approx(expected.statistic, rel=1e-9)
    assert line["distance"] == pytest.approx(heads["distance"].median())


def test_heads_are_tested_together_where_their_rows_are_equally_long() -> None:
    """Of layers that see different numbers of keys (a sliding window): the longest."""
    tables = collect(build("gemma2-softcap", "eager"), **OPTIONS)
    keys = ["window", "reading", "length"]
    heads = tables["protocol_distance"].filter(n=1).group_by(keys).agg(heads=pl.len())
    tested = tables["protocol_tests"].select(*keys, "heads").unique()
    both = tested.join(heads, on=keys, suffix="_measured").filter(reading="visible")
    assert len(both)
    assert (both["heads"] <= both["heads_measured"]).all()
    assert (both["heads"] < both["heads_measured"]).any()


def test_a_swapped_model_is_refused() -> None:
    module = build("gpt2")
    with attnscope.swap(module, "softmax:temperature=2"), pytest.raises(ModelError, match="swapped normalizer"):
        collect(module, **OPTIONS)


def test_a_broken_head_is_left_out_and_named(tokenizer: Any) -> None:
    module = build("gpt2")
    with torch.no_grad():
        module.transformer.h[1].attn.c_attn.bias[2 * 35 + 7 * 2] = torch.nan  # a value of head 2
    model = load_model(module, tokenizer=tokenizer)
    work = ReproductionWork.planned(model.facts, BOOK, plan(model.positions, length=32, windows=1))
    collected = collect_all(LocalEngine(model), work, BlocksInMemory())
    tables = collected.tables
    assert (1, 2) in collected.skipped
    assert tables["protocol_distance"].filter(layer=1, head=2).is_empty()
    assert not tables["protocol_distance"].filter(layer=1, head=3).is_empty()


class StoppedError(Exception):
    pass


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, tokenizer: Any) -> None:
    model = load_model(build("gpt2"), tokenizer=tokenizer)
    work = ReproductionWork.planned(model.facts, BOOK, plan(model.positions, length=32, windows=3))
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
    options = {"length": "64", "windows": "6"}
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
    monkeypatch.setattr("attnscope.studies.paper.figures.draw", lambda _: {})  # pictures are not in question
    numbers = {name: int(value) for name, value in options.items()}
    result = reproduction.reproduce(str(model_folder), book, out=out, **numbers)
    assert result.run["resumed_windows"] == kept
    assert f"{kept} windows were finished by an earlier run" in capsys.readouterr().err
    assert not parts.exists()
