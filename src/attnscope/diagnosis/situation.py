"""What a diagnosis was made on and what could be done next: the model's limits, the text's room, the command so far."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from attnscope.diagnosis.states import Thresholds
from attnscope.measure.settings import DEFAULT_LENGTH

if TYPE_CHECKING:
    from attnscope.capture.models import Model
    from attnscope.progress import OnStep

SAMPLE_TEXT = "sample"  # the source of the embedded text


class DiagnosisWindows(NamedTuple):
    """Tokens of the windows to label heads on, and of those held out to try the labels on."""

    labeled: list[list[int]]
    held_out: list[list[int]]
    length: int  # special tokens included
    text: str = SAMPLE_TEXT  # where the text came from
    tokens: int = 0  # how many it has
    bos: bool = False


@dataclass(frozen=True)
class Situation:
    """A diagnosis as the command line would ask for it, and the room that model and text leave."""

    model: str | None  # as the command line names it; None for the embedded sample
    text: str | None
    options: tuple[str, ...]  # all others that it was made with
    length: int
    windows: int
    tokens: int
    positions: int | None  # the longest input that the model takes
    causal: bool
    unverifiable: str | None  # why its labels cannot be tested inside the model

    @property
    def room(self) -> int:
        """How many windows of this length the text has room for."""
        return self.tokens // self.length

    @property
    def dropping(self) -> str:
        """Ways to drop keys; only a model that generates text has a key cache."""
        return "top-k or sparse attention" + (", eviction from the key cache" if self.causal else "")

    def longer(self, wanted: int) -> int | None:
        """A length up to `wanted` that the model takes; None if it takes none beyond the present one."""
        length = wanted if self.positions is None else min(wanted, self.positions)
        return length if length > self.length else None

    def command(self, *more: str, length: int | None = None, text: str | None = None) -> str:
        """The command of this diagnosis with more options, or with another length or text."""
        length, text = length or self.length, text or self.text
        usual = min(DEFAULT_LENGTH, self.positions or DEFAULT_LENGTH)
        parts = ["attnscope", "scan", *([] if self.model is None else [self.model])]
        parts += [] if text is None else ["--text", text]
        parts += [] if length == usual else ["--length", str(length)]
        return shlex.join([*parts, *self.options, *more])

    def call(self, function: str, *arguments: str, text: str | None = None) -> str:
        """The same in Python; the model and the text inside the package are what the functions take by themselves."""
        text = text or (None if self.text is None else "text")
        given = [] if self.model is None else ["model"]
        if text is not None:
            given.append(text if given else f"text={text}")
        return f"attnscope.{function}({', '.join([*given, *arguments])})"


def shortest_length(thresholds: Thresholds) -> int:
    """The shortest windows whose top share has enough keys to distinguish broad heads from selective ones."""
    return math.ceil(thresholds.least_top_keys / thresholds.top_share)


def situation(model: Model, _: OnStep, chosen: DiagnosisWindows, thresholds: Thresholds) -> Situation:
    """The situation of a diagnosis of a loaded model."""
    from attnscope.diagnosis.verify import unverifiable

    source = model.source
    name = None if source is not None and source.name is None else "MODEL" if source is None else model.name
    text = {SAMPLE_TEXT: None, "standard input": "-", "the string given": "TEXT"}.get(chosen.text, chosen.text)
    if text is not None and re.fullmatch(r".* and \d+ more", text):  # several names, as `Corpus.source` counts them
        text = "TEXT"
    return Situation(
        name,
        text,
        tuple(_options(model, chosen, thresholds)),
        chosen.length,
        len(chosen.labeled),
        chosen.tokens,
        model.positions,
        model.causal,
        unverifiable(model),
    )


def _options(model: Model, chosen: DiagnosisWindows, thresholds: Thresholds) -> Iterable[str]:
    """The options of the command line that differ from its defaults."""
    source = model.source
    if source is not None:
        for name, value, usual in (
            ("--revision", source.revision, None),
            ("--device", source.device, "cpu"),
            ("--dtype", source.dtype, "float32"),
            ("--device-map", source.device_map, None),
        ):
            if value != usual:
                yield from (name, str(value))
        if source.trust_remote_code:
            yield "--trust-remote-code"
    if chosen.bos:
        yield "--bos"
    defaults = Thresholds().as_json()
    for name, limit in thresholds.as_json().items():
        if limit != defaults[name]:
            yield from ("--threshold", f"{name}={limit:g}")
