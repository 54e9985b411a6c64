"""Softmax: with a scale that depends on the length of the row, and with a sink.

| name | weights | scale c |
|---|---|---|
| softmax | softmax(z / T) | 1 / T |
| ssmax | softmax((s ln n + b) z) | s ln n + b |
| power_softmax | softmax(kappa n^gamma z) | kappa n^gamma |
| logn | softmax(z max(1, ln n / ln n_train)) | max(1, ln n / ln n_train) |

n is the number of visible keys. For all of them the Jacobian norm is c lambda_max(diag(p) - p p^T),
at most c h(p_max) <= c / 2 (docs/theory.md, "Gradients").

In the other three, keys compete with an extra logit, the sink, whose weight is dropped:

| name | weights | sink |
|---|---|---|
| softmax1 | exp(z) / (1 + sum exp(z)) | 0 |
| sink_softmax | exp(z) / (exp(sink) + sum exp(z)) | learned for each head |
| sigmoid | exp(z_i) / (n + exp(z_i)) | ln n, for each key separately |

The first two are softmax over one more key, so that their Jacobian is a principal block of
softmax's, with norm at most 1/2. The sigmoid's is diagonal, at most 1/4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attnscope.normalizers._arguments import check_number, check_temperature, check_whole, column
from attnscope.normalizers._base import Facts, MappedNormalizer, RowMap, function_of, register


@register
@dataclass(frozen=True, eq=False)
class Softmax(MappedNormalizer):
    """softmax(z / T): p_i = exp(z_i / T) / sum_j exp(z_j / T).

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> Softmax(temperature=2.0).weights(logits)
    tensor([0.4551, 0.2760, 0.1674, 0.1015])

    >>> Softmax().jacobian_norm(logits)
    tensor(0.3630)

    T = 1 on scaled logits is standard attention.

    Parameters
    ----------
    temperature
        T, a number or a tensor over rows.
    """

    temperature: Tensor | float = 1.0

    name: ClassVar[str] = "softmax"
    facts: ClassVar[Facts] = Facts()

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def row_map(self, n: Tensor) -> RowMap:
        """Softmax at scale 1 / T."""
        if not isinstance(self.temperature, Tensor) and self.temperature == 1:
            return RowMap("softmax")
        return RowMap("softmax", scale=1 / column(self.temperature, n))


softmax = function_of(Softmax)


@register
@dataclass(frozen=True, eq=False)
class SSMax(MappedNormalizer):
    """Scalable softmax, softmax((s ln n + b) z) (Nakanishi 2025, arXiv 2501.19399).

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> SSMax(s=1.0).weights(logits)
    tensor([0.7529, 0.1882, 0.0471, 0.0118])

    The paper learns s for each head and finds values about 0.43. A top gap g with s g > 1 keeps
    its weight at any length; the Jacobian norm grows with it, up to |s ln n + b| / 2.

    Parameters
    ----------
    s
        Scale of the logarithm, a number or a tensor over rows.
    b
        Constant part of the scale, a number or a tensor over rows.
    """

    s: Tensor | float = 0.43
    b: Tensor | float = 0.0

    name: ClassVar[str] = "ssmax"
    facts: ClassVar[Facts] = Facts(length_aware=True)

    def __post_init__(self) -> None:
        check_number("s", self.s)
        check_number("b", self.b)

    def row_map(self, n: Tensor) -> RowMap:
        """Softmax at scale s ln n + b."""
        return RowMap("softmax", scale=column(self.s, n) * n.log() + column(self.b, n))


ssmax = function_of(SSMax)


@register
@dataclass(frozen=True, eq=False)
class PowerSoftmax(MappedNormalizer):
    """softmax(kappa n^gamma z): softmax at a scale that is a power of the length.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> PowerSoftmax(kappa=1.0, gamma=0.5).weights(logits)
    tensor([0.8650, 0.1171, 0.0158, 0.0021])

    A control for rules with a length scale: with both parameters learned (`LearnedPowerSoftmax`) it can
    sharpen faster than any power of ln n. gamma = 0 is softmax.

    Parameters
    ----------
    kappa
        Scale at length 1, a number or a tensor over rows.
    gamma
        Power of the length, a number or a tensor over rows.
    """

    kappa: Tensor | float = 1.0
    gamma: Tensor | float = 0.1

    name: ClassVar[str] = "power_softmax"
    facts: ClassVar[Facts] = Facts(length_aware=True)

    def __post_init__(self) -> None:
        check_number("kappa", self.kappa)
        check_number("gamma", self.gamma)

    def row_map(self, n: Tensor) -> RowMap:
        """Softmax at scale kappa n^gamma."""
        return RowMap("softmax", scale=column(self.kappa, n) * n ** column(self.gamma, n))


power_softmax = function_of(PowerSoftmax)


@register
@dataclass(frozen=True, eq=False)
class LogN(MappedNormalizer):
    """softmax(z max(1, ln n / ln n_train)): the length scale of the Qwen models.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> LogN(n_train=2).weights(logits)
    tensor([0.8650, 0.1171, 0.0158, 0.0021])

    Used at inference only, beyond the length that the model was trained on; up to n_train it is
    softmax.

    Parameters
    ----------
    n_train
        The length that the model was trained on, in tokens.
    """

    n_train: int = 2048

    name: ClassVar[str] = "logn"
    facts: ClassVar[Facts] = Facts(length_aware=True)

    def __post_init__(self) -> None:
        check_whole("n_train", self.n_train, least=2)  # ln n_train divides

    def row_map(self, n: Tensor) -> RowMap:
        """Softmax at scale max(1, ln n / ln n_train)."""
        return RowMap("softmax", scale=(n.log() / math.log(self.n_train)).clamp(min=1.0))


logn = function_of(LogN)


_SUB_NORMALIZED = Facts(sums_to_one=False, shift_invariant=False)
_INDEPENDENT = Facts(sums_to_one=False, at_most_one=False, shift_invariant=False, length_aware=True)


@register
@dataclass(frozen=True, eq=False)
class Softmax1(MappedNormalizer):
    """exp(z) / (1 + sum exp(z)): softmax([z, 0]) without its last weight.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> Softmax1().weights(logits)
    tensor([0.5923, 0.2179, 0.0802, 0.0295])
    """

    name: ClassVar[str] = "softmax1"
    facts: ClassVar[Facts] = _SUB_NORMALIZED

    def row_map(self, n: Tensor) -> RowMap:
        """Softmax against a sink of logit 0."""
        return RowMap("softmax", sink=torch.zeros_like(n))


softmax1 = function_of(Softmax1)


@register
@dataclass(frozen=True, eq=False)
class SinkSoftmax(MappedNormalizer):
    """softmax([z, sink]) without its last weight, as in the gpt-oss models.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> SinkSoftmax(sink=2.0).weights(logits)
    tensor([0.3917, 0.1441, 0.0530, 0.0195])

    Parameters
    ----------
    sink
        Logit of the sink, an extra key without a value; -inf means no sink. A number or a tensor over rows.
    """

    sink: Tensor | float = 0.0

    name: ClassVar[str] = "sink_softmax"
    facts: ClassVar[Facts] = _SUB_NORMALIZED

    def __post_init__(self) -> None:
        check_number("sink", self.sink, infinite=True)

    def row_map(self, n: Tensor) -> RowMap:
        """Softmax against the sink."""
        return RowMap("softmax", sink=column(self.sink, n))


sink_softmax = function_of(SinkSoftmax)


@register
@dataclass(frozen=True, eq=False)
class Sigmoid(MappedNormalizer):
    """w_i = 1 / (1 + exp(-(z_i + bias))), bias = -ln n unless given.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> Sigmoid().weights(logits)
    tensor([0.6488, 0.4046, 0.2000, 0.0842])

    Ramapuram et al. 2024 (arXiv 2409.04431), where the bias may also be fixed for all lengths.
    Keys do not compete, and the weights need not sum to one: with logits in [-a, a] the sum
    lies between n / (1 + n e^a) and n / (1 + n e^-a).

    Parameters
    ----------
    bias
        Added to the logits. Default: -ln n.
    """

    bias: Tensor | float | None = None

    name: ClassVar[str] = "sigmoid"
    facts: ClassVar[Facts] = _INDEPENDENT

    def __post_init__(self) -> None:
        if self.bias is not None:
            check_number("bias", self.bias)
            object.__setattr__(self, "facts", replace(_INDEPENDENT, length_aware=False))

    def row_map(self, n: Tensor) -> RowMap:
        """Sigmoid of each key against a sink of ln n, or of -bias."""
        return RowMap("sigmoid", sink=n.log() if self.bias is None else -column(self.bias, n))


sigmoid = function_of(Sigmoid)
