"""A swapped model computes what plain attention with that normalizer computes, and nothing else changes."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import plain
import pytest
import torch
import transformers
from models import FAMILIES, VOCABULARY, build
from transformers.modeling_utils import AttentionInterface

import attnscope
from attnscope.capture.attention import AttentionCall
from attnscope.errors import InputError, ModelError
from attnscope.normalizers import LearnedSSMax, Softmax, SSMax
from attnscope.swapping import weights as blocks
from attnscope.swapping.weights import weight_function

LENGTH = 23
ROUNDING = {"rtol": 2e-5, "atol": 3e-5}  # float32 logits of a few layers, of size 5 to 8
EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64


def token_ids(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(VOCABULARY - 1, (batch, length), generator=torch.Generator().manual_seed(5))


def registry() -> dict[str, Any]:
    return dict(AttentionInterface._global_mapping)


def padded(ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids)
    mask[0, :7] = 0  # padding on the left
    return mask


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_LOGITS", 200)
    monkeypatch.setattr(blocks, "FEWEST_ROWS", 5)


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the eager kernel of a family's file by plain attention."""

    def install(model: Any, rows: Any) -> None:
        file = importlib.import_module(type(model).__module__)
        monkeypatch.setattr(file, "eager_attention_forward", plain.kernel(rows))

    return install


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("mask", [None, padded], ids=["whole", "padded"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_softmax_for_softmax_changes_nothing(family: str, attention: str, mask: Any) -> None:
    if attention == "sdpa" and family in ("gemma2-softcap", "gpt-oss-sinks"):
        attention = "eager"  # these families refuse sdpa
    ids = token_ids()
    inputs = {"input_ids": ids} | ({} if mask is None else {"attention_mask": mask(ids)})
    model = build(family, attention)
    with torch.no_grad():
        own = build(family, "eager")(**inputs)[0]
        with attnscope.swap(model, "softmax"):
            swapped = model(**inputs)[0]
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask(ids).bool()
    torch.testing.assert_close(swapped[real], own[real], **ROUNDING)


OTHERS = {
    "T5Model": {"d_model": 20, "d_kv": 5, "d_ff": 11, "num_layers": 2, "num_heads": 3, "decoder_start_token_id": 0},
    "OPTForCausalLM": {"hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3, "ffn_dim": 7},
    "ViTModel": {
        "hidden_size": 15,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 7,
        "image_size": 12,
        "patch_size": 4,
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_are_swapped_too(name: str) -> None:
    cls = getattr(transformers, name)
    torch.manual_seed(1)
    config = cls.config_class(**OTHERS[name])
    model = cls(config).eval()
    ids = token_ids(length=9)
    inputs = {"input_ids": ids}
    if name == "T5Model":  # encoder, decoder and cross attention, with a learned bias
        inputs["decoder_input_ids"] = ids[:, :5]
    if name == "ViTModel":
        inputs = {"pixel_values": torch.randn(2, 3, 12, 12)}
    with torch.no_grad():
        own = model(**inputs)[0]
        with attnscope.swap(model, "softmax"):
            same = model(**inputs)[0]
        with attnscope.swap(model, "sparsemax"):
            other = model(**inputs)[0]
    torch.testing.assert_close(same, own, rtol=1e-5, atol=1e-5)
    assert (other - own).abs().max() > 1e-5


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["ssmax", "sparsemax", "entmax15", "sigmoid"])
@pytest.mark.parametrize("family", ["llama-gqa", "mistral-window", "gpt2"])
def test_outputs_and_gradients_are_those_of_plain_attention(family: str, name: str, oracle: Any) -> None:
    ids = token_ids()
    inputs = {"input_ids": ids, "attention_mask": padded(ids)}
    real = inputs["attention_mask"].bool()
    model = build(family, "sdpa").double()
    with attnscope.swap(model, name):
        logits = model(**inputs).logits[real]
        logits.square().sum().backward()
    found = {key: parameter.grad for key, parameter in model.named_parameters()}
    same = build(family, "eager").double()
    oracle(same, lambda module, head: getattr(plain, name))
    expected = same(**inputs).logits[real]
    expected.square().sum().backward()
    torch.testing.assert_close(logits, expected, **EXACT)
    for key, parameter in same.named_parameters():
        torch.testing.assert_close(found[key], parameter.grad, rtol=1e-8, atol=1e-8, msg=lambda m, k=key: f"{k}: {m}")


def test_each_head_has_its_own_normalizer(oracle: Any) -> None:
    model, same = build("llama-gqa").double(), build("llama-gqa", "eager").double()
    ids = token_ids(1)

    def rows(module: Any, head: int) -> Any:
        if module.layer_idx == 0:
            return plain.sparsemax
        return {1: plain.ssmax, 4: plain.entmax15, 5: plain.ssmax}.get(head, plain.softmax)

    oracle(same, rows)
    with torch.no_grad():
        expected = same(input_ids=ids).logits
        with attnscope.swap(model, {0: "sparsemax", (1, 4): "entmax15", (1, 1): "ssmax", (1, 5): "ssmax"}):
            torch.testing.assert_close(model(input_ids=ids).logits, expected, **EXACT)
        with (
            attnscope.swap(model, "ssmax", layers=1, heads=[1, 5]),
            attnscope.swap(model, "sparsemax", layers=0),
            attnscope.swap(model, "entmax15", layers=[1], heads=4),
        ):
            torch.testing.assert_close(model(input_ids=ids).logits, expected, **EXACT)


def test_heads_that_are_not_swapped_keep_the_models_own_output() -> None:
    model, ids = build("llama-gqa"), token_ids()
    outputs: list[torch.Tensor] = []
    projection = model.model.layers[0].self_attn.o_proj
    hook = projection.register_forward_pre_hook(lambda module, inputs: outputs.append(inputs[0].unflatten(-1, (6, 14))))
    with torch.no_grad():
        model(input_ids=ids)
        with attnscope.swap(model, "sparsemax", layers=[0], heads=[2]):
            model(input_ids=ids)
    hook.remove()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(outputs[0][:, :, others], outputs[-1][:, :, others])
    assert not torch.allclose(outputs[0][:, :, 2], outputs[-1][:, :, 2], atol=1e-3)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", ["llama-gqa", "mistral-window", "gpt2"])
def test_generation_with_a_cache_agrees_with_the_whole_forward(family: str, cache: str) -> None:
    model, ids = build(family), token_ids(2, 11)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    options = {"max_new_tokens": 9, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    if cache == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    with torch.no_grad(), attnscope.swap(model, "ssmax:s=0.7"):
        answer = model.generate(ids, attention_mask=mask, pad_token_id=256, **options)
        whole = torch.cat([mask, torch.ones(2, 9, dtype=mask.dtype)], 1)
        positions = (whole.cumsum(-1) - 1).clamp(min=0)
        logits = model(answer.sequences, attention_mask=whole, position_ids=positions, use_cache=False).logits
    # The whole forward hides the padding by the mask alone; generate may have stopped nowhere before the end.
    assert answer.sequences.shape == (2, 20)
    torch.testing.assert_close(torch.stack(answer.logits, 1), logits[:, 10:19], **ROUNDING)


def test_padding_does_not_count_in_the_length() -> None:
    model, ids = build("llama-gqa"), token_ids(1, 13)
    longer = torch.cat([torch.full((1, 6), 256), ids], 1)
    mask = torch.cat([torch.zeros(1, 6, dtype=torch.long), torch.ones_like(ids)], 1)
    with torch.no_grad(), attnscope.swap(model, "ssmax"):
        alone = model(input_ids=ids).logits
        behind = model(input_ids=longer, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits
    torch.testing.assert_close(behind[:, 6:], alone, **ROUNDING)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_key_that_a_float_mask_hides_does_not_count_in_the_length(attention: str) -> None:
    """-1e9 hides a key as a boolean mask does: ssmax, which reads the length, is the same with both."""
    model, ids = build("llama-gqa", attention), token_ids(1, 13)
    visible = torch.ones(13, 13, dtype=torch.bool).tril()[None, None]
    by_hand = torch.zeros(visible.shape).masked_fill(~visible, -1e9)
    lowest = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad(), attnscope.swap(model, "ssmax"):
        expected = model(input_ids=ids, attention_mask=lowest).logits
        torch.testing.assert_close(model(input_ids=ids, attention_mask=by_hand).logits, expected, **ROUNDING)
        if attention == "sdpa":  # eager attention adds its mask, which must be float
            torch.testing.assert_close(model(input_ids=ids, attention_mask=visible).logits, expected, **ROUNDING)


@pytest.mark.parametrize("shape", [(7,), (5, 7), (5, 1), (2, 5, 7), (2, 1, 1, 7)], ids=str)
@pytest.mark.parametrize("heads", [None, [1]], ids=["all", "one"])
def test_masks_broadcast_as_the_kernel_broadcasts_them(shape: tuple[int, ...], heads: list[int] | None) -> None:
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, 2, tokens, 3, generator=generator) for tokens in (5, 7, 7))
    mask = torch.randn(shape, generator=generator)
    call = AttentionCall(torch.nn.Identity(), q, k, v, mask, {})
    output, _ = blocks.attend(call, heads, weight_function(Softmax()), with_weights=False)
    kernel = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(2, 2, 5, 7)).transpose(
        1, 2
    )
    torch.testing.assert_close(output, kernel if heads is None else kernel[:, :, heads], **ROUNDING)


def test_the_sink_of_a_model_does_not_count_in_the_length() -> None:
    model, ids = build("gpt-oss-sinks", "eager"), token_ids(1, 9)
    attention = model.model.layers[0].self_attn
    attention.sinks.data.fill_(-1e4)  # a sink that takes nothing
    model.model.layers[1].self_attn.sinks.data.fill_(-1e4)
    with torch.no_grad(), attnscope.swap(model, "ssmax:s=0.9:b=0.1"):
        with_sinks = model(input_ids=ids).logits
    with torch.no_grad(), attnscope.swap(model, lambda z, visible: SSMax(0.9, 0.1).weights(z, visible)):
        without = model(input_ids=ids).logits
    torch.testing.assert_close(with_sinks, without, **ROUNDING)


def test_weights_are_returned_when_asked_for() -> None:
    model, ids = build("llama-gqa", "eager"), token_ids()
    with torch.no_grad(), attnscope.swap(model, "sparsemax", layers=[0]), attnscope.swap(model, "ssmax", 1, [2, 3]):
        attentions = model(input_ids=ids, output_attentions=True).attentions
    own = build("llama-gqa", "eager")(input_ids=ids, output_attentions=True).attentions
    assert [a.shape for a in attentions] == [(2, 6, LENGTH, LENGTH)] * 2
    for a in attentions:
        torch.testing.assert_close(a.sum(-1), torch.ones_like(a.sum(-1)))
        assert (a.triu(1) == 0).all()
    zeros = (attentions[0] == 0).float().mean(), (own[0] == 0).float().mean()
    assert zeros[0] > zeros[1] + 0.1


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Remembers the largest tensor that any operation gave."""

    size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return result


def test_no_matrix_of_keys_by_keys_is_built_or_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 16."""
    monkeypatch.setattr(blocks, "BLOCK_LOGITS", 4096)
    model, ids = build("llama-gqa"), token_ids(1, 300)
    heads_by_keys = 6 * 300 * 300
    kept = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept = max(kept, tensor.numel())
        return tensor

    with attnscope.swap(model, "entmax15"):
        with torch.no_grad(), Largest() as largest:
            model(input_ids=ids)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), Largest() as both:
            model(input_ids=ids).logits.sum().backward()
    logits = 300 * VOCABULARY
    assert largest.size <= logits < heads_by_keys / 6
    assert both.size <= logits
    assert kept <= logits


def test_dropout_is_applied_and_its_gradient_is_that_of_the_same_draw() -> None:
    model = build("gpt2").double()  # a family that keeps to float64 throughout
    ids = token_ids(1, 9)
    weight = model.transformer.h[0].attn.c_attn.weight
    column = 2 * 35 + 3  # of a value

    def loss() -> torch.Tensor:
        torch.manual_seed(3)
        return model(input_ids=ids).logits.square().mean()

    with attnscope.swap(model, "sparsemax"):
        quiet = loss()
        model.train()
        drawn = loss()
        assert abs((drawn - quiet).item()) > 1e-3
        for block in model.transformer.h:
            block.attn.attn_dropout.p = 0.0
        assert abs((loss() - drawn).item()) > 1e-3  # the other layers' dropout is not all there is
        for block in model.transformer.h:
            block.attn.attn_dropout.p = 0.1
        (slope,) = torch.autograd.grad(drawn, weight)
        step = 1e-6
        with torch.no_grad():
            weight[2, column] += step
            above = loss()
            weight[2, column] -= 2 * step
            below = loss()
    torch.testing.assert_close(slope[2, column], (above - below) / (2 * step), rtol=1e-5, atol=1e-8)


def test_bfloat16_stays_near_the_models_own() -> None:
    model, ids = build("qwen3-qknorm").bfloat16(), token_ids()
    with torch.no_grad():
        own = model(input_ids=ids).logits
        with attnscope.swap(model, "softmax"):
            swapped = model(input_ids=ids).logits
    assert swapped.dtype == torch.bfloat16
    assert (swapped - own).abs().mean() < 0.02 * own.abs().mean()


def test_undo_gives_back_the_very_model() -> None:
    model, ids, before = build("gpt2"), token_ids(), registry()
    state, config = set(model.state_dict()), model.config.to_dict()
    with torch.no_grad():
        own = model(input_ids=ids).logits
        first = attnscope.swap(model, "sparsemax")
        second = attnscope.swap(model, LearnedSSMax, layers=[1])
        assert set(model.state_dict()) > state
        first.undo()  # the order is free
        only_second = model(input_ids=ids).logits
        second.undo()
        second.undo()
        after = model(input_ids=ids).logits
        with attnscope.swap(model, "ssmax", layers=[1]):
            torch.testing.assert_close(model(input_ids=ids).logits, only_second)
    assert torch.equal(own, after)
    assert set(model.state_dict()) == state
    assert model.config.to_dict() == config
    assert registry() == before


def test_an_error_inside_the_block_undoes_the_swap() -> None:
    model, before = build("gpt2"), registry()
    with pytest.raises(KeyError, match="on purpose"), attnscope.swap(model, "ssmax"):
        raise KeyError("on purpose")
    assert registry() == before


def test_a_copy_of_a_swapped_model_is_swapped_on_its_own() -> None:
    model, ids, before = build("gpt2"), token_ids(), registry()
    change = attnscope.swap(model, LearnedSSMax)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        for parameter in change.parameters:
            parameter.fill_(3.0)
        assert not torch.allclose(model(input_ids=ids).logits, expected)
        change.undo()
        assert torch.equal(twin(input_ids=ids).logits, expected)
    del twin
    assert registry() == before


def test_observing_a_swapped_model_sees_its_calls_and_leaves_the_swap() -> None:
    from attnscope.capture.huggingface import observed

    model, ids = build("gpt2"), token_ids(1)
    seen: list[Any] = []
    with torch.no_grad():
        with observed(model, seen.append):
            change = attnscope.swap(model, "sparsemax")
            inside = model(input_ids=ids).logits
        after = model(input_ids=ids).logits
        change.undo()
        own = model(input_ids=ids).logits
    assert len(seen) == 3
    assert torch.equal(inside, after)
    assert not torch.allclose(own, after)


def test_families_outside_the_attention_interface_are_refused_by_name() -> None:
    config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=20, n_layer=1, n_head=4)
    with pytest.raises(ModelError, match="BloomForCausalLM \\(bloom\\) does not use"):
        attnscope.swap(transformers.BloomForCausalLM(config), "ssmax")


def test_a_kernel_that_does_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    file = importlib.import_module("transformers.models.llama.modeling_llama")
    own = file.eager_attention_forward

    def doubled(*arguments: Any, **options: Any) -> Any:
        output, weights = own(*arguments, **options)
        return 2 * output, weights

    monkeypatch.setattr(file, "eager_attention_forward", doubled)
    with pytest.raises(ModelError, match="LlamaAttention \\(llama\\) does more than softmax"):
        attnscope.swap(build("llama-gqa", "eager"), "ssmax")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsense",), "no normalizer is named 'nonsense'"),
        (("ssmax", 7), "no layer 7 with attention; the model has 0 to 2"),
        (("ssmax", None, [5]), "no head 5 in layer 0; it has heads 0 to 4"),
        (("ssmax", "first"), "layers takes whole numbers"),
        (({(0, 1, 2): "ssmax"},), "keys are a layer or"),
        (({0: "ssmax"}, 1), "names its layers and heads itself"),
        ((3.5,), "a normalizer is a name"),
        ((LearnedSSMax(4),), "does not fit logits of 5 heads"),
        ((lambda z, visible: torch.ones_like(z),), "not visible"),
        ((lambda z, visible: z.sum(-1),), "must keep their shape"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_changed(arguments: Any, message: str) -> None:
    model, before = build("gpt2"), registry()
    with pytest.raises(InputError, match=message):
        attnscope.swap(model, *arguments)
    assert registry() == before


def test_something_else_than_a_model_is_refused() -> None:
    with pytest.raises(InputError, match="received a Linear"):
        attnscope.swap(torch.nn.Linear(2, 2), "ssmax")
