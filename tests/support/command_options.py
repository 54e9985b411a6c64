"""Options of the command line are parameters of a Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attnscope.measure.settings import memory_size
from attnscope.options import arguments


def assert_parameters(function: Callable[..., Any], *options: Any) -> None:
    """The fields of options are parameters of the function, with the same defaults."""
    parameters = inspect.signature(function).parameters
    for name, value in arguments(*options).items():
        assert name in parameters, name
        assert _in_bytes(value) == _in_bytes(parameters[name].default), name


def _in_bytes(value: Any) -> Any:
    return memory_size(value) if value == "256MB" else value
