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
from attnscope.normalizers._base import Facts as Facts
from attnscope.normalizers._base import MappedNormalizer as MappedNormalizer
from attnscope.normalizers._base import Normalizer as Normalizer
from attnscope.normalizers._base import RowMap as RowMap
from attnscope.normalizers._base import get as get
from attnscope.normalizers._base import names as names
from attnscope.normalizers._base import register as register
from attnscope.normalizers.composed import AdaptiveTemperature as AdaptiveTemperature
from attnscope.normalizers.composed import FNormalizer as FNormalizer
from attnscope.normalizers.composed import SelfAdjustRaw as SelfAdjustRaw
from attnscope.normalizers.composed import SelfAdjustScaled as SelfAdjustScaled
from attnscope.normalizers.composed import adaptive_temperature as adaptive_temperature
from attnscope.normalizers.composed import f_normalizer as f_normalizer
from attnscope.normalizers.composed import sa_softmax as sa_softmax
from attnscope.normalizers.modules import LearnedASEntmax as LearnedASEntmax
from attnscope.normalizers.modules import LearnedEntmax as LearnedEntmax
from attnscope.normalizers.modules import LearnedLipmax as LearnedLipmax
from attnscope.normalizers.modules import LearnedLipmix as LearnedLipmix
from attnscope.normalizers.modules import LearnedPowerSoftmax as LearnedPowerSoftmax
from attnscope.normalizers.modules import LearnedSink as LearnedSink
from attnscope.normalizers.modules import LearnedSSMax as LearnedSSMax
from attnscope.normalizers.softmax import LogN as LogN
from attnscope.normalizers.softmax import PowerSoftmax as PowerSoftmax
from attnscope.normalizers.softmax import Sigmoid as Sigmoid
from attnscope.normalizers.softmax import SinkSoftmax as SinkSoftmax
from attnscope.normalizers.softmax import Softmax as Softmax
from attnscope.normalizers.softmax import Softmax1 as Softmax1
from attnscope.normalizers.softmax import SSMax as SSMax
from attnscope.normalizers.softmax import logn as logn
from attnscope.normalizers.softmax import power_softmax as power_softmax
from attnscope.normalizers.softmax import sigmoid as sigmoid
from attnscope.normalizers.softmax import sink_softmax as sink_softmax
from attnscope.normalizers.softmax import softmax as softmax
from attnscope.normalizers.softmax import softmax1 as softmax1
from attnscope.normalizers.softmax import ssmax as ssmax
from attnscope.normalizers.sparse import ASEntmax as ASEntmax
from attnscope.normalizers.sparse import Entmax as Entmax
from attnscope.normalizers.sparse import Entmax15 as Entmax15
from attnscope.normalizers.sparse import Lipmax as Lipmax
from attnscope.normalizers.sparse import Lipmix as Lipmix
from attnscope.normalizers.sparse import Sparsemax as Sparsemax
from attnscope.normalizers.sparse import TopK as TopK
from attnscope.normalizers.sparse import asentmax as asentmax
from attnscope.normalizers.sparse import entmax as entmax
from attnscope.normalizers.sparse import entmax15 as entmax15
from attnscope.normalizers.sparse import lipmax as lipmax
from attnscope.normalizers.sparse import lipmix as lipmix
from attnscope.normalizers.sparse import sparsemax as sparsemax
from attnscope.normalizers.sparse import topk as topk
from attnscope.normalizers.specs import Tempered as Tempered
from attnscope.normalizers.specs import parse as parse

_FILES = f"{__name__}."
_NAMES = {name: __name__ for name, value in globals().items() if getattr(value, "__module__", "").startswith(_FILES)}

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
