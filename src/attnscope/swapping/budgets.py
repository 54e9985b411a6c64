"""Have a loaded model attend only to the keys that a budget keeps, in forwards and in `generate`.

Heads of kind first_recent see the first keys and the nearest ones, heads of kind top those with the largest weights;
both give them the softmax of their logits. An empty cache is prepared so that it does not store what heads of kind
first_recent drop (`budget_cache.py`). Output with and without a cache is the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transformers.cache_utils import DynamicCache

from attnscope.capture.huggingface import SWAP_CONFIG_KEY
from attnscope.errors import InputError, ModelError
from attnscope.key_rules import keep_near, largest, top_counts
from attnscope.normalizers import softmax
from attnscope.swapping.budget_cache import Owner, prepare_cache, set_padding
from attnscope.swapping.changes import Swap
from attnscope.swapping.interventions import softmax_over
from attnscope.swapping.key_budget import HeadBudget, KeyBudget, given_budget
from attnscope.swapping.layout import Site, sites
from attnscope.swapping.replacement import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor, nn

    from attnscope.swapping.interventions import WeightRule


class AppliedBudget(Swap):
    """A budget in a model, until `undo()` or the end of a `with` block.

    >>> model = attnscope.load_model().module
    >>> change = attnscope.swapping.apply_budget(model, [attnscope.swapping.HeadBudget(0, 1, "top", share=0.25)])
    >>> change.budget.heads[0].kind
    'top'
    >>> change.undo()
    """

    def __init__(self, model: Any, all_sites: Sequence[Site], budget: KeyBudget) -> None:
        self.budget = budget
        self._owner = Owner()
        self._layers = [(site.kv_heads, [b for b in budget.heads if b.layer == site.layer]) for site in all_sites]
        parameters = inspect.signature(model.forward).parameters.values()
        names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]

        def prepare(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            given = dict(zip(names, args, strict=False)) | named
            use_cache = given.get("use_cache")
            if use_cache is None:
                use_cache = getattr(model.config.get_text_config(), "use_cache", True)
            if given.get("past_key_values") is None and use_cache:
                given["past_key_values"] = DynamicCache()
            if given.get("past_key_values") is not None:
                prepare_cache(given["past_key_values"], self._layers, self._owner)
                set_padding(given["past_key_values"], given.get("attention_mask"))
            return args[len(names) :], given

        super().__init__(model, [(site, entry) for site in all_sites for entry in _entries(site, budget)])
        self._hook = model.register_forward_pre_hook(prepare, with_kwargs=True)

    def undo(self) -> None:
        """Undo the change; caches that were filled with it cannot be used any more. A second call does nothing."""
        self._owner.active = False
        self._hook.remove()
        super().undo()


def apply_budget(model: Any, budget: KeyBudget | Sequence[HeadBudget] | str | Path) -> AppliedBudget:
    """Have a model attend only to the keys that a budget keeps.

    >>> model = attnscope.load_model().module  # any causal transformers model
    >>> budget = [attnscope.swapping.HeadBudget(0, head, "first_recent", first=4, recent=28) for head in range(6)]
    >>> with attnscope.swapping.apply_budget(model, budget):
    ...     text = model.generate(torch.arange(12)[None], max_new_tokens=3, do_sample=False)
    >>> text.shape
    torch.Size([1, 15])

    Heads of kind first_recent do not store the keys that they drop, whether the cache comes from `generate` or is an
    empty `DynamicCache` of your own. Items of a batch may have padding on the left.

    Parameters
    ----------
    model
        A loaded transformers model that predicts the next token.
    budget
        What `attnscope budget` wrote (the folder or its `budget.json`), a `KeyBudget`, or a list of `HeadBudget`. Heads
        that it does not name keep all keys.

    Returns
    -------
    AppliedBudget
        The change: use it as a context manager, or call `undo()` later.
    """
    given = given_budget(budget)
    _refuse_models(model)
    all_sites = sorted(sites(model), key=lambda site: site.layer)
    layers = model.config.get_text_config().num_hidden_layers
    if [site.layer for site in all_sites] != list(range(layers)):
        raise ModelError(
            f"{type(model).__name__} does not have one attention module in each of its {layers} layers; a budget needs "
            "one cache for each"
        )
    kv_heads = {site.layer: site.kv_heads for site in all_sites}
    for head in given.heads:
        if head.kv_head >= kv_heads.get(head.layer, 0):
            raise InputError(
                f"the budget names key-value head {head.kv_head} of layer {head.layer}; {type(model).__name__} has "
                f"{layers} layers of {max(kv_heads.values())}: was it made for another model?"
            )
    return AppliedBudget(model, all_sites, given)


def refusal(model: Any) -> str | None:
    """Why no budget can be applied to a model; None if one can."""
    config = getattr(model, "config", None)
    if config is None:
        return f"budgets are for transformers models, and this is a {type(model).__name__}"
    text, name = config.get_text_config(), f"{type(model).__name__} ({config.model_type})"
    if config.is_encoder_decoder or model.get_output_embeddings() is None:
        return f"{name} does not predict the next token; load a causal language model"
    if getattr(config, SWAP_CONFIG_KEY, None):
        return f"{name} has a swapped normalizer, and budgets are for softmax; undo the swap first"
    if any(part.rpartition(".")[2] == "sinks" for part, _ in model.named_parameters()):
        return f"{name} has sink logits, which heads with a budget would lose"
    kinds = sorted(set(getattr(text, "layer_types", None) or ()) - {"full_attention"})
    if kinds or (getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)):
        return f"{name} has layers of kind {', '.join(kinds) or 'sliding_attention'}, whose caches are bounded already"
    return None


def _refuse_models(model: Any) -> None:
    reason = refusal(model)
    if reason is not None:
        raise ModelError(f"no budget can be applied: {reason}")


def _entries(site: Site, budget: KeyBudget) -> Iterator[Entry]:
    """The changes to one attention module: one for each rule, with the heads that follow it."""
    shared = site.heads // site.kv_heads
    alike: dict[HeadBudget, list[int]] = {}
    for head in budget.heads:
        if head.layer == site.layer and head.kind != "all":
            heads = range(head.kv_head * shared, (head.kv_head + 1) * shared)
            alike.setdefault(replace(head, kv_head=0), []).extend(heads)
    for each, members in alike.items():
        near = softmax_over(keep_near(each.recent, each.first))
        yield Entry(tuple(members), near if each.kind == "first_recent" else _top(each.share, shared))


def _top(share: float, shared: int) -> WeightRule:
    """Softmax over the keys with the largest weights in any of the heads that share them."""

    def rule(logits: Tensor, visible: Tensor) -> Tensor:
        weights = softmax(logits, visible).unflatten(1, (-1, shared)).amax(2)
        seen = visible.unflatten(1, (-1, shared))[:, :, 0]
        kept = largest(weights, seen, top_counts(seen, share)).repeat_interleave(shared, 1)
        return softmax(logits, kept & visible)

    return rule
