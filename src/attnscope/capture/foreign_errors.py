"""Errors of transformers, tokenizers and their parsers on invalid models, turned into one line for the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from huggingface_hub.errors import HTTPError, StrictDataclassError  # type: ignore[attr-defined]  # of the HTTP client
from safetensors import SafetensorError

from attnscope.errors import AttnscopeError, ModelError
from attnscope.parameters import parameter

# What other packages raise on an invalid configuration or file; tokenizers also raises Exception itself.
_DAMAGED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    HTTPError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
CHECK_FILES = "check that its files are complete and belong together"
CHECK_TOKENIZER = "check the tokenizer of the model"


@contextmanager
def foreign_errors(doing: str, advice: str = CHECK_FILES, foreign: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Turn what transformers and tokenizers raise on damaged or unknown models into a one-line `ModelError`.

    `doing` completes "cannot ...". If the other package calls back into attnscope, `foreign` says which of the two was
    running: errors of attnscope itself are bugs and are not converted.
    """
    try:
        yield
    except AttnscopeError:
        raise
    except BaseException as error:
        # tokenizers raises Exception itself; its panics are not Exceptions, and their class is private.
        damaged = isinstance(error, _DAMAGED) or type(error) is Exception or type(error).__name__ == "PanicException"
        if damaged and foreign():
            raise ModelError(_message(doing, error, advice)) from error
        raise


def _message(doing: str, error: BaseException, advice: str) -> str:
    """A message of one line: what failed, and what to do."""
    first = " ".join(str(error).split()) or type(error).__name__
    short = first if len(first) <= 200 else first[:200] + "..."
    if "trust_remote_code" in first:
        return (
            f"cannot {doing}: it comes with code of its own, which attnscope does not run by default; read that "
            f"code, then use {parameter('trust_remote_code', True)}"
        )
    kind = "" if isinstance(error, OSError | ValueError | RuntimeError) else f"{type(error).__name__}: "
    return f"cannot {doing}: {kind}{short}; {advice}"
