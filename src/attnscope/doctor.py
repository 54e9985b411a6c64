"""What can be measured in a model, and how: every answer is tested on the model itself.

    >>> report = attnscope.doctor.examine(attnscope.load_model())
    >>> [check.name for check in report.checks if check.verdict == "fail"]
    []

The model runs on a few random tokens, as one sequence and as a batch that is padded on the left, on the right and not
at all. Weights are rebuilt from what a scan captures and compared with those of the model's own eager attention; what
the kernel in use returns is compared with rebuilt weights times values.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers.modeling_utils import AttentionInterface

from attnscope import __version__
from attnscope.capture.attention import AttentionCall, LogitsCall, unpadded
from attnscope.capture.effects import Effects, EffectSource
from attnscope.capture.forward import forward, observed
from attnscope.capture.modules import Layers, VectorSource
from attnscope.engine.record import version
from attnscope.errors import ModelError, parameter
from attnscope.measure.settings import DEFAULT_LENGTH, DEFAULT_MEMORY

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.capture.models import Model
    from attnscope.show.blocks import Block

__all__ = ["Check", "Examination", "examine"]

Verdict = Literal["pass", "note", "fail"]

TOKENS, PADDED = 19, 6  # tokens of the test sequences, and how many of them are padding
SEED = 0
FACTS = ("model", "layers", "positions", "memory")  # that are always shown
# Rebuilt weights are float64; the model rounds its own to its type, and its softmax to float32.
TOLERANCE = {torch.float64: 5e-5, torch.float32: 5e-5, torch.bfloat16: 0.05, torch.float16: 0.01}


@dataclass(frozen=True)
class Check:
    """One line of the report: a fact (`note`), or the result of a test.

    >>> attnscope.doctor.Check("positions", "note", "up to 2,048 tokens").verdict
    'note'
    """

    name: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Examination:
    """All checks of a model.

    >>> attnscope.doctor.Examination("mine", [attnscope.doctor.Check("weights", "fail", "not all there")]).passed
    False
    """

    model: str
    checks: list[Check]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(check.verdict != "fail" for check in self.checks)

    def blocks(self, verbose: bool = False) -> list[Block]:
        """The verdict, the checks, and a few facts; all of them if `verbose`."""
        from attnscope.show.blocks import Note, Span, Table
        from attnscope.show.numbers import short_path

        tried = [check for check in self.checks if check.verdict != "note"]
        failed = [check.name for check in tried if check.verdict == "fail"]
        if failed:
            names = ", ".join(failed)
            words = f"{len(failed)} of {len(tried)} checks failed ({names}): do not trust a scan of this model."
        else:
            words = f"all {len(tried)} checks passed: a scan measures what this model computes."
        verdict = Span(f"{short_path(self.model)}: ", "strong"), Span(words, "bad" if failed else "good")
        marks = {"pass": Span("ok", "good"), "note": Span(""), "fail": Span("FAIL", "bad")}
        shown = [check for check in self.checks if verbose or check.verdict != "note" or check.name in FACTS]
        rows = [(marks[check.verdict], check.name, check.text) for check in shown]
        return [Note(verdict), Table(["", "Check", "Result"], rows, texts=(0, 1, 2))]

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"model": self.model, "passed": self.passed, "checks": [asdict(check) for check in self.checks]}


@dataclass(frozen=True)
class _Trial:
    """Results of one attention call of one item."""

    module: str
    kind: str
    heads: int
    groups: int
    features: frozenset[str]
    written_out: bool
    causal: bool
    rows: list[int]  # that are not padding
    weight_error: float | None  # against the model's own weights; None where it does not show them
    output_error: float | None  # of weights times values, against the kernel, relative to its largest number


def examine(model: Model, length: int | None = None) -> Examination:
    """Test a loaded model and report what a scan of it can measure.

    >>> attnscope.doctor.examine(attnscope.load_model()).passed
    True

    Parameters
    ----------
    model
        What `attnscope.load_model` returned.
    length
        Tokens that memory is stated for. Default: 1024, or the model's limit if that is less.

    Returns
    -------
    Examination
        A line for each check, and whether all passed.
    """
    size = length or min(DEFAULT_LENGTH, model.positions or DEFAULT_LENGTH)
    checks = [*_facts(model), *_patches()]
    try:
        one, batch, mask = _inputs(model)
        plain = _trials(model, one, None)
        checks += _seen(model, plain)
        checks += _parity("one sequence", model, plain, one, None, [list(range(TOKENS))])
        kept = [row.nonzero().flatten().tolist() for row in mask]
        checks += _parity("padded batch", model, _trials(model, batch, mask), batch, mask, kept)
        checks.append(_same_output(model, batch, mask))
        checks.append(_effects(model, one))
    except ModelError as error:
        checks.append(Check("attention", "fail", str(error)))
    else:
        checks.append(_memory(model, plain, size))
    return Examination(model.name, checks)


def _facts(model: Model) -> list[Check]:
    module = model.module
    parameters = list(module.parameters())
    kinds = dict.fromkeys(str(p.dtype).removeprefix("torch.") for p in parameters)
    devices = dict.fromkeys("offloaded" if p.is_meta else str(p.device) for p in parameters)
    count = sum(p.numel() for p in parameters)
    limit = "no limit in its configuration" if model.positions is None else f"up to {model.positions:,} tokens"
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "numba", "polars"))
    if model.source is None:
        weights = Check("weights", "note", "given as an object: its source is not known")
    else:
        unused = ", ".join(model.unused_weights[:3]) + (", ..." if len(model.unused_weights) > 3 else "")
        complete = "all there and of the right shape" + (f"; not used: {unused}" if unused else "")
        weights = Check("weights", "pass", complete)
    return [
        Check("model", "note", f"{type(module).__name__} ({model.family}), {count:,} parameters"),
        Check("numbers", "note", f"{', '.join(kinds)} on {', '.join(devices)}; measured in float64"),
        weights,
        Check("positions", "note", limit),
        Check("versions", "note", f"attnscope {__version__}, Python {platform.python_version()}, {packages}"),
    ]


def _patches() -> list[Check]:
    """Kernels of transformers' registry, and torch's own attention, that come from another package."""
    entries = {f"transformers' {name!r}": kernel for name, kernel in AttentionInterface._global_mapping.items()}
    entries["torch's scaled_dot_product_attention"] = torch.nn.functional.scaled_dot_product_attention
    entries["MultiheadAttention.forward"] = torch.nn.MultiheadAttention.forward
    foreign = {
        name: f"{kernel.__module__}.{getattr(kernel, '__qualname__', kernel)}"
        for name, kernel in entries.items()
        if (getattr(kernel, "__module__", None) or "torch").partition(".")[0]
        not in ("torch", "transformers", "attnscope")
    }
    if not foreign:
        return [Check("patches", "pass", "attention functions are those of torch and transformers")]
    listed = ", ".join(f"{name} is {function}" for name, function in foreign.items())
    return [Check("patches", "note", f"from another package: {listed}; the checks below hold with it")]


def _inputs(model: Model) -> tuple[Int[Tensor, "1 tokens"], Int[Tensor, "3 tokens"], Bool[Tensor, "3 tokens"]]:
    """Random tokens: one sequence, and a batch padded on the left, on the right, and not at all, with its mask."""
    embeddings: Any = model.module.get_input_embeddings()
    vocabulary = embeddings.weight.shape[0]
    ids = torch.randint(vocabulary, (1, TOKENS), generator=torch.Generator().manual_seed(SEED))
    mask = torch.ones(3, TOKENS, dtype=torch.long)
    mask[0, :PADDED] = 0
    mask[1, TOKENS - PADDED :] = 0
    return ids, ids.repeat(3, 1), mask


def _trials(model: Model, ids: Tensor, mask: Tensor | None) -> list[list[_Trial]]:
    """For each item of the batch, the results of its attention calls with the model's own kernel and eager weights."""
    layers = Layers(model.module)
    layers.start()
    trials: list[list[_Trial]] = [[] for _ in ids]
    own: list[list[Float[Tensor, "heads queries keys"] | None]] = [[] for _ in ids]

    def remember(call: Call) -> None:
        for item in range(len(ids)):
            own[item].append(_own_weights(call, item))

    with _eager(model.module):
        forward(model, ids, remember, mask)

    def look(call: Call) -> None:
        entry = layers.entry(call, layers.number(call.module))
        answer = call.kernel_output()[0] if isinstance(call, AttentionCall) and call.kernel_function else None
        for item in range(len(ids)):
            theirs = own[item][len(trials[item])] if len(trials[item]) < len(own[item]) else None
            trials[item].append(_trial(call.only(item), entry, theirs, None if answer is None else answer[item]))

    forward(model, ids, look, mask)
    return trials


@contextmanager
def _eager(module: Any) -> Iterator[None]:
    """Temporarily use the model's eager attention, which returns its weights."""
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(before)


def _own_weights(call: Call, item: int) -> Float[Tensor, "heads queries keys"] | None:
    """The weights that the model itself computed in a call."""
    if isinstance(call, LogitsCall):
        return call.weights[item].double()
    if not isinstance(call, AttentionCall) or call.kernel_function is None:
        return None
    weights = call.kernel_output()[1]
    return None if weights is None else weights[item].double()


def _trial(call: Call, entry: dict[str, Any], own: Tensor | None, answer: Tensor | None) -> _Trial:
    rows = unpadded(call)
    weights, visible = _rebuilt_weights(call, rows), call.visible(rows)
    values = call.values().double()
    features = set()
    if isinstance(call, AttentionCall):
        names = {"softcap": "softcap", "position_bias": "position bias", "s_aux": "sinks"}
        features = {name for option, name in names.items() if call.options.get(option) is not None}
    later = visible & (torch.arange(call.keys) > torch.tensor(rows)[:, None])
    weight_error = output_error = None
    if own is not None and own.shape[-1] >= call.keys:
        theirs = own[:, rows, : call.keys]
        if call.sinks is not None and float((theirs.sum(-1) - 1).abs().max()) < TOLERANCE[torch.float32]:
            weights_shown = weights / weights.sum(-1, keepdim=True)  # some return them with the sink
        else:
            weights_shown = weights
        weight_error = float((weights_shown - theirs).abs().max())
    if answer is not None:
        rebuilt = weights @ values.repeat_interleave(call.heads // len(values), 0)
        theirs = answer.double().transpose(0, 1)[:, rows]
        largest = float(theirs.abs().max())
        output_error = float((rebuilt - theirs).abs().max()) / (largest or 1)  # a model of zeros has outputs of zero
    return _Trial(
        entry["module"], entry["kind"], call.heads, len(values), frozenset(features), isinstance(call, LogitsCall),
        not bool(later.any()), rows, weight_error, output_error,
    )  # fmt: skip


def _rebuilt_weights(call: Call, rows: list[int]) -> Float[Tensor, "heads rows keys"]:
    """A plain softmax of the captured logits; a sink is an extra column."""
    logits = call.logits(rows).masked_fill(~call.visible(rows), -torch.inf)
    if call.sinks is not None:
        logits = torch.cat([logits, call.sinks[:, None, None].expand(-1, len(rows), 1)], -1)
    return torch.softmax(logits, -1)[..., : call.keys]


def _seen(model: Model, trials: list[list[_Trial]]) -> list[Check]:
    """How attention is observed, and its properties."""
    calls = trials[0]
    kernel = model.module.config._attn_implementation
    if any(call.written_out for call in calls):
        route = "written out in the model file, read from its softmax"
    else:
        route = f"transformers' attention interface, kernel {kernel!r}"
    layers = getattr(model.module.config.get_text_config(), "num_hidden_layers", len(calls))
    heads = sorted({call.heads for call in calls})
    groups = sorted({call.groups for call in calls})
    kinds = [f"{sum(call.kind == kind for call in calls)} {kind}" for kind in ("self", "cross")]
    features = sorted(set().union(*(call.features for call in calls)))
    about = f"{' and '.join(kind for kind in kinds if kind[0] != '0')} attention calls in {layers} layers, "
    about += f"{_listed(heads)} heads, {_listed(groups)} of keys and values"
    window = getattr(model.module.config.get_text_config(), "sliding_window", None)
    features += [f"a sliding window of {window:,} in some layers"] if window else []
    says, shows = model.causal, all(call.causal for call in calls if call.kind == "self")
    direction = "causal" if shows else "sees later tokens"
    return [
        Check("attention", "pass", route),
        Check("layers", "note", about),
        Check("logits", "note", ", ".join(features) or "no sinks, softcap, bias or window"),
        Check("direction", "fail" if says and not shows else "pass", direction),
    ]


def _listed(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _parity(
    name: str, model: Model, trials: list[list[_Trial]], ids: Tensor, mask: Tensor | None, kept: list[list[int]]
) -> list[Check]:
    """Whether rebuilt weights are the model's own, and the rows of self-attention those that are not padding."""
    tolerance = TOLERANCE.get(next(model.module.parameters()).dtype, TOLERANCE[torch.float16])
    calls = [call for item in trials for call in item]
    by_weights = [call.weight_error for call in calls if call.weight_error is not None]
    by_outputs = [call.output_error for call in calls if call.output_error is not None]
    parts = []
    if by_weights:
        parts.append(f"weights within {max(by_weights):.1e} of eager attention's")
    if by_outputs:
        parts.append(f"outputs within {max(by_outputs):.1e} of the kernel's")
    good = all(error <= tolerance for error in by_weights) and all(error <= 10 * tolerance for error in by_outputs)
    decoder = model.module.config.is_encoder_decoder
    wrong = [
        (item, call.module)
        for item, calls_of_item in enumerate(trials)
        for call in calls_of_item
        if call.kind == "self" and call.rows != kept[item] and not (decoder and call.causal)
    ]
    if wrong:
        parts.append(f"rows of padding are not recognized in {wrong[0][1]}")
    elif mask is not None:
        parts.append("rows of padding left out")
    if not (by_weights or by_outputs):
        parts.append("not compared: the model shows neither its weights nor what its kernel returns")
    compared: Verdict = "pass" if by_weights or by_outputs else "note"
    return [Check(name, compared if good and not wrong else "fail", "; ".join(parts))]


def _effects(model: Model, ids: Tensor) -> Check:
    """Whether what the heads of each layer add sums to what leaves the output projection, and how it gets there."""
    errors: list[float] = []
    ways: set[str] = set()
    reasons: list[str] = []
    body, rows = model.module.base_model, range(TOKENS)
    with closing(EffectSource(body)) as source, closing(VectorSource(body, "hidden")) as hidden:

        def look(call: Call) -> None:
            def done(effects: Effects) -> None:
                values = call.values().double()
                context = _rebuilt_weights(call, list(rows)) @ values.repeat_interleave(call.heads // len(values), 0)
                try:
                    found = effects.rows(call, rows, context, hidden.vectors(call)[0].double())
                except ModelError as error:
                    reasons.append(str(error))
                    return
                errors.append(found.error)
                if found.factor is not None:
                    ways.add("a gate" if found.gated else "a norm of each head")
                if bool((found.scale != 1).any()):
                    ways.add("a norm of their sum")

            source.follow(call, done)

        forward(model, ids, look)
    if reasons or not errors:
        return Check("effects", "note", f"not measured: {reasons[0] if reasons else 'no attention was followed'}")
    through = f", through {' and '.join(sorted(ways))}" if ways else ""
    return Check("effects", "pass", f"heads sum to their layer within {max(errors):.1e}{through}")


def _same_output(model: Model, ids: Tensor, mask: Tensor) -> Check:
    """Whether the model's output is the same, bit for bit, while it is observed."""
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.module.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    body = model.module.base_model
    with torch.no_grad():
        alone = body(**inputs)[0]
        with observed(body, lambda call: None, ((len(ids), None),), frozenset({ids.shape[1]})):
            watched = body(**inputs)[0]
    same = torch.equal(alone, watched)
    return Check(
        "output", "pass" if same else "fail", "bit-identical while observed" if same else "changes while observed"
    )


def _memory(model: Model, trials: list[list[_Trial]], length: int) -> Check:
    """Memory that a scan of one window needs in addition to the model."""
    weights = sum(p.numel() * p.element_size() for p in model.module.parameters())
    config = model.module.config.get_text_config()
    width = getattr(config, "hidden_size", 0) or 0
    layer = length * width * 4 * 8  # queries, keys, values and the layer's input, at most float64
    return Check(
        "memory",
        "note",
        f"{_bytes(weights)} of weights; at {length:,} tokens {_bytes(layer)} for one layer's vectors and at most "
        f"{_bytes(DEFAULT_MEMORY)} for measuring ({parameter('memory_budget')}), in addition to the forward pass",
    )


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
