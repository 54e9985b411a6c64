"""Modules that docs of 0.2 named can be imported by their old names, with a warning that says where they are now."""

from __future__ import annotations

import importlib

import pytest

import attnscope

OLD = {
    "attnscope.experiments.reproduce": attnscope.reproduce,
    "attnscope.experiments.Reproduction": attnscope.Reproduction,
    "attnscope.experiments.Comparison": attnscope.Comparison,
    "attnscope.experiments.compare.compare": attnscope.compare,
    "attnscope.experiments.budget.running.budget": None,
    "attnscope.experiments.guidelines.Guidelines": None,
    "attnscope.monitor.readings.Symptom": None,
    "attnscope.tables.within_support": None,
    "attnscope.theory.audit.audit": attnscope.audit,
    "attnscope.theory.audit.Claim": None,
    "attnscope.theory.heads.coverage_range": attnscope.theory.coverage_range,
    "attnscope.theory.sampling.Estimate": attnscope.theory.Estimate,
    "attnscope.theory.two_logits.two_logit_rows": attnscope.theory.two_logit_rows,
    "attnscope.theory.spaces.TOP_SETS": None,
}


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_warns_and_gives_what_moved(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.warns(DeprecationWarning, match="has moved: import it from attnscope"):
        found = getattr(importlib.import_module(module), attribute)
    assert found is not None
    assert OLD[name] is None or found is OLD[name]


def test_an_old_module_is_an_attribute_of_its_package() -> None:
    with pytest.warns(DeprecationWarning, match="attnscope.store.tables"):
        assert callable(attnscope.tables.within_support)


def test_what_never_was_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute .nothing."):
        _ = attnscope.tables.nothing
