"""Replace the normalizer of a model, or the weights or output of single heads, temporarily or for good.

    >>> model, ids = attnscope.load_model().module, torch.arange(12)[None]
    >>> with attnscope.swap(model, "ssmax"):
    ...     loss = model(ids, labels=ids).loss
    >>> change = attnscope.swap(model, attnscope.normalizers.LearnedSSMax, layers=range(2))  # until change.undo()
    >>> change.undo()

The model's configuration keeps its kernel's name, so masks and caches are built as usual; heads that are not
replaced keep the model's own attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from attnscope.errors import InputError, ModelError
from attnscope.swapping import storage
from attnscope.swapping.replacement import Entry, Site, add_change, remove_change, sites
from attnscope.swapping.weights import check, rule_for

if TYPE_CHECKING:
    from types import TracebackType

    from torch import Tensor, nn

    Selection = int | Iterable[int] | None
    Intervention = Callable[[Tensor, Tensor], Tensor] | Tensor


BUDGET_HOOK = "attnscope_budget"  # attribute of the hook of a model with a budget


def has_budget(model: Any) -> bool:
    """Whether `apply_budget` has given a model, or the model that it is a copy of, a budget."""
    return any(hasattr(hook, BUDGET_HOOK) for hook in model._forward_pre_hooks.values())


class Swap:
    """A change to a model: use it as a context manager, or call `undo()` later.

    >>> model = attnscope.load_model().module  # any transformers model
    >>> change = attnscope.swap(model, "sparsemax", layers=[0])
    >>> [heads for _, heads in change.rules][0][:3]
    (0, 1, 2)
    >>> change.undo()
    """

    def __init__(self, model: nn.Module, changes: Iterable[tuple[Site, Entry]]) -> None:
        if has_budget(model):
            raise ModelError(f"{type(model).__name__} has a budget: its heads do not see all keys; undo it first")
        self.model = model
        self._changes = [(site, add_change(site.module, site.heads, entry), entry) for site, entry in changes]
        storage.write_swap_config(model)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the swapped normalizers."""
        return [p for rule in self.rules.values() if isinstance(rule, torch.nn.Module) for p in rule.parameters()]

    @property
    def rules(self) -> dict[tuple[str, tuple[int, ...]], Any]:
        """The rules of the changed heads, by the name of the attention module and the head numbers."""
        return {(site.name, entry.heads): entry.rule for site, _, entry in self._changes if entry.output is None}

    def undo(self) -> None:
        """Undo the change; other changes to the model stay. A second call does nothing."""
        for site, key, entry in self._changes:
            remove_change(site.module, key, entry)
        storage.write_swap_config(self.model)

    def __enter__(self) -> Swap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def swap(model: nn.Module, normalizer: Any, layers: Selection = None, heads: Selection = None) -> Swap:
    """Replace the normalizer of a loaded model, in all heads or in some.

    >>> model = attnscope.load_model().module  # any transformers model
    >>> ids = torch.arange(12)[None]
    >>> own = model(ids).logits
    >>> with attnscope.swap(model, "ssmax:s=0.2", layers=[0, 1]):
    ...     swapped = model(ids).logits
    >>> torch.equal(own, swapped), torch.equal(own, model(ids).logits)
    (False, True)

    The change lasts until `undo()` is called, or to the end of a `with` block. A later swap replaces an earlier
    one in the heads that it names.

    Parameters
    ----------
    model
        A loaded transformers model.
    normalizer
        A name with settings (`"entmax:alpha=1.3"`), a `Normalizer`, a learnable module or its class (`LearnedSSMax`:
        each layer gets its own, made for its number of heads), any function of (logits, visible), or a mapping
        `{layer: normalizer}`, `{(layer, head): normalizer}`.
    layers, heads
        Numbers counted from 0. Default: all of them.

    Returns
    -------
    Swap
        The change, with `undo()` and its learnable `parameters`.
    """
    return Swap(
        model,
        [
            (site, Entry(chosen, _rule(given, site, chosen), lasting=True))
            for site, given, chosen in _chosen(sites(model), normalizer, layers, heads)
        ],
    )


def intervene(model: nn.Module, rules: Mapping[tuple[int, int], Intervention]) -> Swap:
    """Replace the weights or the output of single heads: `{(layer, head): rule}`.

    >>> model = attnscope.load_model().module  # any transformers model
    >>> ids = torch.arange(12)[None]
    >>> with attnscope.swapping.intervene(model, {(0, 1): attnscope.swapping.first_key}):
    ...     logits = model(ids).logits  # with head 1 of layer 0 looking at the first token only
    >>> logits.shape[:2]
    torch.Size([1, 12])

    Other heads keep the model's own kernel. Interventions are not saved with the model.

    Parameters
    ----------
    model
        A loaded transformers model.
    rules
        A rule is a function of (logits, visible), both (batch, heads, rows, keys) with -inf on hidden keys, that
        returns the weights; or a vector (dims,) that the head outputs in every row. Keys are in the order of the
        window, from the first on; the last ones are left out if no row of a block sees them.

    Returns
    -------
    Swap
        The change: use it as a context manager, or call `undo()` later.
    """
    changes = []
    for site, given, chosen in _chosen(sites(model), rules, None, None):
        if isinstance(given, torch.Tensor):
            if given.shape != (site.dims,):
                shape = tuple(given.shape)
                raise InputError(
                    f"a head of {site.name} outputs {site.dims} numbers; received a vector of shape {shape}"
                )
            changes.append((site, Entry(chosen, output=given.detach())))
        else:
            changes.append((site, Entry(chosen, _rule(given, site, chosen))))
    return Swap(model, changes)


def _rule(given: Any, site: Site, heads: tuple[int, ...]) -> Any:
    rule = rule_for(given, len(heads))
    device = next((p.device for p in site.module.parameters()), torch.device("cpu"))
    if isinstance(rule, torch.nn.Module):
        rule.to(device).train(site.module.training)
    check(rule, len(heads), device)
    return rule


def _chosen(
    all_sites: list[Site], normalizer: Any, layers: Selection, heads: Selection
) -> Iterator[tuple[Site, Any, tuple[int, ...]]]:
    """The attention modules to change, each with a rule and the heads that get it."""
    if isinstance(normalizer, Mapping):
        if layers is not None or heads is not None:
            raise InputError("a mapping names its layers and heads itself; leave layers= and heads= out")
        if not normalizer:
            raise InputError("the mapping is empty; it names at least one layer or (layer, head)")
        given = {_layer_and_head(key): value for key, value in normalizer.items()}
    else:
        chosen_heads = [None] if heads is None else _numbers("heads", heads)
        chosen_layers = {site.layer for site in all_sites} if layers is None else _numbers("layers", layers)
        given = {(layer, head): normalizer for layer in chosen_layers for head in chosen_heads}
    _refuse_unknown(all_sites, given)
    for site in all_sites:
        rules: dict[int, Any] = {}
        for head in range(site.heads):
            for key in ((site.layer, head), (site.layer, None)):
                if key in given:
                    rules[head] = given[key]
                    break
        while rules:
            rule = next(iter(rules.values()))
            same = tuple(head for head, other in rules.items() if other is rule or _same_name(other, rule))
            yield site, rule, same
            rules = {head: other for head, other in rules.items() if head not in same}


def _layer_and_head(key: Any) -> tuple[int, int | None]:
    if _is_number(key):
        return key, None
    if isinstance(key, tuple) and len(key) == 2 and all(map(_is_number, key)):
        return key
    raise InputError(f"a mapping's keys are a layer or (layer, head); received {key!r}")


def _same_name(a: Any, b: Any) -> bool:
    return isinstance(a, str) and isinstance(b, str) and a == b


def _numbers(name: str, selection: Any) -> list[int]:
    chosen = list(selection) if isinstance(selection, Iterable) else [selection]
    if not chosen or not all(map(_is_number, chosen)):
        raise InputError(f"{name} takes whole numbers; received {selection!r}")
    return chosen


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_unknown(all_sites: list[Site], given: Mapping[tuple[int, int | None], Any]) -> None:
    heads: dict[int, int] = {}
    for site in all_sites:
        heads[site.layer] = max(site.heads, heads.get(site.layer, 0))
    for layer, head in given:
        if layer not in heads:
            raise InputError(f"no layer {layer} with attention; the model has {_listed(sorted(heads))}")
        if head is not None and not 0 <= head < heads[layer]:
            raise InputError(f"no head {head} in layer {layer}; it has heads 0 to {heads[layer] - 1}")


def _listed(numbers: list[int]) -> str:
    run = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if run else ", ".join(map(str, numbers))
