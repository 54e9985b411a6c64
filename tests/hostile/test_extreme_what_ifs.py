"""What-ifs at the ends of what numbers can hold: tiny weights, temperatures near zero, weights that are no numbers."""

from __future__ import annotations

import pytest
import torch
from models import VOCABULARY, build, byte_tokenizer

import attnscope
from attnscope.measure import columns
from attnscope.measure.specification import Rows, row_columns, topn_columns
from attnscope.normalizers import FNormalizer, parse

IDS = torch.arange(2 * 13).reshape(2, 13) % VOCABULARY


def measured(weights: torch.Tensor, way: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(1, weights.shape[-1], 5, generator=generator, dtype=torch.float64)
    rows = Rows(0, (0,), torch.zeros_like(weights), torch.ones_like(weights, dtype=torch.bool), vectors)
    return columns(rows, weights, [1, 3])[1] if way == "compiled" else topn_columns(rows, weights, [1, 3])


@pytest.mark.parametrize("way", ["compiled", "torch"])
def test_weights_whose_squares_vanish_have_the_separability_of_the_same_weights_scaled(way: str) -> None:
    """Fault 12. A sigmoid at a low temperature, or a heavy sink, leaves a row with weights of 1e-200."""
    generator = torch.Generator().manual_seed(4)
    weights = torch.rand(1, 1, 11, generator=generator, dtype=torch.float64) * 2.0**-4
    scale = 2.0**-650
    ordinary, tiny = measured(weights, way), measured(weights * scale, way)
    for name in ("separability", "separability_lower", "separability_upper", "separability_lower_printed"):
        torch.testing.assert_close(tiny[name], ordinary[name], rtol=1e-12, atol=0, msg=name)
    for name in ("radius", "distance", "distance_lower", "distance_upper", "expected_lower", "expected_upper"):
        torch.testing.assert_close(tiny[name] / scale, ordinary[name], rtol=1e-12, atol=0, msg=name)


@pytest.mark.parametrize("given", [1e-320, 1e-31, 1e31])
def test_temperature_that_logits_cannot_be_divided_by_is_refused(given: float) -> None:
    """Fault 12. z / T was infinite: largest weights of 0 in the tables, NaN in the output of a swapped model."""
    match = r"temperature must be in \[1e-30, 1e\+30\], received 1e"
    with pytest.raises(attnscope.InputError, match=match):
        attnscope.scan(build("llama-gqa"), inputs={"input_ids": IDS}, temperatures=[given])
    for name in ("softmax", "sparsemax"):
        with pytest.raises(attnscope.InputError, match=match):
            parse(f"{name}:temperature={given}")


@pytest.mark.parametrize("given", [1e-30, 1e30])
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "sigmoid", "entmax:alpha=1.3"])
def test_extreme_temperatures_give_the_limits(name: str, given: float) -> None:
    """Fault 12: T to 0 and infinity, in float32, on logits of 1e4."""
    logits = torch.tensor([-1e4, 3.0, 1e4, 1e4])
    weights = parse(f"{name}:temperature={given}")(logits)
    if given < 1:
        expected = [0.0, 1.0, 1.0, 1.0] if name == "sigmoid" else [0.0, 0.0, 0.5, 0.5]
    else:
        expected = [0.2] * 4 if name == "sigmoid" else [0.25] * 4
    torch.testing.assert_close(weights, torch.tensor(expected), rtol=1e-6, atol=0)


def test_head_whose_what_if_gives_no_numbers_is_reported() -> None:
    """Fault 11. Rows of such weights stood in the tables with a largest weight of 0 and a support of 0."""
    result = attnscope.scan(
        build("llama-gqa"),
        inputs={"input_ids": IDS},
        normalizers=["sparsemax", FNormalizer(lambda z: z.clamp_max(-1.0))],
    )
    assert result.rows.is_empty()
    reasons = {entry["reason"] for entry in result.run["skipped_heads"]}
    assert reasons == {"weights of f_normalizer not finite"}


def test_whole_number_that_64_bits_cannot_hold_is_refused() -> None:
    with pytest.raises(
        attnscope.InputError, match="k must be at most 9223372036854775807, received 99999999999999999999"
    ):
        parse("topk:k=99999999999999999999")


def test_settings_that_give_no_numbers_are_refused_before_a_swap() -> None:
    """Fault 12. "gives weight to keys that are not visible" before, or NaN in the model's output."""
    with pytest.raises(attnscope.InputError, match="SSMax gives weights that are not finite"):
        attnscope.swap(build("llama-gqa"), "ssmax:s=1e308")


@pytest.mark.parametrize("temperature", [None, 0.5])
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "ssmax:s=0.5", "sigmoid"])
def test_what_if_in_a_model_with_sinks_has_the_weights_of_the_swap(name: str, temperature: float | None) -> None:
    """Fault 8. A what-if left the sinks out, which a swap keeps: two answers to the same question."""
    model = build("gpt-oss-sinks", "eager")
    inputs, temperatures = {"input_ids": IDS}, [] if temperature is None else [temperature]
    label = name if temperature is None else f"{name}:temperature=0.5"
    asked = attnscope.scan(model, inputs=inputs, rows="all", normalizers=[name], temperatures=temperatures).rows
    with attnscope.swap(model, label):
        swapped = attnscope.scan(model, inputs=inputs, rows="all").rows
    for column in ("entropy", "max_weight", "weight_sum"):
        measured, expected = asked.filter(layer=0, normalizer=label)[column], swapped.filter(layer=0)[column]
        torch.testing.assert_close(measured.to_torch(), expected.to_torch(), rtol=1e-9, atol=1e-12)


def test_own_normalizer_at_a_temperature_is_the_swapped_one_in_a_model_with_sinks() -> None:
    """Fault 8. The label own:temperature=0.5 had the model's softmax, not what was swapped in."""
    model, inputs = build("gpt-oss-sinks", "eager"), {"input_ids": IDS}
    with attnscope.swap(model, "sparsemax"):
        rows = attnscope.scan(model, inputs=inputs, temperatures=[0.5]).rows
    with attnscope.swap(model, "sparsemax:temperature=0.5"):
        expected = attnscope.scan(model, inputs=inputs).rows
    measured = rows.filter(layer=0, normalizer="own:temperature=0.5")["max_weight"]
    torch.testing.assert_close(measured.to_torch(), expected.filter(layer=0)["max_weight"].to_torch())


def test_diagnosis_of_what_ifs_without_a_jacobian_norm() -> None:
    """Fault 8. The norm of a what-if is not known in a model with sinks: its finding leaves the gradient out."""
    model = build("gpt-oss-sinks", "eager")
    result = attnscope.scan(
        model,
        "A text of some length. " * 9,
        tokenizer=byte_tokenizer(),
        length=64,
        normalizers=["sparsemax"],
        diagnose=True,
    )
    finding = next(each for each in result.findings["findings"] if each["id"] == "what-if:sparsemax")
    assert "of 12 heads" in finding["sentence"]  # those of the layer that sees a window of 11 tokens too
    assert "Jacobian" not in finding["sentence"]


def test_head_whose_own_weights_are_no_numbers_is_reported() -> None:
    """Fault 11. A function that fails on rows of more than five keys: lines with a largest weight of 0 before."""

    def fails_on_long_rows(logits: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return logits.softmax(-1) if logits.shape[-1] <= 5 else torch.full_like(logits, torch.nan)

    with attnscope.swap(build("llama-gqa"), fails_on_long_rows, layers=[1]) as change:
        result = attnscope.scan(change.model, inputs={"input_ids": IDS})
    assert result.rows["layer"].unique().to_list() == [0]
    assert {(each["layer"], each["reason"]) for each in result.run["skipped_heads"]} == {(1, "weights not finite")}


def test_entropy_of_negative_weights_is_missing() -> None:
    """Fault 11. Negative weights were left out of the sum, whose rest stood in the table as the entropy."""
    logits = torch.tensor([[[-1.0, -2.0, 0.5]]], dtype=torch.float64)
    rows = Rows(0, (2,), logits, torch.ones_like(logits, dtype=torch.bool), torch.randn(1, 3, 2).double())
    weights = parse("sa_softmax_raw").weights(logits)
    assert (weights < 0).any()
    assert columns(rows, weights, [1])[0]["entropy"].isnan().all()
    assert row_columns(rows, weights)["entropy"].isnan().all()
