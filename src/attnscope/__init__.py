"""attnscope: measure how much an attention head can still tell apart.

    >>> import attnscope
    >>> result = attnscope.scan()                # the embedded sample model and text
    >>> result.topn.columns[:6]
    ['window', 'layer', 'head', 'position', 'length', 'normalizer']
    >>> weights = attnscope.normalizers.sparsemax(logits)

Requirement: importing this module loads neither torch nor transformers. The public
names below, and the rooms (`capture`, `normalizers`, `theory`, ...), are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attnscope import _forks  # noqa: F401  (remembers which process imported the package)
from attnscope.errors import AttnscopeError, InputError, ModelError, OutputError

if TYPE_CHECKING:
    from attnscope import capture as capture
    from attnscope import doctor as doctor
    from attnscope import experiments as experiments
    from attnscope import normalizers as normalizers
    from attnscope import swapping as swapping
    from attnscope import theory as theory
    from attnscope.diagnosis.running import diagnose as diagnose
    from attnscope.diagnosis.thresholds import Thresholds as Thresholds
    from attnscope.scanning import ScanResult as ScanResult
    from attnscope.scanning import scan as scan
    from attnscope.swapping import swap as swap

__version__ = "0.1.0"

_LAZY = {
    "ScanResult": "attnscope.scanning",
    "Thresholds": "attnscope.diagnosis.thresholds",
    "diagnose": "attnscope.diagnosis.running",
    "scan": "attnscope.scanning",
    "swap": "attnscope.swapping",
}

_ROOMS = ("capture", "doctor", "experiments", "normalizers", "swapping", "theory")

__all__ = [
    "AttnscopeError",
    "InputError",
    "ModelError",
    "OutputError",
    "ScanResult",
    "Thresholds",
    "__version__",
    "capture",
    "diagnose",
    "doctor",
    "experiments",
    "normalizers",
    "scan",
    "swap",
    "swapping",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"attnscope.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'attnscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
