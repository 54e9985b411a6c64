"""Model inputs: windows of a text with their special tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.capture.foreign_errors import CHECK_TOKENIZER, foreign_errors
from attnscope.capture.text import Text, tokenize, windows
from attnscope.errors import InputError, ModelError
from attnscope.parameters import parameter

if TYPE_CHECKING:
    from attnscope.capture.models import Model


def text_tokens(model: Model, text: Text) -> list[int]:
    """Tokens of a text, without special tokens; refuses a tokenizer whose tokens the model has no embeddings for."""
    tokens = tokenize(model.tokenizer, text)
    added = [token for part in special_tokens(model.tokenizer) for token in part] if not model.causal else []
    rows = getattr(model.module.get_input_embeddings(), "weight", None)
    largest = max([*tokens, *added, getattr(model.tokenizer, "bos_token_id", None) or 0])
    if rows is not None and largest >= len(rows):
        raise ModelError(
            f"the tokenizer of {model.name} gives the token {largest}, but the model has only {len(rows)} embeddings; "
            "model and tokenizer do not belong together"
        )
    return tokens


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer adds before and after a text."""
    inner = tokenize(tokenizer, Text("a", "probe"))
    with foreign_errors("add special tokens to a text", CHECK_TOKENIZER):
        full = list(tokenizer("a")["input_ids"])
    start = next((i for i in range(len(full)) if full[i : i + len(inner)] == inner), None)
    if start is None:
        raise ModelError(f"the tokenizer makes {inner} of a text and {full} with special tokens; {CHECK_TOKENIZER}")
    return full[:start], full[start + len(inner) :]


def window_tokens(model: Model, tokens: list[int], size: int, count: int, bos: bool, source: str) -> list[list[int]]:
    """The tokens of each window: with the begin token if `bos`, without the special tokens of an encoder."""
    if not model.causal:
        if bos:
            raise InputError(
                f"{parameter('bos')}: {model.name} is an encoder with special tokens of its own; leave "
                f"{parameter('bos')} out"
            )
        before, after = special_tokens(model.tokenizer)
        return windows(tokens, size - len(before) - len(after), count, source)
    if not bos:
        return windows(tokens, size, count, source)
    if model.tokenizer.bos_token_id is None:
        raise InputError(
            f"{parameter('bos')}: the tokenizer of {model.name} has no begin token; leave {parameter('bos')} out"
        )
    return [[model.tokenizer.bos_token_id, *window] for window in windows(tokens, size - 1, count, source)]


def spread_windows(model: Model, tokens: list[int], size: int, count: int, bos: bool, source: str) -> list[list[int]]:
    """Like `window_tokens`, for windows spread evenly over the whole text instead of starting at its beginning."""
    inner = len(window_tokens(model, tokens, size, count, bos, source)[0]) - bos
    before = [model.tokenizer.bos_token_id] if bos else []
    part = len(tokens) / count
    starts = [int((i + 0.5) * part - inner / 2) for i in range(count)]
    return [[*before, *tokens[start : start + inner]] for start in starts]
