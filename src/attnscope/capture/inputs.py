"""Windows of a text as a model sees them, special tokens included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.capture.text import Text, tokenize, windows
from attnscope.errors import InputError

if TYPE_CHECKING:
    from attnscope.capture.models import Model


def plain_windows(model: Model, text: Text, tokens: list[int], length: int, count: int, bos: bool) -> list[list[int]]:
    """The windows of `length` tokens: with the begin token if asked for, an encoder's without its special tokens."""
    tokenizer = model.tokenizer
    if not model.causal:
        if bos:
            raise InputError(f"--bos: {model.name} is an encoder with special tokens of its own; leave --bos out")
        before, behind = special_tokens(model)
        return windows(tokens, length - len(before) - len(behind), count, text.source)
    if not bos:
        return windows(tokens, length, count, text.source)
    if tokenizer.bos_token_id is None:
        raise InputError(f"--bos: the tokenizer of {model.name} has no begin token; leave --bos out")
    return [[tokenizer.bos_token_id, *window] for window in windows(tokens, length - 1, count, text.source)]


def special_tokens(model: Model) -> tuple[list[int], list[int]]:
    """The special tokens that an encoder's tokenizer puts before and behind a text."""
    inner = tokenize(model.tokenizer, Text("a", "probe"))
    full = list(model.tokenizer("a")["input_ids"])
    start = next(i for i in range(len(full)) if full[i : i + len(inner)] == inner)
    return full[:start], full[start + len(inner) :]


def spread_windows(model: Model, text: Text, tokens: list[int], length: int, count: int, bos: bool) -> list[list[int]]:
    """Windows of `length` tokens at even distances over the whole text, special tokens included."""
    before, behind = ([], []) if model.causal else special_tokens(model)
    first = plain_windows(model, text, tokens, length, count, bos)
    size = length - len(before) - len(behind) - (bos and model.causal)
    part = len(tokens) / count
    starts = [int((i + 0.5) * part - size / 2) for i in range(count)]
    begin = first[0][:1] if bos and model.causal else []
    return [[*before, *begin, *tokens[start : start + size], *behind] for start in starts]
