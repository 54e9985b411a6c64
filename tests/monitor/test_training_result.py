"""A training run in a session and a notebook: its words, its readings, its charts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from models import build
from training_runs import Training, made_training, measured_step

import attnscope
from attnscope.errors import InputError
from attnscope.monitor.page import training_data
from attnscope.monitor.training_run import TrainingRun
from attnscope.serve.library import foreign_files


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    folder = made_training(tmp_path_factory.mktemp("runs") / "train", 80)
    loaded = attnscope.load_run(folder)
    assert isinstance(loaded, TrainingRun)
    return loaded


def test_it_says_what_was_watched_in_at_most_ten_lines(run: TrainingRun) -> None:
    words = repr(run).splitlines()
    assert len(words) <= 10
    assert max(map(len, words)) <= 80
    joined = " ".join(repr(run).split())
    assert joined.startswith("TrainingRun: tiny-gpt2, 3 layers, 15 heads; 80 measured steps up to step 4,000, finished")
    assert "1 alarm in 1 of 15 heads, the first at step 3,050: L1H2, entropy collapse" in joined
    summary = str(run.summary())
    assert max(map(len, summary.splitlines())) <= 80
    assert (
        "step 3,050, L1H2: entropy collapse, entropy ratio 0.02 (limit 0.1): lower the learning rate"
        in summary.replace("\n    ", " ")
    )
    assert "&lt;b&gt;now&lt;/b&gt;" in run._repr_html_()
    assert "<script" not in run._repr_html_()


def test_it_is_saved_elsewhere(run: TrainingRun, tmp_path: Path) -> None:
    again = attnscope.load_run(run.save(tmp_path / "copy"))
    assert isinstance(again, TrainingRun)
    assert again.heads.equals(run.heads)
    assert again.alarms.equals(run.alarms)
    assert foreign_files(tmp_path / "copy") == []


def test_readings_are_the_first_limit_that_is_crossed(run: TrainingRun) -> None:
    found = {}
    for line in measured_step(4000).iter_rows(named=True):
        reading = "in limits"
        if line["entropy_ratio"] >= 0.97:  # as the thresholds of the run say, not the default ones
            reading = "dilute"
        if line["entropy_ratio"] <= 0.1:
            reading = "one-hot"
        if line["sink_weight"] >= 0.9:
            reading = "first-key"
        found[line["layer"], line["head"]] = reading
    assert {"in limits", "one-hot", "dilute"} <= set(found.values())
    readings = run.readings
    assert {
        (layer, head): reading for layer, head, reading in readings.select("layer", "head", "reading").iter_rows()
    } == found


def test_heads_without_numbers_have_no_reading(tmp_path: Path) -> None:
    training = Training(tmp_path)
    broken = pl.when(head=2).then(pl.lit(math.nan)).otherwise(pl.col("sink_weight"))
    training.files.add_table("heads", measured_step(50).with_columns(sink_weight=broken))
    loaded: Any = attnscope.load_run(tmp_path)
    assert set(loaded.readings.filter(head=2)["reading"]) == {"no numbers"}
    assert "no numbers" not in set(loaded.readings.filter(pl.col("head") != 2)["reading"])


def drawn_values(chart: Any) -> list[list[dict[str, Any]]]:
    """The lines of data that each layer of a chart draws."""
    content = chart.to_dict()
    parts = [layer.get("data", content.get("data")) for layer in content["layer"]]
    return [part["values"] if "values" in part else content["datasets"][part["name"]] for part in parts]


def test_a_curve_has_the_measured_values_and_the_range_over_heads(run: TrainingRun) -> None:
    band, line, rule = drawn_values(run.plot.curve("max_weight", [(1, 2)]))
    for point in line:
        table = measured_step(point["step"])
        assert point["max_weight"] == table.filter(layer=1, head=2)["max_weight"].item()
    for point in band:
        table = measured_step(point["step"])
        assert (point["low"], point["high"]) == (table["max_weight"].min(), table["max_weight"].max())
    assert [mark["step"] for mark in rule] == [3050]


def test_a_map_has_the_values_of_its_step(run: TrainingRun) -> None:
    for step, expected in ((1000, 1000), (None, 4000)):
        (drawn,) = drawn_values(run.plot.map("max_logit", step))
        cells = {(cell["layer"], cell["head"]): cell["max_logit"] for cell in drawn}
        table = measured_step(expected).select("layer", "head", "max_logit")
        assert cells == {(layer, head): value for layer, head, value in table.iter_rows()}


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda run: run.plot.curve("entropy"), "no measure 'entropy'; there are max_logit, logit_std"),
        (lambda run: run.plot.curve("max_logit", [(3, 0)]), "no head L3H0: layers go to 2, heads to 4"),
        (lambda run: run.plot.curve("max_logit", [3]), "heads are pairs of layer and head"),
        (lambda run: run.plot.map("max_logit", 1001), "step 1001 was not measured; the nearest is 1000"),
        (lambda run: run.plot.scalar("accuracy"), "no 'accuracy' was given to the monitor; there is loss"),
    ],
)
def test_what_is_not_there_is_refused_by_name(run: TrainingRun, draw: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw(run)


def test_a_run_before_its_first_step_says_so(tmp_path: Path) -> None:
    Training(tmp_path)
    loaded: Any = attnscope.load_run(tmp_path)
    for words in (repr(loaded), str(loaded.summary()), loaded._repr_html_()):
        assert "Nothing was measured yet" in words
    assert loaded.page()
    with pytest.raises(InputError, match="no step was measured yet"):
        loaded.plot.curve()


def test_what_a_monitor_wrote_is_what_the_page_has(tmp_path: Path) -> None:
    model = build("gpt2").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.arange(2 * 32).reshape(2, 32) % 90
    with attnscope.Monitor(model, every=2, rows=4, out=tmp_path) as monitor:
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            monitor.step(loss=loss)
        running: Any = attnscope.load_run(tmp_path)
    assert running.status == "training"
    finished: Any = attnscope.load_run(tmp_path)
    assert finished.status == "finished"
    data = training_data(finished)
    assert data["steps"] == [1, 2, 4]
    expected = monitor.heads["max_logit"].to_list()
    assert data["columns"]["max_logit"] == pytest.approx(expected, rel=1e-3)
    assert data["scalars"]["loss"]["step"] == [1, 2, 3, 4, 5]
    assert set(data["kinds"].values()) - {None} <= set(data["measures"])
