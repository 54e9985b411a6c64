"""Replace the normalizer of a model, or the weights or output of single heads, temporarily or for good.

    >>> model, ids = attnscope.load_model().module, torch.arange(12)[None]
    >>> with attnscope.swap(model, "ssmax"):
    ...     loss = model(ids, labels=ids).loss
    >>> change = attnscope.swap(model, attnscope.normalizers.LearnedSSMax, layers=range(2))  # until change.undo()
    >>> change.undo()

The model's configuration keeps its kernel's name, so masks and caches are built as usual; heads that are not
replaced keep the model's own attention. `Fidelity` says how much a changed model differs from the unmodified one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from attnscope.capture.attention import unpadded
from attnscope.capture.huggingface import observed
from attnscope.capture.watching import WatchedForward
from attnscope.errors import InputError, ModelError
from attnscope.normalizers import softmax
from attnscope.swapping import storage
from attnscope.swapping.key_budget import KeyRule, first_visible, keep_near, keep_top
from attnscope.swapping.replacement import Entry, Site, add_change, remove_change, sites
from attnscope.swapping.weights import check, rule_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from jaxtyping import Bool, Float, Int
    from torch import Tensor, nn

    from attnscope.capture.attention import AttentionCall

    Selection = int | Iterable[int] | None
    Intervention = Callable[[Tensor, Tensor], Tensor] | Tensor

WeightRule = Callable[["Tensor", "Tensor"], "Tensor"]
"""A function of (logits, visible) to weights."""


def softmax_over(keys: KeyRule) -> WeightRule:
    """Softmax over the keys that a key rule keeps."""

    def rule(logits: Tensor, visible: Tensor) -> Tensor:
        return softmax(logits, keys(logits, visible, None))

    return rule


def first_key(
    logits: Float[Tensor, "*batch keys"], visible: Bool[Tensor, "*batch keys"]
) -> Float[Tensor, "*batch keys"]:
    """All weight on the first visible key.

    >>> logits, visible = torch.tensor([[1.0, 3.0, 2.0, 0.0]]), torch.ones(1, 4, dtype=torch.bool)
    >>> first_key(logits, visible)
    tensor([[1., 0., 0., 0.]])

    Parameters
    ----------
    logits : (..., keys)
        Logits of each row.
    visible : (..., keys)
        The keys that a row sees.

    Returns
    -------
    (..., keys)
        Weights.
    """
    return first_visible(visible).to(logits.dtype)


def sink_and_last(count: int) -> WeightRule:
    """Softmax over the first visible key and the last `count`.

    >>> logits, visible = torch.tensor([[1.0, 3.0, 2.0, 0.0]]), torch.ones(1, 4, dtype=torch.bool)
    >>> sink_and_last(1)(logits, visible)
    tensor([[0.7311, 0.0000, 0.0000, 0.2689]])

    Parameters
    ----------
    count
        How many of the last visible keys keep weight, from 1 up.

    Returns
    -------
    WeightRule
        A function of (logits, visible), for `intervene`.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"sink_and_last takes a whole number of keys from 1 up; received {count!r}")
    return softmax_over(keep_near(count))


def top_share(share: float) -> WeightRule:
    """Softmax over the largest logits of a row.

    >>> logits, visible = torch.tensor([[1.0, 3.0, 2.0, 0.0]]), torch.ones(1, 4, dtype=torch.bool)
    >>> top_share(0.5)(logits, visible)
    tensor([[0.0000, 0.7311, 0.2689, 0.0000]])

    Parameters
    ----------
    share
        The share of the row's visible keys that keep weight, above 0 and at most 1; at least one key does.

    Returns
    -------
    WeightRule
        A function of (logits, visible), for `intervene`.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(f"top_share takes a share above 0 and at most 1; received {share!r}")
    return softmax_over(keep_top(share))


def mean_outputs(
    model: nn.Module, inputs: Iterable[dict[str, Tensor]]
) -> dict[tuple[int, int], Float[Tensor, " dims"]]:
    """Mean output of every (layer, head) over all rows of these inputs: vectors to intervene with.

    >>> model = attnscope.load_model().module  # any transformers model
    >>> means = mean_outputs(model, [{"input_ids": torch.arange(12)[None]}])
    >>> with attnscope.swapping.intervene(model, {(0, 1): means[0, 1]}):
    ...     logits = model(torch.arange(12)[None]).logits  # with head 1 of layer 0 replaced by its mean

    Rows of padding are left out.

    Parameters
    ----------
    model
        A loaded transformers model.
    inputs
        Batches, each as named arguments of the model.

    Returns
    -------
    dict[tuple[int, int], Tensor]
        Vectors of shape (dims,), one for each layer and head.
    """
    layer = {site.module: site.layer for site in sites(model)}
    totals: dict[int, Tensor] = {}
    counts: dict[int, int] = {}

    watched = WatchedForward(model)

    def add(call: AttentionCall) -> None:
        if not watched.active():
            return
        output, number = call.kernel_output()[0].double(), layer[call.module]
        complete = watched.complete(call)
        for item in range(call.batch):
            rows = unpadded(complete.only(item))
            totals[number] = totals.get(number, 0) + output[item, rows].sum(0)
            counts[number] = counts.get(number, 0) + len(rows)

    with torch.no_grad(), watched.followed(), observed(model, add):
        for batch in inputs:
            model(**batch)
    return {
        (number, head): totals[number][head] / counts[number]
        for number in totals
        for head in range(totals[number].shape[0])
    }


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


def kl_divergence(
    log_p: Float[Tensor, "*batch tokens"], log_q: Float[Tensor, "*batch tokens"]
) -> Float[Tensor, " *batch"]:
    """KL(p || q) in nats, from the log-probabilities (`log_softmax`) of both distributions; differentiable."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def next_token_logits(
    module: Any, tokens: Int[Tensor, " positions"], rows: Int[Tensor, " rows"] | None = None
) -> Float[Tensor, "rows vocabulary"]:
    """Logits of one window at all positions, or at the given ones; differentiable unless gradients are off."""
    some = rows is not None and "logits_to_keep" in inspect.signature(module.forward).parameters
    options = {"logits_to_keep": rows} if some else {}
    logits: Tensor = module(input_ids=tokens[None], use_cache=False, **options).logits[0]
    return logits if rows is None or some else logits[rows]


_ROWS = 64  # rows of logits over the vocabulary in float64 at one time


@dataclass
class Fidelity:
    """Scores of every predicted token over some windows; position i predicts token i + 1."""

    losses: list[Float[Tensor, " positions"]] = field(default_factory=list)
    divergences: list[Float[Tensor, " positions"]] = field(default_factory=list)
    agreements: list[Float[Tensor, " positions"]] = field(default_factory=list)

    def add(
        self,
        logits: Float[Tensor, "positions vocabulary"],
        model_logits: Float[Tensor, "positions vocabulary"],
        ids: Int[Tensor, " positions"],
    ) -> None:
        """Score one window: the changed model's logits against the unmodified model's, and against the text."""
        loss, divergence, agreement = [], [], []
        for start in range(0, len(ids) - 1, _ROWS):
            rows = slice(start, min(start + _ROWS, len(ids) - 1))
            changed, reference = (z[rows].double().log_softmax(-1) for z in (logits, model_logits))
            loss.append(functional.nll_loss(changed, ids[rows.start + 1 : rows.stop + 1], reduction="none"))
            divergence.append(kl_divergence(reference, changed))
            agreement.append((changed.argmax(-1) == reference.argmax(-1)).double())
        self.losses.append(torch.cat(loss))
        self.divergences.append(torch.cat(divergence))
        self.agreements.append(torch.cat(agreement))

    def at(self, length: int) -> dict[str, float]:
        """The scores over the first `length` tokens of each window."""
        if length < 2:
            return {}
        mean = [torch.cat([w[: length - 1] for w in kind]).mean() for kind in self._kinds]
        return {"perplexity": float(mean[0].exp()), "kl": float(mean[1]), "agreement": float(mean[2])}

    @property
    def _kinds(self) -> tuple[list[Tensor], ...]:
        return self.losses, self.divergences, self.agreements


def mean_divergence(module: Any, windows: Sequence[Tensor], model_logits: Sequence[Tensor]) -> Tensor:
    """Mean KL divergence over positions of the changed model from the unmodified logits; differentiable."""
    total = torch.zeros((), dtype=torch.float32, device=model_logits[0].device)
    for ids, logits in zip(windows, model_logits, strict=True):
        reference, changed = (z.float().log_softmax(-1) for z in (logits, next_token_logits(module, ids)))
        total = total + kl_divergence(reference, changed).mean()
    return total / len(windows)
