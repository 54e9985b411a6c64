"""What a scan must never do: build a matrix of keys by keys, leak, depend on threads, or disturb another scan."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from models import build
from polars.testing import assert_frame_equal
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.modeling_utils import AttentionInterface

from attnscope.scanning import Step, scan

LONG = "A longer text, of which no two parts are quite the same: {}. "


@pytest.fixture
def long_text() -> str:
    return "".join(LONG.format(number**2) for number in range(60))


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        storages = {
            leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes() // leaf.element_size()
            for leaf in tree_leaves(result)
            if isinstance(leaf, torch.Tensor)
        }
        self.elements = max(self.elements, *storages.values(), 0, 0)
        return result


@pytest.mark.parametrize("rows", ["last", "all"])
def test_nothing_of_heads_by_keys_by_keys_is_ever_allocated(rows: Any, tokenizer: Any, long_text: str) -> None:
    """Fault 16."""
    model = build("llama-gqa")
    length, heads = (512, 6) if rows == "last" else (192, 6)
    options: Any = {"length": length, "rows": rows, "top_n": [1, 5], "bounds": "paper"}
    with Largest() as seen:
        scan(model, long_text, tokenizer=tokenizer, memory_budget="512KB", **options)
    assert seen.elements > length  # something was noted
    assert seen.elements < heads * length * length / 2


def test_two_scans_in_two_threads_do_not_meet(tokenizer: Any, long_text: str) -> None:
    """Fault 17."""
    models = [build("gpt2"), build("llama-gqa")]
    options: Any = {"tokenizer": tokenizer, "length": 31, "windows": 3, "top_n": [3], "bounds": "paper"}
    alone = [scan(model, long_text, **options) for model in models]
    together: list[Any] = [None, None]

    def work(index: int) -> None:
        together[index] = scan(models[index], long_text, **options)

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, expected in zip(together, alone, strict=True):
        assert_frame_equal(result.rows, expected.rows)
        assert_frame_equal(result.topn, expected.topn)


def test_an_exception_leaves_model_and_registry_as_they_were(tokenizer: Any, long_text: str) -> None:
    """Fault 17."""
    model = build("gpt2").train()
    before = dict(AttentionInterface._global_mapping)

    def fail(step: Step) -> None:
        raise KeyError(step.layer)

    with pytest.raises(KeyError):
        scan(model, long_text, tokenizer=tokenizer, length=31, top_n=[3], vectors="hidden", progress=fail)
    assert AttentionInterface._global_mapping == before
    assert model.training
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_the_number_of_threads_changes_nothing_beyond_rounding(tokenizer: Any, long_text: str) -> None:
    """Fault 15."""
    model = build("llama-gqa").double()
    one = scan(model, long_text, tokenizer=tokenizer, length=67, rows=9, top_n=[3], bounds="paper")
    torch.set_num_threads(2)
    two = scan(model, long_text, tokenizer=tokenizer, length=67, rows=9, top_n=[3], bounds="paper")
    assert_frame_equal(one.rows, two.rows, rel_tol=1e-9)
    assert_frame_equal(one.topn, two.topn, rel_tol=1e-9)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_three_hundred_windows_take_no_more_memory_than_a_hundred(tokenizer: Any, long_text: str) -> None:
    """Fault 17: resident size, objects of tensors and hooks, after the first hundred windows."""
    model = build("gpt2")
    sizes: list[tuple[int, int]] = []

    def note(step: Step) -> None:
        if step.layer == 0 and step.window in (99, 299):
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
            sizes.append((pages * 4096, tensors))

    scan(model, long_text, tokenizer=tokenizer, length=9, windows=300, top_n=[3], progress=note)
    (early, some), (late, as_many) = sizes
    # Three small tables of each finished window are kept to the end: about 45 KB a window was seen.
    assert late - early < 200 * 100e3
    assert as_many <= some
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
