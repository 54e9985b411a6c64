"""Texts, their tokens, and windows of them."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from attnscope.capture import corpora
from attnscope.capture.foreign_errors import CHECK_TOKENIZER, foreign_errors
from attnscope.errors import InputError, ModelError, shown
from attnscope.parameters import parameter

_SPACE = re.compile(r"\s")
_LIKE_A_FILE = re.compile(r"[^\s]{1,200}\.[A-Za-z]\w{0,4}")  # one word with a suffix
_TRIAL_CHARACTERS = tuple(2**power for power in range(4, 12))  # of a text, to try a tokenizer on
_TRIAL_SECONDS = 2.0  # of processor time; a usual tokenizer takes a thousandth of it


@dataclass(frozen=True)
class Text:
    """A text and where it came from.

    >>> from attnscope.capture import Text
    >>> Text("It was a bright cold day in April.", "a novel").digest[:8]
    'b53c86ee'
    """

    content: str
    source: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text as UTF-8."""
        return hashlib.sha256(self.content.encode()).hexdigest()


def given_text(text: str | Path | Text | None) -> Text:
    """A `Text` from an argument: a string is the text itself, a path is read, and None is the embedded sample.

    >>> given_text("a text").source
    'the string given'

    A string that names a file or a corpus is refused: its characters are hardly what should be measured.
    """
    if isinstance(text, Text):
        return text
    if text is None or isinstance(text, os.PathLike):
        return read_text(text)
    if not isinstance(text, str):
        raise InputError(f"a text is a string, a pathlib.Path or an attnscope.capture.Text; received {shown(text)}")
    if not text.strip():
        raise InputError("the string given is empty; give a text of at least one window")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the string given is no Unicode text: a lone surrogate at offset {error.start}") from None
    if _is_file(text):
        raise InputError(f"{text!r} is a file; give pathlib.Path({text!r}) for the text in it")
    name = text.removeprefix(corpora.PREFIX)
    if name in corpora.BOOKS or (name != text and not _SPACE.search(text)):
        raise InputError(f"{shown(text)} is the name of a corpus; give attnscope.capture.corpus({shown(name)})")
    if _LIKE_A_FILE.fullmatch(text):
        raise InputError(
            f"{text!r} looks like the name of a file, and there is none; a string is the text itself, "
            f"pathlib.Path({text!r}) a file"
        )
    return Text(text, "the string given")


def corpus(name: str) -> Text:
    """A book as a text to measure: downloaded once, checked, and kept.

    >>> attnscope.scan("openai-community/gpt2", attnscope.capture.corpus("war-and-peace"))  # doctest: +SKIP

    Parameters
    ----------
    name
        "war-and-peace". The command line calls it `corpus:war-and-peace`.

    Returns
    -------
    Text
        The novel without the license around it.
    """
    return Text(corpora.read_corpus(name), f"{corpora.PREFIX}{name}")


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long for a name, or not allowed in one
        return False


def read_text(source: str | Path | None) -> Text:
    """The text of a file, as the command line names it.

    >>> _ = Path("book.txt").write_text("It was a bright cold day in April.")
    >>> attnscope.capture.read_text("book.txt").source
    'book.txt'

    A book of Project Gutenberg is read without its header and footer; any other text to the byte. More than
    `corpora.LARGEST` bytes are refused: their tokens would take some 150 times as many.

    Parameters
    ----------
    source
        A file, "-" for standard input, "corpus:NAME" for a corpus, or None for the embedded sample.

    Returns
    -------
    Text
        attnscope.InputError says why a text cannot be read.
    """
    if source is None:
        return Text((resources.files("attnscope") / "sample" / "text.txt").read_text("utf-8"), "sample")
    if str(source) == "-":
        return decoded(sys.stdin.buffer.read(corpora.LARGEST + 1), "standard input")
    if str(source).startswith(corpora.PREFIX):
        return corpus(str(source).removeprefix(corpora.PREFIX))
    if not str(source):
        raise InputError(f"{parameter('text')} takes the path of a text file; received nothing")
    path = Path(source)
    try:
        with path.open("rb") as file:  # also a pipe or a device, which may have no end
            data = file.read(corpora.LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read the text {shown(str(path))}: {reason}; give the path of a text file") from None
    return decoded(data, str(path))


def decoded(data: bytes, source: str) -> Text:
    """The text in the bytes of a file; InputError if there is none."""
    if len(data) > corpora.LARGEST:
        raise InputError(
            f"{source} has more than {corpora.LARGEST >> 20} MiB; give a part of it as {parameter('text')}"
        )
    if b"\0" in data:
        raise InputError(f"{source} is not UTF-8 text (a zero byte at offset {data.index(0)}); convert it")
    try:
        content = corpora.without_license(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start}); "
            "convert it, for instance with iconv -t utf-8"
        ) from None
    if not content.strip():
        raise InputError(f"{source} is empty; give a text of at least one window")
    return Text(content, source)


def token_ids(tokenizer: Any, text: Text, characters: int | None = None) -> list[int]:
    """The tokens of a text, or of its first characters, without special tokens; there may be none."""
    with foreign_errors(f"tokenize {text.source}", CHECK_TOKENIZER):
        return list(tokenizer(text.content[:characters], add_special_tokens=False, verbose=False)["input_ids"])


def check_tokenizer(tokenizer: Any, text: Text) -> None:
    """Refuse a tokenizer whose patterns would take forever on the text, after a few of its characters."""
    for characters in _TRIAL_CHARACTERS:
        started = time.process_time()  # of all threads: the tokenizer has its own
        token_ids(tokenizer, text, characters)
        seconds = time.process_time() - started
        if seconds > _TRIAL_SECONDS:
            raise ModelError(
                f"the tokenizer takes {seconds:.1f} s for {characters} characters, so that {text.source} would not "
                "end; check the patterns in its tokenizer.json"
            )


def tokenize(tokenizer: Any, text: Text) -> list[int]:
    """The tokens of a text, without special tokens; raises if there are none or it would take forever."""
    check_tokenizer(tokenizer, text)
    tokens = token_ids(tokenizer, text)
    if not tokens:
        raise InputError(f"the tokenizer makes no tokens of {text.source}")
    return tokens
