"""Options as dataclasses, and commands that are found by looking."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from command_options import assert_parameters

import attnscope
from attnscope.cli.app import GROUPS, app
from attnscope.options import Loading, Spreading, Workers
from attnscope.scanning.options import ScanOptions
from attnscope.store.kinds import Verb, kinds

VERBS = [verb for kind in kinds() for verb in kind.verbs]


def test_options_of_a_scan_are_parameters_with_the_same_defaults() -> None:
    assert_parameters(attnscope.scan, ScanOptions(), Spreading(), Workers())
    assert_parameters(attnscope.load_model, Loading(), Spreading())


def test_options_in_commas_are_lists() -> None:
    words = ["scan", "--lengths", "16,48", "--temperature=0.5,2", "--normalizer", "softmax,topk:k=8", "--rows", "7"]
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    options = bound.kwargs["options"]
    assert (options.lengths, options.temperatures) == ((16, 48), (0.5, 2.0))
    assert (options.normalizers, options.rows) == (("softmax", "topk:k=8"), "7")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_of_a_study_is_a_command_in_one_of_the_groups(verb: Verb) -> None:
    assert list(app[verb.name].group) == [GROUPS[verb.group]]
    assert verb.function.split(":")[0].endswith(".verb")


WITHOUT = """
import json, pkgutil, sys
found, left_out = pkgutil.iter_modules, sys.argv[1]
pkgutil.iter_modules = lambda *given: (module for module in found(*given) if module.name != left_out)
from attnscope.cli.app import app
heavy = {"torch", "transformers", "polars", "altair", "numba"} & set(sys.modules)
print(json.dumps([sorted(app), sorted(heavy)]))
"""


@pytest.mark.parametrize("verb", VERBS[:1], ids=lambda verb: verb.name)
def test_a_study_that_is_not_there_has_no_command_and_nothing_heavy_is_imported(verb: Verb) -> None:
    study = verb.function.split(":")[0].removesuffix(".verb")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, study],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    names, heavy = json.loads(done.stdout)
    assert heavy == []
    assert verb.name not in names
    assert {"scan", "doctor", "report", "serve"} <= set(names)
