"""The comparison against computations that share nothing with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import plain
import polars as pl
import pytest
import torch
from command_options import assert_parameters
from models import build

import attnscope
from attnscope.capture.models import Model
from attnscope.capture.text import Text, tokenize
from attnscope.cli import run
from attnscope.errors import InputError
from attnscope.normalizers import parse
from attnscope.options import Loading
from attnscope.studies.compare import guidelines as advice, view
from attnscope.studies.compare.calibration import bounded_minimum, calibrate
from attnscope.studies.compare.comparing import compare, peak_bytes
from attnscope.studies.compare.guidelines import (
    Finding,
    direction,
    entropy_with_length,
    no_sharp_softmax,
    small_active_set,
)
from attnscope.studies.compare.verb import CompareOptions, EvaluationOptions

LENGTHS = (17, 41)


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Model:
    return Model(build("llama-gqa"), tokenizer, "tiny", None)


@pytest.fixture(scope="module")
def written() -> Text:
    return Text("The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9, "test")


@pytest.fixture(scope="module")
def table(model: Model, written: Text) -> pl.DataFrame:
    names = ["softmax", "sparsemax", "ssmax:s=0.6"]
    return compare(model, written, names, lengths=LENGTHS, windows=2, top_n=3).table


def windows(model: Model, written: Text, count: int) -> list[torch.Tensor]:
    tokens = tokenize(model.tokenizer, written)
    return [torch.tensor(tokens[i * 41 : (i + 1) * 41]) for i in range(count)]


def test_softmax_is_the_model_itself(table: pl.DataFrame) -> None:
    for mode in ("what-if", "swapped"):
        own = table.filter(mode=mode, normalizer="own").drop("mode", "normalizer", "time_ratio", "memory_ratio")
        same = table.filter(mode=mode, normalizer="softmax").drop("mode", "normalizer", "time_ratio", "memory_ratio")
        for name in own.columns[4:]:
            a, b = own[name].to_list(), same[name].to_list()
            assert a == b or np.allclose(a, b, rtol=1e-3, atol=1e-6), name
    swapped = table.filter(mode="swapped", normalizer="softmax")
    assert swapped["agreement"].to_list() == [1.0, 1.0]
    assert swapped["kl"].max() < 1e-6


@pytest.mark.parametrize(("label", "row"), [("own", plain.softmax), ("sparsemax", plain.sparsemax)])
def test_perplexity_is_that_of_transformers_own_loss(
    model: Model, written: Text, table: pl.DataFrame, label: str, row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers.models.llama.modeling_llama as file

    same = build("llama-gqa", "eager")
    monkeypatch.setattr(file, "eager_attention_forward", plain.kernel(lambda module, head: row))
    for length in LENGTHS:
        with torch.no_grad():
            losses = [
                same(input_ids=ids[None, :length], labels=ids[None, :length]).loss.item()
                for ids in windows(model, written, 2)
            ]
        found = table.filter(mode="swapped", normalizer=label, length=length)["perplexity"].item()
        assert found == pytest.approx(math.exp(sum(losses) / 2), rel=1e-4)


def test_divergence_and_agreement_are_what_their_definitions_say(
    model: Model, written: Text, table: pl.DataFrame
) -> None:
    divergences, agreements = [], []
    for ids in windows(model, written, 2):
        with torch.no_grad():
            before = model.module(ids[None]).logits[0].double().numpy()
            with attnscope.swap(model.module, "ssmax:s=0.6"):
                after = model.module(ids[None]).logits[0].double().numpy()
        for i in range(LENGTHS[0] - 1):
            p, q = (np.exp(x[i] - x[i].max()) for x in (before, after))
            p, q = p / p.sum(), q / q.sum()
            divergences.append(float((p * np.log(p / q)).sum()))
            agreements.append(float(p.argmax() == q.argmax()))
    line = table.filter(mode="swapped", normalizer="ssmax:s=0.6", length=LENGTHS[0]).to_dicts()[0]
    assert line["kl"] == pytest.approx(np.mean(divergences), rel=1e-5)
    assert line["agreement"] == pytest.approx(np.mean(agreements))


def test_capacity_is_measured_on_the_swapped_models_own_rows(model: Model, written: Text, table: pl.DataFrame) -> None:
    found: dict[str, list[float]] = {"support": [], "entropy_ratio": [], "separability": []}
    calls: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []

    def watch(z: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        w = torch.zeros_like(z)
        for place in np.ndindex(*z.shape[:-1]):
            seen = visible[place]
            w[place][seen] = plain.sparsemax(z[place][seen].double()).float()
        calls.append(w[0, :, -1].double().numpy())
        return w

    values: list[torch.Tensor] = []
    hooks = [
        layer.self_attn.v_proj.register_forward_hook(lambda m, i, out: values.append(out[0].double()))
        for layer in model.module.model.layers
    ]
    for ids in windows(model, written, 2):
        with torch.no_grad(), attnscope.swap(model.module, watch):
            calls.clear()
            values.clear()
            model.module(ids[None])
        for weights, value in zip(calls, values, strict=True):
            for head, row in enumerate(weights):
                x = value.unflatten(-1, (2, 14))[:, head // 3].numpy()
                found["support"].append(int((row > 0).sum()))
                found["entropy_ratio"].append(-sum(p * math.log(p) for p in row if p > 0) / math.log(len(row)))
                if (row > 0).sum() >= 3:  # else keys of weight zero make up the top set
                    found["separability"].append(oracle.topn_columns(row, x, 3)["separability"])
    for hook in hooks:
        hook.remove()
    line = table.filter(mode="swapped", normalizer="sparsemax", length=41).to_dicts()[0]
    assert 0 < len(found["separability"]) < len(found["support"])
    assert line["defined"] == pytest.approx(len(found["separability"]) / len(found["support"]))
    for name, each in found.items():
        assert line[name] == pytest.approx(np.mean(each), rel=2e-3), name


def test_calibration_finds_the_temperature_that_undoes_another(model: Model, written: Text) -> None:
    # ssmax at scale s ln n + b with s = 0 is softmax at temperature 1 / b: the best temperature on top is b.
    found = calibrate(model.module, parse("ssmax:s=0.0:b=2.0:temperature=1"), windows(model, written, 2))
    assert found.parameter == "temperature"
    assert found.value == pytest.approx(2.0, rel=0.1)
    assert found.after < found.before / 20


def test_calibration_of_heads_is_no_worse_than_of_the_model(model: Model, written: Text) -> None:
    inputs = windows(model, written, 1)
    whole = calibrate(model.module, parse("entmax15"), inputs)
    heads = calibrate(model.module, parse("entmax15"), inputs, "head", steps=8)
    assert heads.after < whole.after < whole.before
    with torch.no_grad():
        own = model.module(inputs[0][None]).logits[0].double().log_softmax(-1)
        with attnscope.swap(model.module, heads.normalizer):
            changed = model.module(inputs[0][None]).logits[0].double().log_softmax(-1)
    assert float((own.exp() * (own - changed)).sum(-1).mean()) == pytest.approx(heads.after, rel=1e-3)
    assert all(parameter.requires_grad for parameter in model.module.parameters())


def test_the_bounded_search_finds_minima_inside_and_at_the_ends() -> None:
    assert bounded_minimum(lambda x: (x - 0.3) ** 2, -2, 3) == pytest.approx(0.3, abs=0.06)
    assert bounded_minimum(lambda x: x, -2, 3) == -2
    assert bounded_minimum(lambda x: math.inf if x < 1 else (x - 1.5) ** 2, -2, 3) == pytest.approx(1.5, abs=0.06)


def test_verdicts_follow_the_numbers() -> None:
    assert direction(0.5, 0.4) == "agrees"
    assert direction(0.4, 0.5) == "disagrees"
    assert direction(0.5, 0.501) == "undecided"
    columns = {"perplexity": 5.0, "support": 3.0, "kl": 0.1, "defined": 1.0}

    def line(name: str, separability: float, jacobian: float) -> dict[str, Any]:
        return {"normalizer": name, "separability": separability, "jacobian_norm": jacobian, **columns}

    table = pl.DataFrame([line("a", 0.9, 0.1), line("b", 0.2, 0.4)])
    small: Finding = small_active_set(table, {"a": 0.1, "b": 1.0})
    assert small.verdict == "agrees"
    assert small_active_set(table, {"b": 0.1, "a": 1.0}).verdict == "disagrees"
    assert no_sharp_softmax(table, {"b": 0.5, "a": 1.0}).verdict == "agrees"
    own = pl.DataFrame(
        {"normalizer": ["own"] * 2, "length": [8, 64], "entropy_ratio": [0.3, 0.6], "separability": [0.9, 0.5]}
    ).with_columns(defined=1.0)
    assert entropy_with_length(own).verdict == "agrees"
    rising = own.with_columns(separability=pl.Series([0.5, 0.9]))
    assert entropy_with_length(rising).verdict == "disagrees"


def test_peak_memory_is_the_most_that_was_alive() -> None:
    def work() -> None:
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b.view(10, 100) * 2
        del b, c
        torch.zeros(1500)

    assert peak_bytes(work) == 2 * 1000 * 4


def test_encoders_are_refused(tokenizer: Any) -> None:
    with pytest.raises(InputError, match="predicts the next token"):
        compare(Model(build("bert"), tokenizer, "tiny bert", None), "text", ["softmax"])


@pytest.mark.parametrize("names", ["sparsemax", ["sparsemax", "sparsemax"]])
def test_a_normalizer_is_measured_once(model: Model, written: Text, names: Any) -> None:
    lines = compare(model, written, names, lengths=[17], top_n=3, modes=["what-if"]).table
    assert lines["normalizer"].to_list() == ["own", "sparsemax"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"normalizers": []}, "normalizers takes one or several names; received none"),
        ({"normalizers": None}, "normalizers takes one or several names; received None"),
        ({"normalizers": [3]}, "normalizers takes one or several names; received 3"),
        ({"normalizers": "softmax:x=1"}, "the normalizer softmax has no setting 'x'; it has temperature"),
        ({"modes": []}, "modes takes one or several of what-if, swapped; received none"),
        ({"modes": "swap"}, "modes takes one or several of what-if, swapped; received 'swap'"),
        ({"calibration": "heads"}, "calibration takes global or head; received 'heads'"),
        ({"calibration_windows": 0}, "calibration_windows takes a whole number from 1 up; received 0"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_before_the_model_is_loaded(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        compare("no/such-model", **wrong)


def test_the_command_writes_tables_and_charts(
    model_folder: Path, written: Text, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "book.txt"
    book.write_text(written.content, encoding="utf-8")
    out = tmp_path / "out"
    options = ["--text", str(book), "--lengths", "48", "--top-n", "5", "--out", str(out), "--json"]
    code = run(["compare", str(model_folder), "-n", "topk:k=3", "--calibrate", "global", *options])
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert sorted(path.name for path in out.iterdir()) == sorted([*answer["files"], "run.json"])
    assert (out / "capacity.png").read_bytes().startswith(b"\x89PNG")
    table = pl.read_parquet(out / "compare.parquet")
    assert table["calibration"].unique().sort().to_list() == ["global", "none"]
    assert len(answer["table"]) == len(table) == 2 * 3
    for found in answer["run"]["calibration"]:
        assert found["kl_after"] <= found["kl_before"]


def test_the_guidelines_command_prints_predictions_and_verdicts(
    model_folder: Path, written: Text, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "book.txt"
    book.write_text(written.content, encoding="utf-8")
    options = ["--text", str(book), "--lengths", "16,48", "--top-n", "5", "--out", str(tmp_path / "out")]
    assert run(["guidelines", str(model_folder), *options]) == 0
    printed = capsys.readouterr().out
    for part in (
        "Keep the active set small: ",
        "Watch the entropy: ",
        "Avoid overly sharp softmax: ",
        "Predicts",
        "agrees:",
    ):
        assert part in printed
    stored = json.loads((tmp_path / "out" / "guidelines.json").read_text("utf-8"))
    assert {finding["verdict"] for finding in stored["findings"]} <= {"agrees", "disagrees", "undecided"}


def test_normalizers_of_equal_numbers_are_all_seen() -> None:
    """Their outlines have different shapes and sizes, and nothing is filled."""
    marks = [*view._MARKS.values(), view._ITSELF]
    assert len({mark.point for mark in marks}) == len({mark.size for mark in marks}) == len(marks)
    assert all(mark.fill == "transparent" for mark in view._MARKS.values())


def test_options_of_the_commands_are_parameters_with_the_same_defaults() -> None:
    assert_parameters(attnscope.compare, CompareOptions(), Loading())
    assert_parameters(advice.guidelines, EvaluationOptions())
