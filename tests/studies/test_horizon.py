"""`attnscope horizon` from the text to the tables: contract, check, intervals, verdicts, bad input."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command_options import assert_parameters
from models import build, byte_tokenizer

import attnscope
from attnscope.capture.models import Model
from attnscope.capture.text import Text, tokenize
from attnscope.cli import run
from attnscope.errors import InputError
from attnscope.options import Loading
from attnscope.serve.library import Library
from attnscope.studies.horizon.measuring import HorizonRecord, HorizonSettings, choose_windows, reach_distances
from attnscope.studies.horizon.prediction import Prediction, Stack, half_lengths, reach, verdicts, with_mass_kept
from attnscope.studies.horizon.result import Horizon
from attnscope.studies.horizon.verb import HorizonOptions

MEASURES = ["top5", "participation", "entropy_ratio", "max_weight"]
LENGTH, TO = 64, 256
OPTIONS: dict[str, Any] = {"length": LENGTH, "to": TO, "windows": 3, "rows": 8, "progress": False}


def varied(count: int) -> str:
    """A text that does not repeat itself."""
    drawn = np.random.default_rng(1).integers(97, 123, count)
    return "".join(" " if at % 7 == 6 else chr(letter) for at, letter in enumerate(drawn))


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(build("llama-gqa"), byte_tokenizer(), "tiny", None)


@pytest.fixture(scope="module")
def checked(model: Model) -> Horizon:
    found = attnscope.horizon(model, varied(2000), check=True, check_windows=2, normalizers="ssmax", **OPTIONS)
    assert isinstance(found, Horizon)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rotary")
    build("llama-gqa").save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    (path / "book.txt").write_text(varied(1500))
    return path


def command(folder: Path, *more: str) -> list[str]:
    sizes = ["--length", str(LENGTH), "--to", str(TO), "--windows", "3", "--rows", "8"]
    return ["horizon", str(folder), "--text", str(folder / "book.txt"), *sizes, *more]


def test_the_command_writes_the_tables_of_the_contract(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(command(folder, "--normalizer", "ssmax,entmax:alpha=1.2", "--out", str(out), "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["run"]["back_test"]["own"]["errors"]["prediction"]["top5"]["median"] >= 0
    table, heads = pl.read_parquet(out / "horizon.parquet"), pl.read_parquet(out / "heads.parquet")
    keys = ["normalizer", "layer", "head"]
    assert table.columns == [*keys, "length", "measure", "predicted", "lower", "upper"]
    assert heads.columns == [*keys, "half_length", "reach", "verdict"]
    labels = ["own", "ssmax", "entmax:alpha=1.2"]
    assert heads["normalizer"].unique(maintain_order=True).to_list() == labels
    assert heads.height == len(labels) * 2 * 6
    assert sorted(table["measure"].unique()) == sorted(MEASURES)
    assert table["length"].unique().sort().to_list() == [16, 32, 64, 128, 256]
    assert not table.select(pl.any_horizontal(pl.all().is_null()).any()).item()
    assert table.select((pl.col("lower") <= pl.col("predicted")).all()).item()
    assert table.select((pl.col("predicted") <= pl.col("upper")).all()).item()
    assert {"report.html", "rows.parquet", "run.json"} <= {path.name for path in out.iterdir()}
    found = attnscope.load_run(out)
    assert isinstance(found, Horizon)
    assert found.table.equals(table)
    assert "At longer inputs" in found.page()


def test_the_printed_summary_has_the_back_test_and_the_check(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(folder, "--check", "--check-windows", "1", "--out", str(tmp_path / "out"))) == 0
    printed = capsys.readouterr().out
    for part in ("Verdict: ", "Back-test: 64 tokens predicted from 16", "fresh inputs of 256 tokens", "No change"):
        assert part in printed


def test_measured_values_are_those_of_a_dense_computation(model: Model, checked: Horizon) -> None:
    """The last eighth of each length, from transformers' own eager attention in float64."""
    settings = HorizonSettings(LENGTH, TO, 3, 8, check_windows=2)
    tokens = tokenize(model.tokenizer, Text(varied(2000), "test"))
    module = build("llama-gqa").double()
    module.set_attn_implementation("eager")
    means = []
    for start in choose_windows(len(tokens), settings, "test").check_starts:
        with torch.no_grad():
            found = module(torch.tensor([tokens[start : start + TO]]), output_attentions=True).attentions
        weights = torch.stack([layer[0] for layer in found]).numpy()  # (layers, heads, rows, keys)
        rows = [round(row) for row in np.linspace(TO - TO // 8, TO - 1, 8) + 1e-9]
        each = []
        for row in rows:
            seen = weights[:, :, row, : row + 1]
            entropy = -(seen * np.log(seen)).sum(-1) / math.log(row + 1)
            top = np.sort(seen, -1)[..., ::-1]
            each.append(np.stack([top[..., :5].sum(-1), 1 / (seen**2).sum(-1), entropy, top[..., 0]], -1))
        means.append(np.mean(each, 0))
    wanted = np.mean(means, 0)
    own = checked.table.filter(normalizer="own", length=TO).sort("layer", "head", maintain_order=True)
    assert np.allclose(own["measured"].to_numpy().reshape(wanted.shape), wanted, rtol=1e-4)


def test_the_check_states_the_errors_of_its_own_table(checked: Horizon) -> None:
    stated = checked.run["check"]["own"]["lengths"][-1]
    own = checked.table.filter(normalizer="own", length=TO, measure="top5")
    errors = (own["predicted"] / own["measured"]).log().abs()
    assert stated["errors"]["prediction"]["top5"]["median"] == pytest.approx(errors.median())
    inside = (own["lower"] <= own["measured"]) & (own["measured"] <= own["upper"])
    assert stated["coverage"]["top5"] == pytest.approx(inside.mean())
    before = checked.table.filter(normalizer="own", length=LENGTH, measure="top5")
    no_change = (before["predicted"] / own["measured"]).log().abs()
    assert stated["errors"]["no_change"]["top5"]["median"] == pytest.approx(no_change.median())
    short = checked.table.filter(normalizer="own", length=LENGTH // 4, measure="top5")
    exponent = (before["predicted"] / short["predicted"]).log() / math.log(4)
    power_law = ((before["predicted"] / own["measured"]).log() + exponent * math.log(TO / LENGTH)).abs()
    assert stated["errors"]["power_law"]["top5"]["median"] == pytest.approx(power_law.median())


def test_a_prediction_is_the_same_when_saved_and_loaded(checked: Horizon, tmp_path: Path) -> None:
    found = attnscope.load_run(checked.save(tmp_path / "saved"))
    assert isinstance(found, Horizon)
    assert found.table.equals(checked.table)
    assert found.heads.equals(checked.heads)
    assert repr(found) == repr(checked)


def test_a_scan_in_the_folder_is_kept_and_a_new_scan_drops_the_prediction(model: Model, tmp_path: Path) -> None:
    text, out = varied(1500), tmp_path / "out"
    attnscope.scan(model, text, length=32, progress=False).save(out)
    before = (out / "rows.parquet").read_bytes()
    attnscope.horizon(model, text, out=out, **OPTIONS)
    assert (out / "rows.parquet").read_bytes() == before
    assert "At longer inputs" in (out / "report.html").read_text("utf-8")
    assert attnscope.load_run(out).horizon.heads.height == 12  # type: ignore[union-attr]
    attnscope.scan(model, text, length=32, progress=False).save(out)
    assert not (out / "heads.parquet").exists()
    assert attnscope.load_run(out).horizon is None  # type: ignore[union-attr]


def test_a_prediction_with_the_scan_of_its_page_is_one_on_the_server_too(model: Model, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):  # the second time the scan is there, made for the page
        made = attnscope.horizon(model, varied(1500), out=out, **OPTIONS)
        library = Library(tmp_path)
        (entry,) = library.entries()
        assert (entry.kind, entry.state, entry.verdict) == ("horizon", "finished", made.run["finding"]["title"])
        assert {"horizon.parquet", "horizon.json", "rows.parquet", "run.json", "report.html"} <= set(entry.downloads)
        assert "At longer inputs" in library.page("out")
    attnscope.scan(model, varied(1500), length=32, progress=False).save(out)
    assert library.entries()[0].kind == "scan"
    made.save(out)
    assert library.entries()[0].kind == "scan"  # as a prediction in the folder of a scan is part of it
    assert "horizon.parquet" in library.entries()[0].downloads


def test_repeated_text_is_measured_and_said(model: Model) -> None:
    repeated = attnscope.horizon(model, varied(150) * 10, **OPTIONS)
    assert repeated.run["repeated_share"] > 0.5
    assert "The text repeats itself" in repr(repeated)
    assert attnscope.horizon(model, varied(1500), **OPTIONS).run["repeated_share"] == 0


def test_windows_neither_overlap_nor_leave_the_text() -> None:
    for tokens in (1000, 1537, 4096):
        for checks in (0, 1, 3):
            settings = HorizonSettings(64, 200, 5, 8, check_windows=checks)
            chosen = choose_windows(tokens, settings, "test")
            spans = [(at, at + 64) for at in chosen.starts] + [(at, at + 200) for at in chosen.check_starts]
            spans.sort()
            assert spans[0][0] >= 0
            assert spans[-1][1] <= tokens
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def made(top: dict[int, float], back_test: float, windows: int = 4) -> Prediction:
    """A prediction of one head with these top-5 masses by length, the same in every window."""
    settings = HorizonSettings(1024, 8192)

    def stack(lengths: tuple[int, ...], values: dict[int, float]) -> Stack:
        return Stack([(0, 0)], {n: np.full((windows, 1, 4), values[n]) for n in lengths})

    measured, predicted = settings.measured_lengths, settings.predicted_lengths
    return Prediction(settings, stack(measured, top), stack(predicted, top), stack((1024,), {1024: back_test}))


def power(exponent: float) -> dict[int, float]:
    return {64 * 2**step: 0.8 * (64 / (64 * 2**step)) ** exponent for step in range(8)}


@pytest.mark.parametrize(
    ("exponent", "verdict"),
    [(0.0, "holds"), (0.1, "holds"), (0.3, "thins"), (0.6, "diluted"), (0.2, "undecided"), (0.4, "undecided")],
)
def test_a_verdict_is_given_where_the_interval_allows_only_one(exponent: float, verdict: str) -> None:
    """From 256 to 8,192 tokens a head keeps 32 ** -exponent of its mass: 0.5 at 0.2, 0.25 at 0.4."""
    top = power(exponent)
    assert verdicts(made(top, top[1024] * 1.05)) == [verdict]


def test_an_interval_is_as_wide_as_the_back_test_says() -> None:
    top = power(0.3)
    widths = [made(top, top[1024] * error).half_width(8192)[0, 0] for error in (1.02, 1.1)]
    assert widths[1] > 3 * widths[0]


def test_half_of_a_power_law_is_lost_where_it_should_be() -> None:
    (found,) = half_lengths(made(power(0.25), 0.4))
    assert found == pytest.approx(256 * 2**4)
    assert half_lengths(made(power(0.1), 0.4)) == [None]


def test_reach_ends_where_the_weight_is_a_tenth_of_the_largest() -> None:
    record = HorizonRecord(0)
    distances = reach_distances(8192)
    falling = np.exp(-distances / 100 * math.log(10))
    falling[:4] = falling[3]  # largest at the first distances
    record.weight_at[0] = np.stack([falling, np.ones(len(distances))])
    near, far = reach(record, [(0, 0), (0, 1)], 8192)
    assert near == pytest.approx(100 + distances[3], rel=0.05)
    assert far is None


def test_the_mass_kept_follows_from_the_tables(checked: Horizon) -> None:
    found = with_mass_kept(checked.heads, checked.table, checked.run["settings"])
    line = found.row(3, named=True)
    top = checked.table.filter(normalizer="own", layer=line["layer"], head=line["head"], measure="top5")
    first, last = top.filter(length=LENGTH // 4), top.filter(length=TO)
    assert line["mass_kept"] == pytest.approx(last["predicted"].item() / first["predicted"].item())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": 4096}, "to=4096 is beyond the 2,048 positions"),
        ({"to": 64}, "to=64 is not beyond the windows of 64 tokens"),
        ({"windows": 1}, "windows takes a whole number from 2 up"),
        ({"rows": 7}, "rows takes a whole number from 8 up"),
        ({"length": 63}, "length takes a whole number from 64 up"),
        ({"windows": 40}, "too few for 40 windows of 64 tokens"),
        ({"check": True, "check_windows": 9}, "and 9 of 256 to check on"),
        ({"check": True, "check_windows": 0}, "check_windows takes a whole number from 1 up"),
        ({"normalizers": "sa_softmax_raw"}, "sa_softmax_raw can be negative"),
        ({"normalizers": "sofmax"}, "sofmax"),
        ({"to": 10**9}, "to takes a whole number up to 1,048,576"),
    ],
)
def test_bad_input_is_refused_in_one_line(model: Model, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        attnscope.horizon(model, varied(1500), **(OPTIONS | options))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("to", "length"), [(64, 128), (128, 128), (64, None), (None, 63)])
def test_lengths_that_no_model_allows_are_refused_before_one_is_loaded(to: int | None, length: int | None) -> None:
    with pytest.raises(InputError, match=r"is not beyond the windows|length takes a whole number from 64 up"):
        attnscope.horizon("no/such-model", "a text", to=to, length=length)


@pytest.mark.parametrize("name", ["attention_chunk_size", "index_topk"])
def test_rows_that_see_other_keys_in_longer_inputs_are_refused(name: str) -> None:
    module = build("llama-gqa")
    setattr(module.config, name, 128)
    limited = Model(module, byte_tokenizer(), "tiny", None)
    with pytest.raises(InputError, match=f"from 128 tokens on .{name} of its configuration.*use to=128 or less"):
        attnscope.horizon(limited, varied(1500), **OPTIONS)
    assert attnscope.horizon(limited, varied(1500), **(OPTIONS | {"to": 128})).heads.height


@pytest.mark.parametrize(
    ("family", "words"), [("bert", "is an encoder"), ("gpt2", "learned absolute positions (transformer.wpe)")]
)
def test_models_that_cannot_be_predicted_are_refused_by_the_command(
    family: str, words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(family).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    text = ["--text", str(folder / "book.txt"), "--length", "64", "--to", "100"]
    assert run(["horizon", str(tmp_path), *text, "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err.strip()
    assert words in " ".join(message.split())
    assert not (tmp_path / "out").exists()


def test_options_of_the_command_are_parameters_with_the_same_defaults() -> None:
    assert_parameters(attnscope.horizon, HorizonOptions(), Loading())
