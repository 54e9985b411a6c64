"""What capture must survive: padding, caches, number types, wrappers, training, threads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model
from models import VOCABULARY, build, byte_tokenizer

from attnscope.capture.attention import AttentionCall
from attnscope.capture.forward import forward
from attnscope.capture.huggingface import observed
from attnscope.capture.models import Model, load_model
from attnscope.capture.modules import VectorSource
from attnscope.errors import InputError, ModelError
from attnscope.scanning import scan

LENGTH = 19


def token_ids(batch: int = 1, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(VOCABULARY - 1, (batch, length), generator=torch.Generator().manual_seed(7))


def softmax(call: Any, rows: Any, item: int = 0) -> torch.Tensor:
    logits = call.logits(rows, item).masked_fill(~call.visible(rows, item), -torch.inf)
    return torch.softmax(logits, -1).nan_to_num(0)


def weights(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, item: int = 0) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    forward(
        Model(model, None, "test", None), ids, lambda call: found.append(softmax(call, range(call.queries), item)), mask
    )
    return found


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["llama-gqa", "bert", "gptj"])
def test_items_of_a_padded_batch_are_the_same_alone(family: str, attention: str) -> None:
    """Faults 2 and 3: left, right and mixed padding, an item with one token; padded queries see nothing."""
    model = tiny_model(family) if family == "gptj" else build(family, attention)
    ids = token_ids(4)
    mask = torch.ones(4, LENGTH, dtype=torch.long)
    mask[0, :5], mask[1, 12:], mask[2, 1:] = 0, 0, 0
    mask[3, :2], mask[3, 15:] = 0, 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    for item in range(4):
        kept = mask[item].bool()
        alone = weights(model, ids[item : item + 1, kept])
        found: list[torch.Tensor] = []

        def collect(call: Any, item: int = item, found: list[torch.Tensor] = found) -> None:
            found.append(softmax(call, range(LENGTH), item))

        from attnscope.capture.forward import observed as observed_forward

        with torch.no_grad(), observed_forward(model, collect, ((4, None),), frozenset({LENGTH})):
            model(input_ids=ids, attention_mask=mask, position_ids=positions)
        for together, single in zip(found, alone, strict=True):
            torch.testing.assert_close(together[:, kept][:, :, kept], single, rtol=1e-3, atol=1e-5)
            assert (together[:, ~kept] == 0).all()
            assert (together[:, :, ~kept] == 0).all()


def test_no_mask_and_a_mask_of_ones_agree() -> None:
    """Fault 3."""
    model, ids = build("llama-gqa", "eager"), token_ids()
    for plain, masked in zip(weights(model, ids), weights(model, ids, torch.ones_like(ids)), strict=True):
        assert torch.equal(plain, masked)


def test_a_row_with_nothing_visible_has_no_weight() -> None:
    """Fault 1."""
    q = torch.randn(1, 2, 3, 5, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(1, 1, 3, 3).masked_fill(torch.tensor([[True] * 3, [False] * 3, [False] * 3]), -torch.inf)
    call = AttentionCall(torch.nn.Identity(), q, q, q, mask, {"is_causal": False})
    assert not call.visible([0]).any()
    assert call.visible([1, 2]).all()
    assert call.logits([0, 1]).isfinite().all()


def test_a_strictly_causal_mask_is_not_taken_for_padding() -> None:
    """Fault 2: a query that does not see itself, while others see it, is no padding."""
    q = torch.zeros(1, 1, 4, 2)
    mask = torch.tril(torch.ones(4, 4, dtype=torch.bool), -1)[None, None]
    call = AttentionCall(torch.nn.Identity(), q, q, q, mask, {})
    assert call.visible([2])[0, 0].tolist() == [True, True, False, False]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_rows_after_a_cache_see_its_keys(attention: str) -> None:
    """Fault 5: fewer queries than keys."""
    model, ids = build("llama-gqa", attention), token_ids()
    whole = weights(model, ids)
    found: list[torch.Tensor] = []
    with torch.no_grad():
        cache = model(input_ids=ids[:, :12], use_cache=True).past_key_values
        with observed(model, lambda call: found.append(softmax(call, range(call.queries)))):
            model(input_ids=ids[:, 12:], past_key_values=cache, use_cache=True)
    for part, full in zip(found, whole, strict=True):
        torch.testing.assert_close(part, full[:, 12:], rtol=1e-4, atol=1e-6)


def test_a_static_cache_longer_than_its_content_adds_no_length() -> None:
    """Fault 5."""
    from transformers import StaticCache

    model, ids = build("llama-gqa"), token_ids()
    lengths: list[list[int]] = []
    cache = StaticCache(config=model.config, max_cache_len=64)
    with torch.no_grad(), observed(model, lambda call: lengths.append(call.visible([0, 9, 18])[0].sum(-1).tolist())):
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    assert lengths == [[1, 10, 19]] * 2


def test_packed_sequences_do_not_see_each_other() -> None:
    """Fault 5."""
    model, ids = build("llama-gqa"), token_ids()
    positions = torch.cat([torch.arange(8), torch.arange(11)])[None]
    seen: list[torch.Tensor] = []
    with torch.no_grad(), observed(model, lambda call: seen.append(call.visible([7, 8, 18])[0].sum(-1))):
        model(input_ids=ids, position_ids=positions, use_cache=False)
    assert [rows.tolist() for rows in seen] == [[8, 1, 11]] * 2


@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (5, 5), (1, 2, 5, 5)], ids=["four", "two", "by-head"])
def test_masks_broadcast_as_the_kernel_broadcasts_them(shape: tuple[int, ...]) -> None:
    """Fault 5: masks given by users."""
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 5, 3, generator=generator) for _ in range(3))
    mask = torch.randn(shape, generator=generator)
    kernel = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    call = AttentionCall(torch.nn.Identity(), q, k, v, mask, {})
    rebuilt = softmax(call, range(5)) @ v[0].double()
    torch.testing.assert_close(rebuilt, kernel[0].double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_models_are_read_from_their_own_queries_and_keys(dtype: torch.dtype) -> None:
    """Fault 11: the logits are exact products of 16-bit numbers, not 16-bit products."""
    model, calls = build("llama-gqa").to(dtype), []
    forward(Model(model, None, "test", None), token_ids(), calls.append)
    call = calls[0]
    assert call.query.dtype == dtype
    expected = call.query[0, 3, 11].double() @ call.key[0, 1, :12].double().mT * call.options["scaling"]
    torch.testing.assert_close(call.logits([11])[3, 0, :12], expected, rtol=1e-12, atol=1e-12)


def test_gradient_checkpointing_counts_a_layer_once_and_training_goes_on() -> None:
    """Fault 10."""
    model, calls = build("llama-gqa").train(), 0
    model.gradient_checkpointing_enable({"use_reentrant": False})

    def count(call: Any) -> None:
        nonlocal calls
        calls += 1

    with observed(model, count):
        model(input_ids=token_ids(), labels=token_ids(), use_cache=False).loss.backward()
    assert calls == 2
    assert model.model.layers[0].self_attn.q_proj.weight.grad is not None


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's compiler, of torch's own code
def test_a_compiled_model_is_scanned_uncompiled(text: str) -> None:
    """Fault 10: nothing is compiled here, a compiled graph would have its kernels built in."""
    plain = scan(build("llama-gqa"), text, tokenizer=byte_tokenizer(), length=17, top_n=[3])
    wrapped = scan(torch.compile(build("llama-gqa")), text, tokenizer=byte_tokenizer(), length=17, top_n=[3])
    in_place = build("llama-gqa")
    in_place.compile()
    inside = scan(in_place, text, tokenizer=byte_tokenizer(), length=17, top_n=[3])
    assert plain.rows.equals(wrapped.rows)
    assert plain.rows.equals(inside.rows)


class Adapted(torch.nn.Module):
    """The shape of PEFT's LoRA layer: the base layer, and a product of two thin matrices beside it."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.in_features = base, base.in_features
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    @property
    def weight(self) -> torch.Tensor:
        return self.base_layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.up(self.down(x))


def test_an_adapter_beside_the_output_projection_is_in_the_output_vectors() -> None:
    """Fault 10: PEFT."""
    model = build("llama-gqa")
    attention = model.model.layers[0].self_attn
    attention.o_proj = Adapted(attention.o_proj)
    source, found = VectorSource(model, "output"), []
    with torch.no_grad(), observed(model, lambda call: found.append((source.vectors(call), call.values()))):
        model(input_ids=token_ids())
    matrix = attention.o_proj.base_layer.weight + attention.o_proj.up.weight @ attention.o_proj.down.weight
    output, value = found[0]
    projected = value[1].double() @ matrix.detach().double().mT[4 * 14 : 5 * 14]  # head 4 is of the second group
    torch.testing.assert_close(output[4] @ output[4].mT, projected @ projected.mT, rtol=1e-3, atol=1e-4)


class Wrapper(torch.nn.Module):
    """The shape of a PeftModel."""

    def __init__(self, model: Any, prompt: bool) -> None:
        super().__init__()
        self.inner, self.peft_config = model, {}
        self.active_peft_config = type("Config", (), {"is_prompt_learning": prompt, "peft_type": "PROMPT_TUNING"})()

    def get_base_model(self) -> Any:
        return self.inner


def test_a_wrapped_model_is_opened_and_one_that_learns_a_prompt_refused(text: str) -> None:
    """Fault 10: PEFT."""
    model = build("llama-gqa")
    plain = scan(model, text, tokenizer=byte_tokenizer(), length=17, top_n=[3])
    wrapped = scan(Wrapper(model, False), text, tokenizer=byte_tokenizer(), length=17, top_n=[3])  # type: ignore[arg-type]
    assert plain.rows.equals(wrapped.rows)
    with pytest.raises(ModelError, match="PROMPT_TUNING"):
        scan(Wrapper(model, True), text, tokenizer=byte_tokenizer(), length=17)  # type: ignore[arg-type]


def test_a_model_partly_on_disk_gives_the_same_rows(model_folder: Path, tmp_path: Path) -> None:
    """Fault 10: spread over devices."""
    from accelerate import disk_offload

    whole = load_model(model_folder)
    expected = weights(whole.module, token_ids())
    spread = load_model(model_folder)
    disk_offload(spread.module, str(tmp_path), execution_device=torch.device("cpu"))
    assert any(parameter.is_meta for parameter in spread.module.parameters())
    for mine, own in zip(weights(spread.module, token_ids()), expected, strict=True):
        assert torch.equal(mine, own)


def test_a_model_without_weights_is_refused(text: str) -> None:
    """Fault 10."""
    with torch.device("meta"):
        model = build("gpt2")
    with pytest.raises(ModelError, match="meta"):
        scan(model, text, tokenizer=byte_tokenizer(), length=17)


def test_two_threads_may_watch_the_same_model() -> None:
    model, ids = build("gpt2"), token_ids()
    seen: dict[int, list[float]] = {}

    def work(number: int) -> None:
        mine = seen.setdefault(number, [])
        for _ in range(5):
            forward(Model(model, None, "t", None), ids[:, number:], lambda call: mine.append(call.queries))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {number: [LENGTH - number] * 15 for number in range(3)}


def test_a_kernel_whose_mask_cannot_be_read_is_refused() -> None:
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register("mine", AttentionInterface._global_mapping["sdpa"])
    try:
        model = build("llama-gqa")
        model.config._attn_implementation_internal = "mine"
        with pytest.raises(ModelError, match="'mine'"), torch.no_grad(), observed(model, lambda call: None):
            model.model.layers[0].self_attn(torch.zeros(1, 3, 84), (torch.ones(1, 3, 14), torch.zeros(1, 3, 14)), None)
    finally:
        del AttentionInterface._global_mapping["mine"]


def test_encoder_decoders_are_scanned_with_a_number_for_each_attention(text: str) -> None:
    """Fault 7."""
    result = scan(tiny_model("t5"), text, tokenizer=byte_tokenizer(special=True), lengths=[9, 13], top_n=[3])
    heads = result.run["model"]["heads"]
    assert [entry["layer"] for entry in heads] == list(range(6))
    assert [entry["kind"] for entry in heads] == ["self", "self", "self", "cross", "self", "cross"]
    assert heads[3]["module"] == "decoder.block.0.layer.1.EncDecAttention"
    assert result.rows["length"].unique().sort().to_list() == [9, 13]


def test_code_that_comes_with_a_model_is_not_run(model_folder: Path, tmp_path: Path) -> None:
    """Fault 9."""
    import json
    import shutil

    folder = tmp_path / "remote"
    shutil.copytree(model_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "unheard_of",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ModelError, match="trust_remote_code"):
        load_model(folder)
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_read_only_when_asked_for(model_folder: Path, tmp_path: Path) -> None:
    """Fault 21."""
    import shutil

    folder = tmp_path / "pickled"
    shutil.copytree(model_folder, folder)
    (folder / "model.safetensors").unlink()
    torch.save(build("gpt2").state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="allow_pickle"):
        load_model(folder)
    assert load_model(folder, allow_pickle=True).family == "gpt2"


def test_something_without_layers_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="list"):
        scan([1, 2], text)  # type: ignore[arg-type]
