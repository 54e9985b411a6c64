"""Normalizers with a sink: softmax1, sink_softmax and sigmoid.

In all three, keys compete with an extra logit, the sink, whose weight is dropped:

| name | weights | sink |
|---|---|---|
| softmax1 | exp(z) / (1 + sum exp(z)) | 0 |
| sink_softmax | exp(z) / (exp(sink) + sum exp(z)) | learned for each head |
| sigmoid | exp(z_i) / (n + exp(z_i)) | ln n, for each key separately |

The first two are softmax over one more key, so that their Jacobian is a principal block of
softmax's, with norm at most 1/2. The sigmoid's is diagonal, at most 1/4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attnscope.normalizers import _checks
from attnscope.normalizers._base import Facts, MappedNormalizer, RowMap, function_of, register
from attnscope.normalizers._rows import column

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
        _checks.number("sink", self.sink, infinite=True)

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
            _checks.number("bias", self.bias)
            object.__setattr__(self, "facts", replace(_INDEPENDENT, length_aware=False))

    def row_map(self, n: Tensor) -> RowMap:
        """Sigmoid of each key against a sink of ln n, or of -bias."""
        return RowMap("sigmoid", sink=n.log() if self.bias is None else -column(self.bias, n))


sigmoid = function_of(Sigmoid)
