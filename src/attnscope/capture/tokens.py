"""The tokens of a text or a corpus, document by document, and the windows that are chosen from them.

A window never spans two documents, unless they are packed: then they are one document, with the tokenizer's end token
after each. The tokens of a corpus are in an unnamed file, so that no corpus is too large for memory; 4 bytes each.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from attnscope.capture.documents import Corpus
from attnscope.capture.text import Text, check_tokenizer, token_ids, tokenize
from attnscope.errors import AttnscopeError, InputError, ModelError, OutputError, shown
from attnscope.parameters import parameter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnscope.capture.models import Model, ModelFacts

Choice = Literal["first", "even", "random"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
_BYTES = 4  # of a token


@dataclass(frozen=True)
class WindowChoice:
    """Which windows of a text or corpus: the first ones, some spread evenly, or some drawn at random."""

    how: Choice = "first"
    seed: int = 0
    packed: bool = False

    def __post_init__(self) -> None:
        from attnscope.planning import whole_number

        if self.how not in CHOICES:
            known = f"{', '.join(CHOICES[:-1])} or {CHOICES[-1]}"
            raise InputError(f"{parameter('choose')} takes {known}; received {shown(self.how)}")
        whole_number("seed", self.seed, 0)

    def as_json(self) -> dict[str, Any]:
        """The choice as `run.json` has it: nothing for the first windows of a text."""
        return {} if self == WindowChoice() else {"choice": asdict(self)}


def window_choice(text: Text | Corpus, how: Choice | None, seed: int, packed: bool) -> WindowChoice:
    """The choice as asked for; by default the first windows of a text, and windows spread evenly over a corpus."""
    return WindowChoice(how or ("even" if isinstance(text, Corpus) else "first"), seed, packed)


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """The tokens of all documents of a text or corpus, without special tokens.

    `read(start, stop)` gives some of them; `ends` are the numbers of tokens up to the end of each document.
    """

    source: str
    digest: str
    characters: int
    documents: int
    ends: NDArray[np.int64]
    read: Callable[[int, int], NDArray[np.int32]]

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def as_json(self) -> dict[str, Any]:
        """What `run.json` says about the text."""
        many = {} if self.documents == 1 else {"documents": self.documents}
        return {
            "source": self.source,
            "sha256": self.digest,
            "characters": self.characters,
            "tokens": len(self),
            **many,
        }

    def room(self, length: int) -> int:
        """How many windows of `length` tokens there are, none of them across two documents."""
        return int((np.diff(self.ends, prepend=0) // max(1, length)).sum())

    def starts(self, length: int, count: int, choice: WindowChoice) -> NDArray[np.int64]:
        """Where `count` windows of `length` tokens start, in the order of the text.

        Documents are cut into consecutive windows; `first`, `even` and `random` choose among those. Even windows of a
        single document are centered in equal parts of it.
        """
        lengths = np.diff(self.ends, prepend=0)
        windows = lengths // max(1, length)
        total = int(windows.sum())
        if total < count:
            raise InputError(self._too_few(length, count, total, int((windows == 0).sum())))
        if choice.how == "even" and len(lengths) == 1:
            part = len(self) / count
            return np.array([int((i + 0.5) * part - length / 2) for i in range(count)], dtype=np.int64)
        if choice.how == "first":
            chosen = np.arange(count)
        elif choice.how == "even":
            chosen = ((np.arange(count) * 2 + 1) * total) // (2 * count)
        else:
            chosen = np.sort(np.random.default_rng(choice.seed).choice(total, count, replace=False))
        up_to = np.cumsum(windows)
        document = np.searchsorted(up_to, chosen, side="right")
        within = chosen - (up_to - windows)[document]
        starts: NDArray[np.int64] = (self.ends - lengths)[document] + within * length
        return starts

    def _too_few(self, length: int, count: int, total: int, short: int) -> str:
        what = f"{count:,} windows of {length} tokens" if count > 1 else f"a window of {length} tokens"
        if self.documents == 1:
            advice = f"a length of at most {len(self)}" if count == 1 else "fewer or shorter windows"
            return f"{self.source} has {len(self)} tokens, too few for {what}; use {advice}, or a longer text"
        advice = f"{parameter('packed', True)}, which joins documents" if short else "more text"
        return (
            f"{self.source} has {len(self):,} tokens in {self.documents:,} documents, {short:,} of them shorter than a "
            f"window: room for {total:,} windows, too few for {what}; use fewer or shorter windows, or {advice}"
        )


@dataclass(frozen=True, eq=False)
class WindowTokens:
    """The tokens of chosen windows, read when they are asked for: `windows[4:8]` is an array of 4 lines."""

    text: TokenizedText
    starts: NDArray[np.int64]
    length: int
    before: tuple[int, ...] = ()  # put before each window

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, some: slice) -> NDArray[np.int32]:
        rows = [[*self.before, *self.text.read(start, start + self.length)] for start in self.starts[some].tolist()]
        return np.array(rows, dtype=np.int32)


def tokenized(
    model: Model | ModelFacts,
    text: Text | Corpus,
    choice: WindowChoice,
    folder: Path | None = None,
    enough: tuple[int, int] | None = None,
) -> TokenizedText:
    """The tokens of a text or corpus; refuses a tokenizer whose tokens the model has no embeddings for.

    Those of a corpus are kept in `folder`. With `enough`, a length and a count, no document is read after those that
    have so many windows.
    """
    if isinstance(text, Text):
        ids = np.array(tokenize(model.tokenizer, text), dtype=np.int32)
        _check_embeddings(model, int(ids.max()))
        return TokenizedText(
            text.source,
            text.digest,
            len(text.content),
            1,
            np.array([len(ids)]),
            lambda start, stop: ids[start:stop],
        )
    return _tokenized_corpus(model, text, choice.packed, folder, enough)


def _tokenized_corpus(
    model: Model | ModelFacts, corpus: Corpus, packed: bool, folder: Path | None, enough: tuple[int, int] | None
) -> TokenizedText:
    end = [model.tokenizer.eos_token_id] if packed and model.tokenizer.eos_token_id is not None else []
    ends: list[int] = []
    digest = hashlib.sha256()
    documents = characters = total = largest = windows = 0
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (closed when the tokens are no longer used)
    try:
        for document in corpus.documents():
            if documents == 0:
                check_tokenizer(model.tokenizer, document)
            ids = np.array([*token_ids(model.tokenizer, document), *end], dtype=np.int32)
            digest.update(bytes.fromhex(document.digest))
            documents += 1
            characters += len(document.content)
            if len(ids) == 0:
                continue
            largest = max(largest, int(ids.max()))
            file.write(ids.tobytes())
            total += len(ids)
            ends.append(total)
            if enough is not None:
                length, count = enough
                windows = total // length if packed else windows + len(ids) // length
                if windows >= count:
                    break
        file.flush()
        if total == 0:
            raise InputError(f"{corpus.source} has no tokens: {documents:,} documents, none with text")
        _check_embeddings(model, largest)
    except BaseException as error:
        file.close()
        if isinstance(error, OSError) and not isinstance(error, AttnscopeError):
            raise OutputError(f"cannot keep the tokens of {corpus.source}: {error.strerror or error}") from error
        raise

    def read(start: int, stop: int) -> NDArray[np.int32]:
        return np.frombuffer(os.pread(file.fileno(), (stop - start) * _BYTES, start * _BYTES), np.int32)

    borders = np.array([total] if packed else ends)
    text = TokenizedText(corpus.source, digest.hexdigest(), characters, documents, borders, read)
    weakref.finalize(text, file.close)
    return text


def _check_embeddings(model: Model | ModelFacts, largest: int) -> None:
    from attnscope.capture.windows import special_tokens

    added = [token for part in special_tokens(model.tokenizer) for token in part] if not model.causal else []
    largest = max([largest, *added, getattr(model.tokenizer, "bos_token_id", None) or 0])
    if model.embeddings is not None and largest >= model.embeddings:
        raise ModelError(
            f"the tokenizer of {model.name} gives the token {largest}, but the model has only {model.embeddings} "
            "embeddings; model and tokenizer do not belong together"
        )
