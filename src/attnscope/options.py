"""Options of the command line that several commands have, each written once with its help.

A command takes a frozen dataclass, whose docstring explains its fields, with `Parameter(name="*")`: its fields are
options of the command. They are called as the parameters of the Python function are and have the same defaults, so that
`arguments(options)` are keyword arguments for it:

    attnscope.scan(model, text, **arguments(Loading(device="cuda"), Workers(workers=2)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, Token

from attnscope.errors import InputError, shown

# Panels of --help, in this order after that of the command's own options.
CORPUS = Group("Text", sort_key=1)
DIAGNOSIS = Group("Diagnosis", sort_key=2)
WHAT_IF = Group("What if", sort_key=3)
OUTPUT = Group("Output", sort_key=4)
LOADING = Group("Loading the model", sort_key=5)
WORKERS = Group("Workers", sort_key=6)


def arguments(*options: Any) -> dict[str, Any]:
    """The fields of options as keyword arguments of a Python function."""
    return {field.name: getattr(some, field.name) for some in options for field in fields(some)}


def flag(**declared: Any) -> Parameter:
    """The declaration of an option without a value."""
    return Parameter(negative="", show_default=False, **declared)


def _whole_number(_: Any, tokens: Sequence[Token]) -> int:
    (token,) = tokens
    try:
        return int(token.value)
    except ValueError:
        raise InputError(f"{token.keyword} takes a whole number; received {shown(token.value)}") from None


def listed(each: Callable[[str], Any], what: str = "") -> Callable[[Any, Sequence[Token]], tuple[Any, ...]]:
    """A converter of values separated by commas; `what` an option takes is said where `each` raises ValueError."""

    def convert(_: Any, tokens: Sequence[Token]) -> tuple[Any, ...]:
        found: list[Any] = []
        for token in tokens:
            try:
                found += [each(part) for part in token.value.split(",")]
            except InputError:
                raise
            except ValueError:
                raise InputError(f"{token.keyword} takes {what}; received {shown(token.value)}") from None
        return tuple(found)

    return convert


def as_written(_: Any, tokens: Sequence[Token]) -> str:
    """A converter of options that take numbers and words: the function that takes them reads the text."""
    return tokens[0].value


def _folder(_: Any, tokens: Sequence[Token]) -> Path:
    (token,) = tokens
    if not token.value:
        raise InputError("--out takes a folder; received nothing")
    return Path(token.value)


def _list_of(each: Callable[[str], Any], what: str = "") -> Parameter:
    return Parameter(converter=listed(each, what), negative="", show_default=False)


# cyclopts by itself rounds 64.7 to 65.
WholeNumber = Annotated[int, Parameter(converter=_whole_number)]
WholeNumbers = Annotated[Sequence[int], _list_of(int, "whole numbers separated by commas, e.g. 1,5,20")]
Decimals = Annotated[Sequence[float], _list_of(float, "numbers separated by commas, e.g. 0.5,2")]
Words = Annotated[Sequence[str], _list_of(str)]
Names = Annotated[Sequence[str], _list_of(str.strip)]
Flag = Annotated[bool, flag()]

ModelOption = Annotated[
    str | None, Parameter(help="A hub id, a folder, a .gguf file, or nothing for the embedded sample model.")
]
_TEXT = (
    "A UTF-8 text file of up to 64 MiB (the header of a Project Gutenberg book is left out), corpus:war-and-peace "
    "(downloaded once), or - for standard input."
)
TextOption = Annotated[
    str | None, Parameter(allow_leading_hyphen=True, help=f"{_TEXT} Default: the embedded sample text.")
]
CorpusOption = Annotated[
    list[str] | None,
    Parameter(
        name="--text",
        allow_leading_hyphen=True,
        negative="",
        group=CORPUS,
        help=f"{_TEXT} Or a corpus: files by pattern (`'books/*.txt'`), .jsonl, .parquet, compressed files, a folder "
        "saved by datasets, addresses such as `s3://bucket/*.parquet`; may be given several times. Default: the "
        "embedded sample text.",
    ),
]
FieldOption = Annotated[
    str, Parameter(group=CORPUS, help="The field of .jsonl lines or column of a table that holds the text.")
]
VerboseOption = Annotated[
    bool,
    flag(name=["--verbose", "-v"], group=OUTPUT, help="Print all tables and notes, not only the most important."),
]
JsonOption = Annotated[bool, flag(group=OUTPUT, help="Print one JSON object on standard output and nothing else.")]
OutOption = Annotated[Path | None, Parameter(converter=_folder, group=OUTPUT)]


@Parameter(name="*", group=LOADING)
@dataclass(frozen=True)
class Loading:
    """How a model is loaded.

    Parameters
    ----------
    device
        Where the model runs, e.g. cpu or cuda:0.
    dtype
        Number type of the model's weights; logits are always computed in float64.
    revision
        Branch, tag or commit of a hub model.
    trust_remote_code
        Run the Python code that comes with a model. It runs with your permissions: read it first.
    """

    device: str = "cpu"
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "float32"
    revision: str | None = None
    trust_remote_code: Flag = False


@Parameter(name="*", group=LOADING)
@dataclass(frozen=True)
class Spreading(Loading):
    """How a model is loaded that may be spread over devices.

    Parameters
    ----------
    device_map
        Spread the model over devices, memory and disk, e.g. auto; needs the package accelerate.
    """

    device_map: str | None = None


@Parameter(name="*", group=WORKERS)
@dataclass(frozen=True)
class Workers:
    """Where windows are measured: in this process, or by workers of Ray.

    Parameters
    ----------
    workers
        Run on so many Ray workers, on this machine unless --ray names a cluster.
    ray
        Address of a Ray cluster, as ray.init takes it: auto, HOST:6379 or ray://HOST:10001. Needs the extra
        attnscope[ray].
    worker_cpus
        Cores, and threads, of each worker. Default: 1.
    worker_gpus
        GPUs of each worker; a fraction shares one. Default: 0.
    """

    workers: WholeNumber | None = None
    ray: str | None = None
    worker_cpus: WholeNumber | None = None
    worker_gpus: float | None = None
