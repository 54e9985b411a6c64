"""Have a loaded model attend only to the keys that a budget keeps, with a cache that stores no others.

For a head of kind first_recent, a layer stores the first keys of every item and the most recent ones; other heads keep
everything. While a layer of the model runs, its keys are laid out at their positions, with zeros where nothing is
stored, so that attention, masks and positions are those of the whole sequence; the budget's rules give those keys no
weight. That takes the room of one layer's full cache for a moment, as torch.cat does in transformers' own cache.

Heads of kind first_recent see the first keys and the nearest ones, heads of kind top those with the largest weights;
both give them the softmax of their logits. An empty cache is prepared so that it does not store what heads of kind
first_recent drop. Output with and without a cache is the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import CacheLayerMixin, DynamicCache

from attnscope.capture.huggingface import SWAP_CONFIG_KEY, observed
from attnscope.capture.modules import evaluating, without_hooks
from attnscope.errors import InputError, ModelError
from attnscope.normalizers import softmax
from attnscope.swapping.changes import Swap, has_budget, softmax_over
from attnscope.swapping.key_budget import HeadBudget, KeyBudget, given_budget, keep_near, largest, top_counts
from attnscope.swapping.replacement import Entry, Site, probe_inputs, sites

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jaxtyping import Float, Int
    from torch import Tensor

    from attnscope.capture.attention import AttentionCall
    from attnscope.swapping.changes import WeightRule


@dataclass
class Owner:
    """The applied budget that a cache belongs to."""

    active: bool = True

    def __deepcopy__(self, memo: object) -> Owner:
        """The same: copies of a cache belong to the same budget."""
        return self

    def __reduce__(self) -> tuple[type[Owner], tuple[bool]]:
        """Inactive: what is saved and loaded belongs to no budget of the process that loads it."""
        return Owner, (False,)


@dataclass
class _Part:
    """What is stored of heads with the same number of first and recent keys; `recent` None: everything."""

    heads: list[int]
    first: int
    recent: int | None
    stored: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (first, recent) of the keys and of the values


class BudgetLayer(CacheLayerMixin):
    """The keys and values that the heads of one layer keep."""

    is_sliding = False
    is_croppable = False

    def __init__(self, kv_heads: int, budgets: Sequence[HeadBudget], owner: Owner) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kv_heads, self.owner = kv_heads, owner
        limits: dict[int, tuple[int, int | None]] = dict.fromkeys(range(kv_heads), (0, None))
        limits |= {b.kv_head: (b.first, b.recent) for b in budgets if b.kind == "first_recent"}
        sizes = list(dict.fromkeys(limits.values()))
        self.parts = [_Part([h for h, size in limits.items() if size == each], *each) for each in sizes]
        self.length = 0
        self.padding: Int[Tensor, " batch"] | None = None  # tokens of padding on the left of each item
        self.expected = False  # whether the model that has the budget is about to use this layer

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that is stored."""
        return [tensor for part in self.parts for pair in part.stored for tensor in pair]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Float[Tensor, "batch kv_heads keys dims"], Float[Tensor, "batch kv_heads keys dims"]]:
        """Add new keys and values, and return all of them at their positions, zeros where they were dropped."""
        if not (self.owner.active and self.expected):
            raise InputError(
                "this cache belongs to a budget that was undone, or that another model has; start with an empty cache"
            )
        self.expected = False
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.padding is None:
            self.padding = torch.zeros(len(key_states), dtype=torch.long, device=key_states.device)
        states = [self._laid_out(number, new) for number, new in enumerate((key_states, value_states))]
        self.length += key_states.shape[-2]
        for part in self.parts:
            part.stored = [self._chosen(part, laid_out) for laid_out in states]
        return states[0], states[1]

    def _laid_out(self, number: int, new: Tensor) -> Tensor:
        """The stored keys (number 0) or values (1) at their positions, followed by the new ones."""
        if self.length == 0:
            return new
        batch, heads, count, dims = new.shape
        out = new.new_zeros(batch, heads, self.length + count, dims)
        out[:, :, self.length :] = new
        for part in self.parts:
            first, recent = part.stored[number]
            out[self._first_index(part, first.shape[2])] = first
            out[:, part.heads, self.length - recent.shape[2] : self.length] = recent
        return out

    def _chosen(self, part: _Part, states: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of what a part stores: indexing by lists never gives views, which would hold all keys."""
        first = min(part.first, self.length)
        recent = self.length - first if part.recent is None else min(part.recent, self.length - first)
        return states[self._first_index(part, first)], states[:, part.heads, self.length - recent :]

    def _first_index(self, part: _Part, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Index of the first keys of each item after its padding; of the last key where there are not that many."""
        assert self.padding is not None
        device = self.padding.device
        positions = (self.padding[:, None] + torch.arange(count, device=device)).clamp_max(self.length - 1)
        items = torch.arange(len(positions), device=device)
        return items[:, None, None], torch.tensor(part.heads, device=device)[None, :, None], positions[:, None]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys that masks cover, those that were dropped included, and the first one."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.length, self.padding, self.is_initialized = 0, None, False
        for part in self.parts:
            part.stored = []

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.padding is not None:
            self.batch_select_indices(torch.arange(len(self.padding)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.padding is None:
            return
        chosen = indices.to(self.padding.device)
        self.padding = self.padding[chosen]
        for part in self.parts:
            part.stored = [(first[chosen], recent[chosen]) for first, recent in part.stored]

    def crop(self, tokens_to_remove: int) -> None:
        raise ModelError("a cache with a budget cannot be cropped: dropped keys cannot come back; generate without it")

    def offload(self) -> None:
        raise ModelError("a cache with a budget cannot be offloaded; generate without cache_implementation='offloaded'")


def cache_bytes(cache: Any) -> int:
    """Bytes of the keys and values that a cache stores.

    >>> model = attnscope.load_model().module
    >>> budget = [attnscope.swapping.HeadBudget(0, head, "first_recent", first=1, recent=3) for head in range(6)]
    >>> ids = torch.arange(12)[None]
    >>> full = attnscope.swapping.cache_bytes(model(ids).past_key_values)
    >>> with attnscope.swapping.apply_budget(model, budget):
    ...     small = attnscope.swapping.cache_bytes(model(ids).past_key_values)
    >>> full - small == 2 * 6 * (12 - 4) * 32 * 4  # keys and values, heads, dropped tokens, dimensions, bytes
    True

    Parameters
    ----------
    cache
        A `DynamicCache`, with or without a budget.

    Returns
    -------
    int
    """
    layers = [layer.tensors if isinstance(layer, BudgetLayer) else [layer.keys, layer.values] for layer in cache.layers]
    return sum(tensor.untyped_storage().nbytes() for layer in layers for tensor in layer if tensor is not None)


def prepare_cache(cache: Any, layers: Sequence[tuple[int, Sequence[HeadBudget]]], owner: Owner) -> None:
    """Have an empty cache store what the budgets keep: (key-value heads, budgets) of each layer."""
    if cache.layers and all(isinstance(layer, BudgetLayer) and layer.owner is owner for layer in cache.layers):
        return
    if type(cache) is not DynamicCache:
        raise ModelError(
            f"a budget is applied to DynamicCache, transformers' default; received a {type(cache).__name__}: leave "
            "cache_implementation and past_key_values out"
        )
    if cache.offloading:
        raise ModelError("a cache with a budget cannot be offloaded; leave cache_implementation='offloaded' out")
    if cache.get_seq_length() > 0:
        raise InputError(
            "this cache was filled before the budget was applied, or saved and loaded since; start with an empty one"
        )
    cache.layers = [BudgetLayer(kv_heads, budgets, owner) for kv_heads, budgets in layers]
    cache.layer_class_to_replicate = None


def set_padding(cache: Any, mask: Any) -> None:
    """Tell the layers of a cache how many tokens on the left of each item an attention mask hides."""
    if mask is not None and not (isinstance(mask, torch.Tensor) and mask.ndim == 2):
        raise ModelError("a cache with a budget takes an attention mask of shape (batch, tokens), or none")
    hidden: Any = None if mask is None else mask == 0
    padding = None if mask is None else hidden.cumprod(-1).sum(-1)
    if padding is not None and not torch.equal(hidden.sum(-1), padding):
        raise ModelError(
            "a cache with a budget takes padding on the left only; this attention mask hides tokens elsewhere: set "
            "tokenizer.padding_side = 'left'"
        )
    for layer in cache.layers:
        if layer.padding is not None:
            now = torch.zeros_like(layer.padding) if padding is None else padding
            # Padding may go on in tokens that the cache has not seen yet.
            if not torch.equal(now.clamp_max(layer.length), layer.padding):
                raise InputError("the attention mask does not hide the padding of the tokens that the cache holds")
        layer.padding = padding
        layer.expected = True


class _PrepareCaches:
    """Before a model with a budget runs: have its cache store what the budget keeps."""

    attnscope_budget = True  # how `has_budget` knows it

    def __init__(self, model: Any, layers: Sequence[tuple[int, Sequence[HeadBudget]]]) -> None:
        self.layers, self.owner = layers, Owner()
        parameters = inspect.signature(model.forward).parameters.values()
        self.names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]

    def __deepcopy__(self, memo: object) -> _PrepareCaches:
        """The copy of a model has a budget of its own, which outlives that of the original."""
        copied = copy(self)
        copied.owner = Owner(self.owner.active)
        return copied

    def __call__(
        self, model: Any, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = dict(zip(self.names, args, strict=False)) | named
        use_cache = given.get("use_cache")
        if use_cache is None:
            use_cache = getattr(model.config.get_text_config(), "use_cache", True)
        if given.get("past_key_values") is None and use_cache:
            given["past_key_values"] = DynamicCache()
        if given.get("past_key_values") is not None:
            prepare_cache(given["past_key_values"], self.layers, self.owner)
            set_padding(given["past_key_values"], given.get("attention_mask"))
        return args[len(self.names) :], given


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
        super().__init__(model, [(site, entry) for site in all_sites for entry in _entries(site, budget)])
        layers = [(site.kv_heads, [b for b in budget.heads if b.layer == site.layer]) for site in all_sites]
        self._prepare = _PrepareCaches(model, layers)
        self._hook = model.register_forward_pre_hook(self._prepare, with_kwargs=True)

    def undo(self) -> None:
        """Undo the change; caches that were filled with it cannot be used any more. A second call does nothing."""
        self._prepare.owner.active = False
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
    _refuse_other_caches(model, all_sites)
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
    if has_budget(model):
        return f"{name} has one already; undo it first"
    if any(part.rpartition(".")[2] == "sinks" for part, _ in model.named_parameters()):
        return f"{name} has sink logits, which heads with a budget would lose"
    kinds = sorted(set(getattr(text, "layer_types", None) or ()) - {"full_attention"})
    if kinds or (getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)):
        return f"{name} has layers of kind {', '.join(kinds) or 'sliding_attention'}, whose caches are bounded already"
    return None


def _refuse_other_caches(model: Any, all_sites: Sequence[Site]) -> None:
    """Raise unless the cache stores the very keys and values that the heads attend to, found by running the model."""
    calls: dict[Any, AttentionCall] = {}

    def remember(call: AttentionCall) -> None:
        calls[call.module] = call

    cache: Any = DynamicCache()
    with torch.no_grad(), evaluating(model), without_hooks(model), observed(model, remember, alone=True):
        model(**probe_inputs(model), past_key_values=cache, use_cache=True)
    for site, layer in zip(all_sites, cache.layers, strict=False):
        call = calls[site.module]
        if not (_same(layer.keys, call.key) and _same(layer.values, call.value)):
            raise ModelError(
                f"no budget can be applied: the cache of {type(model).__name__} ({model.config.model_type}) stores "
                f"other keys or values than the heads of layer {site.layer} attend to"
            )


def _same(stored: Any, used: Tensor) -> bool:
    return isinstance(stored, torch.Tensor) and torch.equal(stored, used)


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
