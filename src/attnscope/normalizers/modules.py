"""Normalizers with learnable parameters, as torch modules.

All take logits of shape (..., heads, query, key) and a mask that broadcasts against them, and
have one parameter value per head; `normalizer` is the `Normalizer` with the present values.
Parameters with a limited range are reparametrized: alpha = 1 + sigmoid(a), kappa = softplus(k).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnscope.errors import InputError
from attnscope.normalizers._arguments import check_number, check_whole
from attnscope.normalizers._base import Normalizer
from attnscope.normalizers.softmax import PowerSoftmax, SinkSoftmax, SSMax
from attnscope.normalizers.sparse import ASEntmax, Entmax, Lipmax, Lipmix

_GATE_SPEED = 8  # Adam moves a parameter by about its learning rate at each step, too little for a gate


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))


def _inverse_sigmoid(value: float) -> float:
    return math.log(value / (1 - value))


def _per_head(heads: int, value: float) -> nn.Parameter:
    """A parameter with one value per head, all initialized to `value`."""
    check_whole("heads", heads, least=1)
    check_number("the initial value", value)
    return nn.Parameter(torch.full((heads,), float(value)))


class _LearnedNormalizer(nn.Module):
    """A module that applies its `normalizer`."""

    @property
    def normalizer(self) -> Normalizer:
        """The normalizer with the present parameters, for logits (..., heads, query, key)."""
        raise NotImplementedError

    def forward(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """Weights of the logits (..., heads, query, key)."""
        return self.normalizer.weights(logits, visible)


class LearnedSSMax(_LearnedNormalizer):
    """softmax((s ln n + b) z) with s, and b if given, learned per head: see `SSMax`.

    >>> module = LearnedSSMax(heads=2)
    >>> module(torch.zeros(2, 3, 3)).shape  # logits (..., heads, queries, keys)
    torch.Size([2, 3, 3])
    >>> [name for name, _ in module.named_parameters()]
    ['s']
    """

    def __init__(self, heads: int, s: float = 0.43, b: float | None = None) -> None:
        super().__init__()
        self.s = _per_head(heads, s)
        self.b = None if b is None else _per_head(heads, b)

    @property
    def normalizer(self) -> SSMax:
        return SSMax(self.s[:, None], 0.0 if self.b is None else self.b[:, None])


class LearnedPowerSoftmax(_LearnedNormalizer):
    """softmax(kappa n^gamma z) with kappa and gamma learned per head: see `PowerSoftmax`.

    >>> [name for name, _ in LearnedPowerSoftmax(heads=2).named_parameters()]
    ['kappa', 'gamma']
    """

    def __init__(self, heads: int, kappa: float = 1.0, gamma: float = 0.1) -> None:
        super().__init__()
        self.kappa = _per_head(heads, kappa)
        self.gamma = _per_head(heads, gamma)

    @property
    def normalizer(self) -> PowerSoftmax:
        return PowerSoftmax(self.kappa[:, None], self.gamma[:, None])


class LearnedSink(_LearnedNormalizer):
    """softmax([z, sink]) without its last weight, one sink learned per head: see `SinkSoftmax`.

    >>> [name for name, _ in LearnedSink(heads=2).named_parameters()]
    ['sink']
    """

    def __init__(self, heads: int, sink: float = 0.0) -> None:
        super().__init__()
        self.sink = _per_head(heads, sink)

    @property
    def normalizer(self) -> SinkSoftmax:
        return SinkSoftmax(self.sink[:, None])


class LearnedEntmax(_LearnedNormalizer):
    """entmax with alpha = 1 + sigmoid(a) learned per head (Correia et al. 2019): see `Entmax`.

    >>> [name for name, _ in LearnedEntmax(heads=2).named_parameters()]
    ['raw_alpha']
    """

    def __init__(self, heads: int, alpha: float = 1.5) -> None:
        super().__init__()
        if not 1 < alpha < 2:
            raise InputError(f"the initial alpha must be strictly between 1 and 2, received {alpha}")
        self.raw_alpha = _per_head(heads, _inverse_sigmoid(alpha - 1))

    @property
    def alpha(self) -> Tensor:
        """The alpha of each head."""
        return 1 + self.raw_alpha.sigmoid()

    @property
    def normalizer(self) -> Entmax:
        return Entmax(self.alpha[:, None])


class LearnedASEntmax(_LearnedNormalizer):
    """entmax_alpha((delta + beta (ln n)^gamma) z), beta and gamma learned: see `ASEntmax`.

    >>> [name for name, _ in LearnedASEntmax(heads=2).named_parameters()]
    ['free']

    With `width`, the size of the layer's input, each query's beta = softplus(w_beta . x) and
    gamma = 2 tanh(w_gamma . x) come from its input x; without it each head has free
    parameters in place of the products. delta is 1.
    """

    def __init__(self, heads: int, width: int | None = None, alpha: float = 1.5) -> None:
        super().__init__()
        check_whole("heads", heads, least=1)
        check_number("alpha", alpha, low=1.0, high=2.0)
        self.alpha = alpha
        self.heads = heads
        self.projection = None if width is None else nn.Linear(width, 2 * heads, bias=False)
        self.free = None if width is not None else nn.Parameter(torch.zeros(2, heads))

    @property
    def normalizer(self) -> ASEntmax:
        if self.free is None:
            raise InputError("this module was made with `width`: pass the layer's input as `hidden`")
        return self._with(self.free[:, :, None])

    def _with(self, raw: Tensor) -> ASEntmax:
        return ASEntmax(self.alpha, functional.softplus(raw[0]), 2 * raw[1].tanh())

    def forward(self, logits: Tensor, visible: Tensor | None = None, hidden: Tensor | None = None) -> Tensor:
        """Weights of the logits (..., heads, query, key); `hidden` is (..., query, width)."""
        if self.projection is None or hidden is None:
            return self.normalizer.weights(logits, visible)
        raw = self.projection(hidden).unflatten(-1, (2, self.heads))  # (..., query, 2, heads)
        return self._with(raw.movedim(-2, 0).mT).weights(logits, visible)  # (2, ..., heads, query)


class LearnedLipmax(_LearnedNormalizer):
    """entmax_alpha(theta_n z) with kappa learned per head, theta_n <= K: see `Lipmax`.

    >>> [name for name, _ in LearnedLipmax(heads=2).named_parameters()]
    ['raw_kappa']

    The bound K is on the derivative in the logits; it bounds that in queries and keys only when their
    size is fixed. `logits(query, key)` gives such logits: the cosine of each query and key.
    """

    def __init__(self, heads: int, kappa: float = 0.25, cap: float = 2.0, alpha: float = 2.0) -> None:
        super().__init__()
        check_number("kappa", kappa, above=0.0)
        check_number("cap", cap, above=0.0)
        check_number("alpha", alpha, low=1.5, high=2.0)
        self.raw_kappa = _per_head(heads, _inverse_softplus(kappa))
        self.cap = cap
        self.alpha = alpha

    @property
    def kappa(self) -> Tensor:
        """The kappa of each head: how its scale grows with ln n."""
        return functional.softplus(self.raw_kappa)

    @staticmethod
    def logits(query: Tensor, key: Tensor) -> Tensor:
        """Cosines of queries (..., query, size) and keys (..., key, size): (..., query, key) in [-1, 1]."""
        return functional.normalize(query, dim=-1) @ functional.normalize(key, dim=-1).mT

    @property
    def normalizer(self) -> Lipmax:
        return Lipmax(self.alpha, self.kappa[:, None], self.cap)


class LearnedLipmix(_LearnedNormalizer):
    """(1 - g) entmax_alpha(theta_n z) + g / n with kappa, gamma >= 0 and g learned per head: see `Lipmix`.

    >>> [name for name, _ in LearnedLipmix(heads=2).named_parameters()]
    ['raw_kappa', 'raw_gamma', 'gate_eighth']

    It starts near the mean of all keys: a head that selects closes its gate, but one that averages would not open
    it, because at the lengths of its training a sparse part with small logits averages as well (docs/recall.md).
    The parameter of the gate is an eighth of its logit, so that it closes within a few hundred steps of Adam.
    As for `LearnedLipmax`, the bound K means something only if the size of the logits is fixed.
    """

    def __init__(
        self,
        heads: int,
        kappa: float = 0.5,
        gamma: float = 0.15,
        gate: float = 0.9,
        cap: float = 2.0,
        alpha: float = 2.0,
    ) -> None:
        super().__init__()
        check_number("kappa", kappa, above=0.0)
        check_number("gamma", gamma, above=0.0)
        check_number("cap", cap, above=0.0)
        check_number("alpha", alpha, low=1.5, high=2.0)
        if not 0 < gate < 1:
            raise InputError(f"the initial gate must be strictly between 0 and 1, received {gate}")
        self.raw_kappa = _per_head(heads, _inverse_softplus(kappa))
        self.raw_gamma = _per_head(heads, _inverse_softplus(gamma))
        self.gate_eighth = _per_head(heads, _inverse_sigmoid(gate) / _GATE_SPEED)
        self.cap, self.alpha = cap, alpha

    @property
    def gate(self) -> Tensor:
        """The gate of each head."""
        return (_GATE_SPEED * self.gate_eighth).sigmoid()

    @property
    def normalizer(self) -> Lipmix:
        kappa, gamma = functional.softplus(self.raw_kappa), functional.softplus(self.raw_gamma)
        return Lipmix(self.alpha, kappa[:, None], gamma[:, None], self.cap, self.gate[:, None])
