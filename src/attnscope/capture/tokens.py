"""The tokens of a text or a corpus, the windows chosen from them, and the text that each token stands for.

A window never spans two documents, unless they are packed: then they are one document, with the tokenizer's end token
after each. The tokens of a corpus are in an unnamed file, so that no corpus is too large for memory; 4 bytes each.

Names of tokens depend on the tokenizer: `Ġthe` (byte-level BPE), `▁the` (SentencePiece), `##ing` (WordPiece), `<0xE2>`
(byte fallback). The text of a token is what the tokenizer's own decoder adds to a text when the token follows another:
` the`, ` the`, `ing`. A character whose bytes are spread over several tokens belongs to the first of them; the others
have no text.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from attnscope.capture.checkpoints import CHECK_TOKENIZER, foreign_errors
from attnscope.capture.documents import Corpus
from attnscope.capture.text import Text, check_tokenizer, token_ids, tokenize
from attnscope.errors import AttnscopeError, InputError, ModelError, OutputError, parameter, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from attnscope.capture.models import Model, ModelFacts


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer adds before and after a text."""
    inner = tokenize(tokenizer, Text("a", "probe"))
    with foreign_errors("add special tokens to a text", CHECK_TOKENIZER):
        full = list(tokenizer("a")["input_ids"])
    start = next((i for i in range(len(full)) if full[i : i + len(inner)] == inner), None)
    if start is None:
        raise ModelError(f"the tokenizer makes {inner} of a text and {full} with special tokens; {CHECK_TOKENIZER}")
    return full[:start], full[start + len(inner) :]


def text_length(model: Model | ModelFacts, size: int, bos: bool) -> int:
    """Tokens of the text in a window of `size` tokens, special tokens included."""
    if model.causal:
        return size - bos
    if bos:
        raise InputError(
            f"{parameter('bos')}: {model.name} is an encoder with special tokens of its own; leave "
            f"{parameter('bos')} out"
        )
    before, after = special_tokens(model.tokenizer)
    return size - len(before) - len(after)


def window_tokens(
    model: Model | ModelFacts, text: TokenizedText, size: int, count: int, bos: bool, choice: WindowChoice
) -> WindowTokens:
    """The tokens of each window: with the begin token if `bos`, without the special tokens of an encoder."""
    length = text_length(model, size, bos)
    if bos and model.tokenizer.bos_token_id is None:
        raise InputError(
            f"{parameter('bos')}: the tokenizer of {model.name} has no begin token; leave {parameter('bos')} out"
        )
    before = (model.tokenizer.bos_token_id,) if bos else ()
    return WindowTokens(text, text.starts(length, count, choice), length, before)


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
        from attnscope.errors import whole_number

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

    added = [token for part in special_tokens(model.tokenizer) for token in part] if not model.causal else []
    largest = max([largest, *added, getattr(model.tokenizer, "bos_token_id", None) or 0])
    if model.embeddings is not None and largest >= model.embeddings:
        raise ModelError(
            f"the tokenizer of {model.name} gives the token {largest}, but the model has only {model.embeddings} "
            "embeddings; model and tokenizer do not belong together"
        )


_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARKS = ("\u2581", "\u0120", " ")
_BROKEN = "\ufffd"  # what decoders write for bytes that are no character

# WordPiece drops spaces; its decoder puts one before every word, also where none was.
_NO_SPACE_BEFORE = tuple(".,;:!?)]}%'\u2019\u201d-\u2010\u2011\u2014/")
_NO_SPACE_AFTER = tuple("([{\u201c\u2018'\u2019-\u2010\u2011\u2014/$#")


def token_texts(tokenizer: Any, tokens: Sequence[int]) -> tuple[list[str], list[str]]:
    """The tokenizer's names of tokens, and the text that each stands for.

    >>> model = attnscope.load_model()
    >>> names, texts = token_texts(model.tokenizer, model.tokenizer("a few words")["input_ids"])
    >>> "".join(texts)  # the text itself; WordPiece has lost its spaces and capitals
    'a few words'
    """
    kinds = sorted(set(tokens))
    with foreign_errors("name tokens", CHECK_TOKENIZER):
        names = dict(zip(kinds, map(str, tokenizer.convert_ids_to_tokens(kinds)), strict=True))
        alone = dict(zip(kinds, _decoded(tokenizer, [[kind] for kind in kinds]), strict=True))
        following = _following(tokenizer, kinds, alone)
        special = {int(kind) for kind in getattr(tokenizer, "all_special_ids", ())}
    pieces: list[bytes] = []
    before = ""
    for token in tokens:
        name, text = names[token], following[token]
        if token in special:
            text = name
        elif text.startswith(" ") and not alone[token].startswith(" ") and not name.startswith(_SPACE_MARKS):
            word = text[1:]
            text = word if not before or before.endswith(_NO_SPACE_AFTER) or word.startswith(_NO_SPACE_BEFORE) else text
        pieces.append((_bytes_of(name) if _BROKEN in text else None) or text.encode("utf-8", "replace"))
        before = text
    return [names[token] for token in tokens], _characters(pieces)


def _decoded(tokenizer: Any, sequences: list[list[int]]) -> list[str]:
    decoded: list[str] = tokenizer.batch_decode(sequences, clean_up_tokenization_spaces=False)
    return decoded


def _following(tokenizer: Any, kinds: list[int], alone: dict[int, str]) -> dict[int, str]:
    """What each kind of token adds to a text that it follows; its text alone where that cannot be found out."""
    anchors = list(tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"])[-1:]
    start = _decoded(tokenizer, [anchors])[0]
    pairs = _decoded(tokenizer, [[*anchors, kind] for kind in kinds])
    return {
        kind: pair.removeprefix(start) if anchors and start and pair.startswith(start) else alone[kind]
        for kind, pair in zip(kinds, pairs, strict=True)
    }


def _bytes_of(name: str) -> bytes | None:
    """The bytes that a token's name spells, if it spells bytes."""
    if match := _BYTE.fullmatch(name):
        return bytes([int(match[1], 16)])
    alphabet = _byte_alphabet()
    return bytes(alphabet[symbol] for symbol in name) if all(symbol in alphabet for symbol in name) else None


@cache
def _byte_alphabet() -> dict[str, int]:
    """The printable symbol that byte-level BPE writes for each byte: itself, or for the rest those from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


def _characters(pieces: list[bytes]) -> list[str]:
    """Each piece's text: the characters whose first byte lies in it."""
    starts, start = [], 0
    for piece in pieces:
        starts.append(start)
        start += len(piece)
    texts = [""] * len(pieces)
    whole, position, owner = b"".join(pieces), 0, 0
    while position < len(whole):
        size = _size_at(whole, position)
        while owner + 1 < len(pieces) and starts[owner + 1] <= position:
            owner += 1
        texts[owner] += whole[position : position + size].decode("utf-8", "replace")
        position += size
    return texts


def _size_at(data: bytes, position: int) -> int:
    """How many bytes the character at a position has: as many as its first one says, or one if they are none."""
    first = data[position]
    size = 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    try:
        data[position : position + size].decode("utf-8")
    except UnicodeDecodeError:
        return 1
    return size
