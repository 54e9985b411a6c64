"""The main job end to end: the tables of a scan against an independent reading of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracle
import polars as pl
import pytest
import torch
from models import build, byte_tokenizer

import attnscope
from attnscope.errors import InputError, ModelError
from attnscope.measure.settings import plan
from attnscope.scanning import ScanResult, Step, scan
from attnscope.store import tables

LENGTHS = (2, 23, 61)
TOP_N = (1, 5, 19)


def eager_rows(model: Any, ids: list[int]) -> dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]]:
    """(layer, head, length) -> logits and values, from GPT-2's own projections: no capture code involved."""
    config = model.config
    heads, width = config.n_head, config.n_embd // config.n_head
    states: list[torch.Tensor] = []
    hooks = [
        block.attn.c_attn.register_forward_hook(lambda module, args, output: states.append(output[0].double()))
        for block in model.transformer.h
    ]
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    found = {}
    for layer, qkv in enumerate(states):
        query, key, value = (part.unflatten(-1, (heads, width)) for part in qkv.split(config.n_embd, -1))
        for head in range(heads):
            for length in LENGTHS:
                logits = key[:length, head] @ query[length - 1, head] / width**0.5
                found[layer, head, length] = logits.numpy(), value[:length, head].numpy()
    return found


@pytest.fixture(scope="module")
def scanned() -> tuple[ScanResult, dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]]]:
    model, tokenizer = build("gpt2"), byte_tokenizer()
    content = "An ordinary sentence, repeated: an ordinary sentence, twice. " * 3
    result = scan(model, content, tokenizer=tokenizer, length=61, lengths=LENGTHS, top_n=TOP_N, bounds="paper")
    return result, eager_rows(model, tokenizer(content)["input_ids"][:61])


def test_tables_have_the_public_schema(scanned: Any) -> None:
    result, _ = scanned
    assert result.rows.schema == tables.ROWS
    assert result.topn.schema == tables.TOPN
    keys = ["window", "layer", "head", "position", "length", "normalizer"]
    assert result.rows.columns[:6] == result.topn.columns[:6] == keys
    assert result.rows.height == 3 * 5 * len(LENGTHS)
    assert result.topn.height == 3 * 5 * (1 + 3 + 3)  # N = 5 and 19 do not fit into a row of two keys
    assert (result.rows["position"] == result.rows["length"] - 1).all()
    assert result.rows.null_count().sum_horizontal().item() == 0
    assert result.topn.null_count().sum_horizontal().item() == 0


def test_every_line_of_rows_agrees_with_the_oracle(scanned: Any) -> None:
    """Fault 6: the lengths are no multiples of any block."""
    result, truth = scanned
    for line in result.rows.iter_rows(named=True):
        logits, _ = truth[line["layer"], line["head"], line["length"]]
        for name, value in oracle.row_columns(logits).items():
            assert line[name] == pytest.approx(value, rel=2e-5, abs=1e-7), name


def test_lines_of_topn_agree_with_the_oracle(scanned: Any) -> None:
    result, truth = scanned
    for line in result.topn.filter(pl.col("head").is_in([0, 3])).iter_rows(named=True):
        logits, values = truth[line["layer"], line["head"], line["length"]]
        weights = oracle.weights(logits)
        doubtful = oracle.undecided(weights, values, line["n"], tolerance=1e-4)
        for name, value in oracle.topn_columns(weights, values, line["n"]).items():
            if name not in doubtful:
                assert line[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_a_prefix_is_the_same_row_as_a_window_of_its_length(tokenizer: Any, text: str) -> None:
    model = build("llama-gqa")
    long = scan(model, text, tokenizer=tokenizer, length=67, lengths=[31, 67], top_n=[3])
    short = scan(model, text, tokenizer=tokenizer, length=31, lengths=[31], top_n=[3])
    for table in ("rows", "topn"):
        prefix = getattr(long, table).filter(length=31)
        for name in prefix.select(pl.selectors.numeric()).columns:
            np.testing.assert_allclose(prefix[name], getattr(short, table)[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_windows_follow_one_another(tokenizer: Any, text: str) -> None:
    model = build("gpt2")
    three = scan(model, text, tokenizer=tokenizer, length=29, windows=3, top_n=[2])
    assert three.rows["window"].unique().sort().to_list() == [0, 1, 2]
    second = scan(model, text[29:], tokenizer=tokenizer, length=29, top_n=[2])
    mine = three.topn.filter(window=1).drop("window")
    assert mine.equals(second.topn.drop("window"))


def test_the_begin_token_comes_first_when_asked_for(tokenizer: Any, text: str) -> None:
    """Fault 22."""
    model = build("gpt2")
    plain = scan(model, text, tokenizer=tokenizer, length=29, top_n=[2])
    with_bos = scan(model, text, tokenizer=tokenizer, length=29, top_n=[2], bos=True)
    by_hand = scan(model, "<end>" + text, tokenizer=tokenizer, length=29, top_n=[2])
    assert not plain.topn.equals(with_bos.topn)
    assert with_bos.topn.equals(by_hand.topn)


@pytest.mark.parametrize("bos", [False, True])
def test_a_tokenizer_that_adds_special_tokens_adds_none_to_a_window(bos: bool, tokenizer: Any, text: str) -> None:
    """Fault 22: the begin token is not there twice, and no padding token is needed."""
    inputs: list[list[int]] = []
    model, adding = build("gpt2"), byte_tokenizer(special=True)
    assert adding.pad_token is None
    assert adding("a")["input_ids"][0] == adding.bos_token_id
    hook = model.transformer.wte.register_forward_pre_hook(lambda module, args: inputs.append(args[0][0].tolist()))
    scan(model, text, tokenizer=adding, length=29, top_n=[2], bos=bos)
    hook.remove()
    plain = tokenizer(text)["input_ids"]
    assert inputs == [[adding.bos_token_id, *plain[:28]] if bos else plain[:29]]


@pytest.mark.parametrize("kind", ["output", "hidden"])
def test_rows_do_not_depend_on_the_vectors_and_topn_does(kind: Any, tokenizer: Any, text: str) -> None:
    model = build("llama-gqa")
    value = scan(model, text, tokenizer=tokenizer, length=31, top_n=[3])
    other = scan(model, text, tokenizer=tokenizer, length=31, top_n=[3], vectors=kind)
    assert value.rows.equals(other.rows)
    assert value.topn["top_mass"].equals(other.topn["top_mass"])
    assert not value.topn["distance"].equals(other.topn["distance"])


def test_an_encoder_runs_once_for_each_length_with_its_special_tokens(text: str) -> None:
    """Fault 22."""
    model = build("bert")
    inputs: list[list[int]] = []
    hook = model.embeddings.register_forward_pre_hook(
        lambda module, args, kwargs: inputs.append(kwargs["input_ids"][0].tolist()), with_kwargs=True
    )
    result = scan(model, text, tokenizer=byte_tokenizer(special=True), lengths=[11, 17], top_n=[3])
    hook.remove()
    plain = byte_tokenizer()(text)["input_ids"]
    assert inputs == [[256, *plain[:9], 256], [256, *plain[:15], 256]]
    assert result.rows["length"].unique().sort().to_list() == [11, 17]


def test_an_encoder_takes_no_begin_token(text: str) -> None:
    with pytest.raises(InputError, match=r"^bos: "):
        scan(build("bert"), text, tokenizer=byte_tokenizer(special=True), lengths=[11], top_n=[3], bos=True)


def test_the_model_is_left_as_it_was(tokenizer: Any, text: str) -> None:
    model = build("gpt2").train()
    next(part for part in model.modules() if isinstance(part, torch.nn.Dropout)).eval()
    modes = [part.training for part in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    implementation = model.config._attn_implementation
    scan(model, text, tokenizer=tokenizer, length=17, top_n=[3], vectors="hidden")
    assert [part.training for part in model.modules()] == modes
    assert model.config._attn_implementation == implementation
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_a_head_with_nan_is_named_and_the_others_go_on(tokenizer: Any, text: str) -> None:
    """Fault 11."""
    model = build("llama-mqa")
    clean = scan(model, text, tokenizer=tokenizer, length=17, top_n=[3])
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[14:28] = torch.nan  # head 1 of the last layer
    broken = scan(model, text, tokenizer=tokenizer, length=17, top_n=[3])
    assert broken.skipped_heads == [{"layer": 1, "head": 1, "window": 0, "reason": "logits not finite"}]
    kept = clean.topn.filter(~((pl.col("layer") == 1) & (pl.col("head") == 1)))
    assert broken.topn.equals(kept)


def test_bfloat16_models_are_measured_in_float64(tokenizer: Any, text: str) -> None:
    """Fault 11."""
    model = build("llama-gqa").to(torch.bfloat16)
    result = scan(model, text, tokenizer=tokenizer, length=31, top_n=[3])
    assert (result.rows["weight_sum"] - 1).abs().max() < 1e-12  # type: ignore[operator]
    assert result.run["model"]["dtype"] == "bfloat16"


def test_progress_reaches_the_end(tokenizer: Any, text: str) -> None:
    seen: list[Step] = []
    model = build("gpt2")
    scan(model, text, tokenizer=tokenizer, length=17, windows=2, top_n=[3], progress=seen.append)
    assert seen == [
        Step(3 * window + layer + 1, 6, f"window {window + 1} of 2, layer {layer}", window, 2, layer)
        for window in (0, 1)
        for layer in (0, 1, 2)
    ]


def test_a_run_is_read_back_as_it_was_written(scanned: Any, tmp_path: Path) -> None:
    result, _ = scanned
    folder = result.save(tmp_path / "with space" / "run")
    again = attnscope.ScanResult.load(folder)
    assert again.rows.equals(result.rows)
    assert again.topn.equals(result.topn)
    assert again.run == result.run
    assert again.token_weights
    assert result.token_weights
    assert again.token_weights.weights.equals(result.token_weights.weights)
    assert again.token_weights.tokens == result.token_weights.tokens
    assert again.token_weights.texts == result.token_weights.texts
    names = ["patterns.parquet", "report.html", "rows.parquet", "run.json", "tokens.json", "topn.parquet"]
    names.append("weights.parquet")
    assert sorted(path.name for path in folder.iterdir()) == names


def test_run_json_says_what_was_run(scanned: Any) -> None:
    run = scanned[0].run
    assert run["settings"] == {
        "length": 61,
        "lengths": [2, 23, 61],
        "top_n": [1, 5, 19],
        "bounds": "paper",
        "delta_max_length": 8192,
        "windows": 1,
        "vectors": "value",
        "bos": False,
        "rows": "last",
        "normalizers": [],
        "temperatures": [],
    }
    assert run["model"]["heads"] == [
        {"layer": layer, "heads": 5, "module": f"transformer.h.{layer}.attn", "kind": "self"} for layer in range(3)
    ]
    assert run["versions"]["torch"] == torch.__version__
    assert run["skipped_heads"] == []
    assert len(run["text"]["sha256"]) == 64


def test_a_family_without_attention_is_refused_by_name(tokenizer: Any, text: str) -> None:
    import transformers

    config = transformers.MambaConfig(vocab_size=257, hidden_size=24, num_hidden_layers=1, state_size=4)
    with pytest.raises(ModelError, match="mamba"):
        scan(transformers.MambaForCausalLM(config), text, tokenizer=tokenizer, length=17)


def test_defaults_follow_the_model_and_the_paper() -> None:
    settings = plan(1024)
    assert settings.length == 1024
    assert settings.lengths == (32, 64, 128, 256, 512, 1024)
    assert settings.top_n == (1, 5, 10, 20, 100)
    small = plan(50)
    assert (small.length, small.lengths, small.top_n) == (50, (32, 50), (1, 5, 10, 20))
    assert plan(None, lengths=[7, 3, 7]).lengths == (3, 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 2048}, "1024 positions"),
        ({"length": 0}, "received 0"),
        ({"lengths": [64], "length": 32}, "more than the window of 32"),
        ({"length": 32, "top_n": [32]}, "below 32"),
        ({"top_n": [-1]}, "received -1"),
        ({"top_n": []}, "received none"),
        ({"top_n": [1.5]}, "received 1.5"),
        ({"length": "a"}, "received 'a'"),
        ({"length": True}, "received True"),
        ({"windows": 0}, "received 0"),
        ({"length": 1}, "at least 2"),
        ({"vectors": "keys"}, "value, output, hidden"),
        ({"rows": 0}, "received 0"),
        ({"rows": "some"}, "received 'some'"),
        ({"rows": True}, "received True"),
        ({"rows": 5, "lengths": [16]}, "leave lengths out, or use rows='last'"),
        ({"memory_budget": "much"}, "received 'much'"),
        ({"memory_budget": 0}, "received 0"),
        ({"normalizers": ["softermax"]}, "softermax"),
        ({"normalizers": ["entmax:alpha"]}, "received 'alpha'"),
        ({"normalizers": ["entmax:alpha=1.3:alpha=2"]}, "alpha twice"),
        ({"normalizers": [3]}, "received 3"),
        ({"temperatures": [0]}, "received 0"),
        ({"temperatures": ["hot"]}, "received 'hot'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused_with_the_value_received(options: dict[str, Any], message: str) -> None:
    """Faults 6 and 12."""
    with pytest.raises(InputError, match=message):
        plan(1024, **options)


def test_something_that_is_no_model_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="Linear"):
        scan(torch.nn.Linear(2, 3), text)  # type: ignore[arg-type]


def test_a_loaded_model_needs_its_tokenizer(text: str) -> None:
    with pytest.raises(InputError, match="tokenizer"):
        scan(build("gpt2"), text)


def test_the_name_of_a_file_and_an_empty_string_are_no_text(tokenizer: Any, text: str, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(text)
    with pytest.raises(InputError, match=r"is a file; give pathlib\.Path"):
        scan(build("gpt2"), str(book), tokenizer=tokenizer)
    with pytest.raises(InputError, match="string given is empty; give a text"):
        scan(build("gpt2"), " \n", tokenizer=tokenizer)
    with pytest.raises(InputError, match="a lone surrogate at offset 1"):
        scan(build("gpt2"), "a\ud800b" * 50, tokenizer=tokenizer)
    for family in ("gpt2", "bert"):
        with pytest.raises(InputError, match="makes no tokens of the string given"):
            scan(build(family), text, tokenizer=lambda *_, **__: {"input_ids": []}, length=16)
    found = scan(build("gpt2"), book, tokenizer=tokenizer, length=16)
    assert found.rows.equals(scan(build("gpt2"), text, tokenizer=tokenizer, length=16).rows)


@pytest.mark.parametrize("option", [{"dtype": "bfloat16"}, {"device": "meta"}])
def test_a_loaded_model_is_not_converted(option: dict[str, str], tokenizer: Any, text: str) -> None:
    with pytest.raises(InputError, match=r"call to\(\) of the model"):
        scan(build("gpt2"), text, tokenizer=tokenizer, length=16, **option)
