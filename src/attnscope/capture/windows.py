"""Model inputs: windows of a text with their special tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.capture.foreign_errors import CHECK_TOKENIZER, foreign_errors
from attnscope.capture.text import Text, tokenize
from attnscope.capture.tokens import TokenizedText, WindowChoice, WindowTokens
from attnscope.errors import InputError, ModelError
from attnscope.parameters import parameter

if TYPE_CHECKING:
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
