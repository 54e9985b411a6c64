"""Budgets in a model: equal to attention written out over the kept keys, with a cache that stores only those."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
from typing import Any

import pytest
import torch
import transformers
from families import tiny_model
from models import VOCABULARY, build

from attnscope.errors import InputError, ModelError
from attnscope.swapping import HeadBudget, KeyBudget, apply_budget, cache_bytes, load_budget, swap

EXACT = {"rtol": 1e-9, "atol": 1e-10}
LENGTH = 29
BUDGETS = {
    "llama-gqa": [
        HeadBudget(0, 0, "first_recent", first=2, recent=5),
        HeadBudget(0, 1, "top", share=0.3),
        HeadBudget(1, 0, "first_recent", first=0, recent=1),
        HeadBudget(1, 1, "first_recent", first=3, recent=40),
    ],
    "gpt2": [
        HeadBudget(0, 1, "first_recent", first=1, recent=4),
        HeadBudget(1, 4, "top", share=0.15),
        HeadBudget(2, 0, "first_recent", first=4, recent=2),
        HeadBudget(2, 3, "all"),
    ],
}


def token_ids(batch: int, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(VOCABULARY - 1, (batch, length), generator=torch.Generator().manual_seed(7))


def kept_keys(budget: HeadBudget | None, rows: torch.Tensor) -> set[int]:
    """The keys of a row that a budget keeps: `rows` are the weights of the heads that share it, over visible keys."""
    count = rows.shape[-1]
    if budget is None or budget.kind == "all":
        return set(range(count))
    if budget.kind == "first_recent":
        return {j for j in range(count) if j < budget.first or j >= count - budget.recent}
    strongest = rows.amax(0)
    order = sorted(range(count), key=lambda j: (-float(strongest[j]), j))
    return set(order[: max(1, math.ceil(count * budget.share))])


def written_out(budgets: list[HeadBudget]) -> Any:
    """An eager attention function, one row at a time, that keeps what the budgets say."""
    by_head = {(b.layer, b.kv_head): b for b in budgets}

    def kernel(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        batch, heads, queries, _ = query.shape
        kv_heads, keys = key.shape[1:3]
        shared, scale = heads // kv_heads, options.get("scaling") or query.shape[-1] ** -0.5
        out = torch.zeros(batch, queries, heads, value.shape[-1], dtype=query.dtype)
        for item in range(batch):
            for row in range(queries):
                visible = [j for j in range(keys) if mask is None or mask[item, 0, row, j] > -1e4]
                for kv in range(kv_heads) if visible else ():
                    mine = slice(kv * shared, (kv + 1) * shared)
                    logits = query[item, mine, row] @ key[item, kv, visible].T * scale
                    kept = kept_keys(by_head.get((module.layer_idx, kv)), logits.softmax(-1))
                    hidden = torch.tensor([j not in kept for j in range(len(visible))])
                    weights = logits.masked_fill(hidden, -torch.inf).softmax(-1)
                    out[item, row, mine] = weights @ value[item, kv, visible]
        return out, None

    return kernel


def padded(batch: int, padding: list[int]) -> dict[str, torch.Tensor]:
    mask = torch.ones(batch, LENGTH, dtype=torch.long)
    for item, count in enumerate(padding):
        mask[item, :count] = 0
    return {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp_min(0)}


@pytest.fixture(params=[[], [0, 6]], ids=["one item", "a batch with padding"])
def inputs(request: Any) -> dict[str, torch.Tensor]:
    if not request.param:
        return {"input_ids": token_ids(1)}
    return {"input_ids": token_ids(2), **padded(2, request.param)}


@pytest.fixture(params=sorted(BUDGETS))
def family(request: Any) -> str:
    return str(request.param)


def compare(found: torch.Tensor, expected: torch.Tensor, inputs: dict[str, torch.Tensor], start: int = 0) -> None:
    real = inputs.get("attention_mask", torch.ones(len(found), LENGTH))[:, start:] > 0
    torch.testing.assert_close(found[real], expected[:, start:][real], **EXACT)


def expected_logits(family: str, inputs: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    same = build(family, "eager").double()
    with torch.no_grad(), monkeypatch.context() as patch:
        file = importlib.import_module(type(same).__module__)
        patch.setattr(file, "eager_attention_forward", written_out(BUDGETS[family]))
        return same(**inputs, use_cache=False).logits


def test_a_forward_attends_to_the_kept_keys_only(family: str, inputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, model = expected_logits(family, inputs, monkeypatch), build(family).double()
    with torch.no_grad(), apply_budget(model, BUDGETS[family]):
        compare(model(**inputs, use_cache=False).logits, expected, inputs)


@pytest.mark.parametrize("steps", [(17, 1, 1, 10), (3, 2, 1, 1, 22)], ids=["long prefill", "short prefill"])
def test_prefill_and_decode_with_the_cache_give_the_same(
    family: str, inputs: Any, steps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, model = expected_logits(family, inputs, monkeypatch), build(family).double()
    cache, start = transformers.DynamicCache(), 0
    with torch.no_grad(), apply_budget(model, BUDGETS[family]):
        for count in steps:
            stop = start + count
            parts = {name: values[:, start:stop] for name, values in inputs.items()}
            if "attention_mask" in inputs:
                parts["attention_mask"] = inputs["attention_mask"][:, :stop]
            logits = model(**parts, past_key_values=cache).logits
            part = {"attention_mask": parts["attention_mask"]} if "attention_mask" in parts else {}
            if not part:
                torch.testing.assert_close(logits, expected[:, start:stop], **EXACT)
            else:
                compare(logits, expected[:, :stop], part, start)
            start = stop


def test_generate_gives_the_tokens_of_the_masked_computation(family: str) -> None:
    model, ids = build(family).double(), token_ids(2, 11)
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "pad_token_id": 256}
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with apply_budget(model, BUDGETS[family]):
        for beams in (1, 3):
            both = [
                model.generate(ids, attention_mask=mask, do_sample=False, num_beams=beams, use_cache=use, **options)
                for use in (True, False)
            ]
            assert torch.equal(*both)


def reachable_bytes(thing: Any, seen: set[int]) -> int:
    """Bytes of all tensors that an object holds, storages counted once."""
    if id(thing) in seen or isinstance(thing, str | int | float | torch.dtype | torch.device | type | None):
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        known = storage.data_ptr() in seen
        seen.add(storage.data_ptr())
        return 0 if known or not thing.is_floating_point() else storage.nbytes()
    parts = thing if isinstance(thing, list | tuple) else vars(thing).values() if hasattr(thing, "__dict__") else ()
    return sum(reachable_bytes(part, seen) for part in parts)


def test_the_cache_does_not_store_what_is_dropped() -> None:
    model = build("llama-gqa")  # 14 dimensions of 4 bytes
    with torch.no_grad(), apply_budget(model, BUDGETS["llama-gqa"]):
        cache = model(token_ids(2)).past_key_values
        assert [type(layer).__name__ for layer in cache.layers] == ["BudgetLayer"] * 2
        for length in (LENGTH, LENGTH + 1):
            pairs = (2 + 5) + length + 1 + length  # the last head's budget is longer than the text
            assert cache_bytes(cache) == reachable_bytes(cache, set()) == 2 * 2 * pairs * 14 * 4
            model(token_ids(2, 1), past_key_values=cache)


def test_a_budget_is_saved_and_counted(tmp_path: Any) -> None:
    import json

    budget = KeyBudget(tuple(BUDGETS["llama-gqa"]), 20, {"model": "m"})
    assert budget.share() == (7 + 6 + 1 + 20) / 80
    assert budget.stored_share() == (7 + 20 + 1 + 20) / 80
    (tmp_path / "budget.json").write_text(json.dumps(budget.as_json()))
    assert load_budget(tmp_path) == budget


def test_undo_restores_the_model_and_its_caches_are_refused() -> None:
    model, ids = build("llama-gqa"), token_ids(1)
    own = model(ids).logits
    change = apply_budget(model, BUDGETS["llama-gqa"])
    result = model(ids)
    assert not torch.equal(result.logits, own)
    change.undo()
    change.undo()
    assert torch.equal(model(ids).logits, own)
    with pytest.raises(InputError, match="undone"):
        model(ids, past_key_values=result.past_key_values)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mistral-window", "sliding_attention"),
        ("gpt-oss-sinks", "sink logits"),
        ("bert", "does not predict the next token"),
    ],
)
def test_models_are_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        apply_budget(build(name, "eager"), [HeadBudget(0, 0, "all")])


def test_a_swapped_model_is_refused() -> None:
    model = build("llama-gqa")
    with swap(model, "entmax15"), pytest.raises(ModelError, match="swapped normalizer"):
        apply_budget(model, BUDGETS["llama-gqa"])


def test_unsupported_caches_and_masks_are_refused() -> None:
    model, ids = build("llama-gqa"), token_ids(2)
    filled = model(ids).past_key_values
    right = torch.ones_like(ids)
    right[0, -3:] = 0
    with torch.no_grad(), apply_budget(model, BUDGETS["llama-gqa"]):
        static = transformers.StaticCache(config=model.config, max_cache_len=40)
        with pytest.raises(ModelError, match="received a StaticCache"):
            model(ids, past_key_values=static)
        with pytest.raises(InputError, match="filled before"):
            model(ids, past_key_values=filled)
        with pytest.raises(ModelError, match="padding on the left only"):
            model(ids, attention_mask=right)
        with pytest.raises(ModelError, match=r"shape \(batch, tokens\)"):
            model(ids, attention_mask=torch.zeros(2, 1, LENGTH, LENGTH))
        with pytest.raises(ModelError, match="cannot be cropped"):
            model(ids).past_key_values.crop(-1)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([HeadBudget(0, 2, "all")], "key-value head 2 of layer 0"),
        ([HeadBudget(7, 0, "all")], "another model"),
        ([HeadBudget(0, 0, "all")] * 2, "each only once"),
        ([], "at least one"),
        ("nowhere", "not a readable budget"),
    ],
)
def test_budgets_that_do_not_fit_are_refused(given: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        apply_budget(build("llama-gqa"), given)


@pytest.mark.parametrize(
    "settings",
    [{"kind": "some"}, {"kind": "top", "share": 0}, {"kind": "top", "share": 1.5}, {"kind": "first_recent"}],
    ids=str,
)
def test_a_head_budget_that_keeps_nothing_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        HeadBudget(0, 0, **settings)


def short_budget() -> list[HeadBudget]:
    return [HeadBudget(0, 0, "first_recent", first=1, recent=3)]


@pytest.mark.parametrize(
    "change", [lambda model: swap(model, "ssmax"), lambda model: apply_budget(model, short_budget())]
)
def test_nothing_is_changed_on_top_of_a_budget(change: Any) -> None:
    model = build("llama-gqa")
    expected = model(token_ids(1)).logits
    with apply_budget(model, short_budget()), pytest.raises(ModelError, match=r"budget.*undo it first|one already"):
        change(model)
    assert torch.equal(model(token_ids(1)).logits, expected)


@pytest.mark.parametrize("family", ["diffllama", "deepseek_v3"])
def test_a_model_whose_cache_is_not_what_its_heads_see_is_refused(family: str) -> None:
    with pytest.raises(ModelError, match=f"{family}.*stores other keys or values"):
        apply_budget(tiny_model(family), short_budget())


def test_a_saved_cache_is_refused_with_and_without_the_budget() -> None:
    model, ids = build("llama-gqa"), token_ids(1)
    with apply_budget(model, short_budget()):
        cache = model(ids[:, :20]).past_key_values
        loaded = pickle.loads(pickle.dumps(cache))
        with pytest.raises(InputError, match="saved and loaded since"):
            model(ids[:, 20:], past_key_values=loaded)
    with pytest.raises(InputError, match="start with an empty cache"):
        model(ids[:, 20:], past_key_values=pickle.loads(pickle.dumps(cache)))


def test_the_cache_of_one_model_is_refused_by_another_without_a_budget() -> None:
    model, other, ids = build("llama-gqa"), build("llama-gqa"), token_ids(1)
    with apply_budget(model, short_budget()):
        cache = model(ids[:, :20]).past_key_values
        with pytest.raises(InputError, match="another model"):
            other(ids[:, 20:], past_key_values=cache)


def test_a_copy_of_a_model_keeps_its_budget_when_the_original_loses_it() -> None:
    model, ids = build("llama-gqa"), token_ids(1)
    with apply_budget(model, short_budget()):
        expected = model(ids).logits
        copied = copy.deepcopy(model)
    cache = copied(ids[:, :20]).past_key_values
    rest = copied(ids[:, 20:], past_key_values=cache).logits
    torch.testing.assert_close(rest, expected[:, 20:], **EXACT)
