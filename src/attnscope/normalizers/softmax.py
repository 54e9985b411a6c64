"""Softmax, and softmax with a scale that depends on the length of the row.

| name | weights | scale c |
|---|---|---|
| softmax | softmax(z / T) | 1 / T |
| ssmax | softmax((s ln n + b) z) | s ln n + b |
| power_softmax | softmax(kappa n^gamma z) | kappa n^gamma |
| logn | softmax(z max(1, ln n / ln n_train)) | max(1, ln n / ln n_train) |

n is the number of visible keys. For all of them the Jacobian norm is c lambda_max(diag(p) - p p^T),
at most c h(p_max) <= c / 2 (docs/theory.md, "Gradients").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attnscope.normalizers import _checks
from attnscope.normalizers._base import Facts, MappedNormalizer, RowMap, function_of, register
from attnscope.normalizers._rows import column


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
        _checks.temperature(self.temperature)

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
        _checks.number("s", self.s)
        _checks.number("b", self.b)

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
        _checks.number("kappa", self.kappa)
        _checks.number("gamma", self.gamma)

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
        _checks.whole("n_train", self.n_train, least=2)  # ln n_train divides

    def row_map(self, n: Tensor) -> RowMap:
        """Softmax at scale max(1, ln n / ln n_train)."""
        return RowMap("softmax", scale=(n.log() / math.log(self.n_train)).clamp(min=1.0))


logn = function_of(LogN)
