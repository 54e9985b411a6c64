"""The text that each token of a window stands for, as people read it.

Names of tokens depend on the tokenizer: `Ġthe` (byte-level BPE), `▁the` (SentencePiece), `##ing` (WordPiece), `<0xE2>`
(byte fallback). The text of a token is what the tokenizer's own decoder adds to a text when the token follows another:
` the`, ` the`, `ing`. A character whose bytes are spread over several tokens belongs to the first of them; the others
have no text.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from attnscope.capture.foreign_errors import CHECK_TOKENIZER, foreign_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

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
