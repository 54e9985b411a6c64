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
from attnscope.normalizers._arguments import reference_only as reference_only
from attnscope.normalizers._base import (
    Facts as Facts,
    MappedNormalizer as MappedNormalizer,
    Normalizer as Normalizer,
    RowMap as RowMap,
    get as get,
    names as names,
    register as register,
)
from attnscope.normalizers.composed import (
    AdaptiveTemperature as AdaptiveTemperature,
    FNormalizer as FNormalizer,
    SelfAdjustRaw as SelfAdjustRaw,
    SelfAdjustScaled as SelfAdjustScaled,
    adaptive_temperature as adaptive_temperature,
    f_normalizer as f_normalizer,
    sa_softmax as sa_softmax,
)
from attnscope.normalizers.modules import (
    LearnedASEntmax as LearnedASEntmax,
    LearnedEntmax as LearnedEntmax,
    LearnedLipmax as LearnedLipmax,
    LearnedLipmix as LearnedLipmix,
    LearnedPowerSoftmax as LearnedPowerSoftmax,
    LearnedSink as LearnedSink,
    LearnedSSMax as LearnedSSMax,
)
from attnscope.normalizers.softmax import (
    LogN as LogN,
    PowerSoftmax as PowerSoftmax,
    Sigmoid as Sigmoid,
    SinkSoftmax as SinkSoftmax,
    Softmax as Softmax,
    Softmax1 as Softmax1,
    SSMax as SSMax,
    logn as logn,
    power_softmax as power_softmax,
    sigmoid as sigmoid,
    sink_softmax as sink_softmax,
    softmax as softmax,
    softmax1 as softmax1,
    ssmax as ssmax,
)
from attnscope.normalizers.sparse import (
    ASEntmax as ASEntmax,
    Entmax as Entmax,
    Entmax15 as Entmax15,
    Lipmax as Lipmax,
    Lipmix as Lipmix,
    Sparsemax as Sparsemax,
    TopK as TopK,
    asentmax as asentmax,
    entmax as entmax,
    entmax15 as entmax15,
    lipmax as lipmax,
    lipmix as lipmix,
    sparsemax as sparsemax,
    topk as topk,
)
from attnscope.normalizers.specs import Tempered as Tempered, parse as parse

_FILES = f"{__name__}."
_NAMES = {name: __name__ for name, value in globals().items() if getattr(value, "__module__", "").startswith(_FILES)}

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
