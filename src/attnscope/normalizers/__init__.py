"""Normalizers: maps from the logits of a row to its weights.

    >>> import torch
    >>> from attnscope.normalizers import get, sparsemax
    >>> sparsemax(torch.tensor([1.0, 0.8, -2.0]))
    tensor([0.6000, 0.4000, 0.0000])
    >>> visible = torch.tensor([True, False, True])
    >>> get("ssmax", s=0.5).weights(torch.tensor([1.0, 9.0, 0.0]), visible)
    tensor([0.5858, 0.0000, 0.4142])

Each is available as a function, as a `Normalizer` with its properties and bounds, and, where it has
learnable parameters, as a module. Requirement: nothing here imports models, measures or theory.
"""

from attnscope._process import lazy
from attnscope.normalizers._base import Facts, MappedNormalizer, Normalizer, RowMap, get, names, register
from attnscope.normalizers._rows import reference_only
from attnscope.normalizers._spec import Tempered, parse
from attnscope.normalizers.entropy import AdaptiveTemperature, adaptive_temperature
from attnscope.normalizers.mixture import Lipmix, lipmix
from attnscope.normalizers.modules import (
    LearnedASEntmax,
    LearnedEntmax,
    LearnedLipmax,
    LearnedLipmix,
    LearnedPowerSoftmax,
    LearnedSink,
    LearnedSSMax,
)
from attnscope.normalizers.positive import FNormalizer, f_normalizer
from attnscope.normalizers.self_adjust import SelfAdjustRaw, SelfAdjustScaled, sa_softmax
from attnscope.normalizers.sink import Sigmoid, SinkSoftmax, Softmax1, sigmoid, sink_softmax, softmax1
from attnscope.normalizers.softmax import LogN, PowerSoftmax, Softmax, SSMax, logn, power_softmax, softmax, ssmax
from attnscope.normalizers.sparse import (
    ASEntmax,
    Entmax,
    Entmax15,
    Lipmax,
    Sparsemax,
    TopK,
    asentmax,
    entmax,
    entmax15,
    lipmax,
    sparsemax,
    topk,
)

__all__ = [
    "ASEntmax",
    "AdaptiveTemperature",
    "Entmax",
    "Entmax15",
    "FNormalizer",
    "Facts",
    "LearnedASEntmax",
    "LearnedEntmax",
    "LearnedLipmax",
    "LearnedLipmix",
    "LearnedPowerSoftmax",
    "LearnedSSMax",
    "LearnedSink",
    "Lipmax",
    "Lipmix",
    "LogN",
    "MappedNormalizer",
    "Normalizer",
    "PowerSoftmax",
    "RowMap",
    "SSMax",
    "SelfAdjustRaw",
    "SelfAdjustScaled",
    "Sigmoid",
    "SinkSoftmax",
    "Softmax",
    "Softmax1",
    "Sparsemax",
    "Tempered",
    "TopK",
    "adaptive_temperature",
    "asentmax",
    "entmax",
    "entmax15",
    "f_normalizer",
    "get",
    "lipmax",
    "lipmix",
    "logn",
    "names",
    "parse",
    "power_softmax",
    "reference_only",
    "register",
    "sa_softmax",
    "sigmoid",
    "sink_softmax",
    "softmax",
    "softmax1",
    "sparsemax",
    "ssmax",
    "topk",
]

__getattr__, __dir__ = lazy(__name__, __path__, {})
