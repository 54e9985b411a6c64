"""attnscope: measure how much an attention head can still tell apart.

    >>> import attnscope
    >>> result = attnscope.scan(length=64, progress=False)  # the embedded sample model and text
    >>> result.topn.columns[:6]
    ['window', 'layer', 'head', 'position', 'length', 'normalizer']

| function | gives |
|---|---|
| `scan` | `ScanResult`: every head of a model measured on a text |
| `diagnose` | `Diagnosis`: every head labeled by the simplest rule that gives nearly the same output |
| `compare` | `Comparison`: other normalizers in a model, and what they change |
| `horizon` | `Horizon`: how far every head still selects at longer inputs, predicted from short windows |
| `reproduce` | `Reproduction`: the paper's experiments on a model |
| `audit` | `AuditReport`: the paper's claims, tested by counterexample search |
| `swap` | the model with another normalizer |
| `Monitor` | every head of a model, measured while it trains |
| `load_model` | a model and its tokenizer, ready to scan |
| `load_run` | a result that was saved |

Every result has a short `repr`, an output for notebooks, `.summary()`, `.plot`, `.show()` and `.save(folder)`
(docs/python.md).

Requirement: importing this module loads neither torch nor transformers. The public names below, and the rooms
(`capture`, `normalizers`, `theory`, ...), are resolved on first use.
"""

from __future__ import annotations

from pkgutil import iter_modules
from typing import TYPE_CHECKING

from attnscope._process import HOOKS, keep_old_names, lazy  # it also remembers which process imported the package
from attnscope.errors import AttnscopeError, InputError, ModelError, OutputError

if TYPE_CHECKING:
    from attnscope import (
        capture as capture,
        doctor as doctor,
        monitor as monitor,
        normalizers as normalizers,
        progress as progress,
        swapping as swapping,
        theory as theory,
    )
    from attnscope.capture.models import load_model as load_model
    from attnscope.diagnosis.result import Diagnosis as Diagnosis
    from attnscope.diagnosis.running import diagnose as diagnose
    from attnscope.diagnosis.states import Thresholds as Thresholds
    from attnscope.monitor.monitor import Monitor as Monitor
    from attnscope.monitor.training_run import TrainingRun as TrainingRun
    from attnscope.scanning import ScanResult as ScanResult, scan as scan
    from attnscope.store.kinds import load_run as load_run
    from attnscope.studies.audit import AuditReport as AuditReport, audit as audit
    from attnscope.studies.compare.comparing import Comparison as Comparison, compare as compare
    from attnscope.studies.horizon.predicting import horizon as horizon
    from attnscope.studies.horizon.result import Horizon as Horizon
    from attnscope.studies.paper.reproduction import Reproduction as Reproduction, reproduce as reproduce
    from attnscope.swapping import swap as swap

__version__ = "0.2.0"

_LAZY = {
    "AuditReport": "attnscope.studies.audit",
    "Comparison": "attnscope.studies.compare.comparing",
    "Diagnosis": "attnscope.diagnosis.result",
    "Horizon": "attnscope.studies.horizon.result",
    "Monitor": "attnscope.monitor.monitor",
    "Reproduction": "attnscope.studies.paper.reproduction",
    "ScanResult": "attnscope.scanning",
    "Thresholds": "attnscope.diagnosis.states",
    "TrainingRun": "attnscope.monitor.training_run",
    "audit": "attnscope.studies.audit",
    "compare": "attnscope.studies.compare.comparing",
    "diagnose": "attnscope.diagnosis.running",
    "horizon": "attnscope.studies.horizon.predicting",
    "load_model": "attnscope.capture.models",
    "load_run": "attnscope.store.kinds",
    "reproduce": "attnscope.studies.paper.reproduction",
    "scan": "attnscope.scanning",
    "swap": "attnscope.swapping",
}

__all__ = [
    "AttnscopeError",
    "AuditReport",
    "Comparison",
    "Diagnosis",
    "Horizon",
    "InputError",
    "ModelError",
    "Monitor",
    "OutputError",
    "Reproduction",
    "ScanResult",
    "Thresholds",
    "TrainingRun",
    "__version__",
    "audit",
    "capture",
    "compare",
    "diagnose",
    "doctor",
    "horizon",
    "load_model",
    "load_run",
    "monitor",
    "normalizers",
    "progress",
    "reproduce",
    "scan",
    "swap",
    "swapping",
    "theory",
]

# A study is a folder that can be deleted, and its names go with it.
_STUDIES = {f"{__name__}.studies.{found.name}" for found in iter_modules([f"{__path__[0]}/studies"])}
for _name, _module in list(_LAZY.items()):
    if ".studies." in _module and ".".join(_module.split(".")[:3]) not in _STUDIES:
        del _LAZY[_name]
        __all__.remove(_name)

# Modules that docs of 0.2 named; these names go with 0.4.
keep_old_names(
    __name__,
    {
        "experiments": {
            "reproduce": "attnscope.studies.paper.reproduction",
            "Reproduction": "attnscope.studies.paper.reproduction",
            "Comparison": "attnscope.studies.compare.comparing",
        },
        "experiments.compare": {"*": "attnscope.studies.compare.comparing"},
        "experiments.budget": {"*": "attnscope.studies.budget"},
        "experiments.budget.running": {"*": "attnscope.studies.budget.running"},
        "experiments.guidelines": {"*": "attnscope.studies.compare.guidelines"},
        "experiments.recall": {"*": "attnscope.studies.recall"},
        "monitor.readings": {"*": "attnscope.monitor.training_run"},
        "tables": {
            "*": "attnscope.store.tables",
            "comparable": "attnscope.studies.compare.calibration",
            "named": "attnscope.studies.compare.calibration",
        },
        "theory.audit": {"*": "attnscope.studies.audit"},
        "theory.heads": {"*": "attnscope.theory.geometry"},
        "theory.sampling": {"*": "attnscope.theory.expectation"},
        "theory.two_logits": {"*": "attnscope.theory.gradient"},
        "theory.spaces": {"*": "attnscope.studies.audit"},
    },
)

HOOKS["restore a swapped model"] = "attnscope.swapping:restore"  # `capture` loads it, `swapping` is above

__getattr__, _ = lazy(__name__, __path__, _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
