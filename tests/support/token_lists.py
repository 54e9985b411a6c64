"""Tokens given as a list, as if a text had them."""

from __future__ import annotations

import numpy as np

from attnscope.capture.tokens import TokenizedText


def tokenized_list(tokens: list[int], source: str = "t", ends: list[int] | None = None) -> TokenizedText:
    """A text of these tokens; `ends` are the ends of its documents."""
    array = np.array(tokens, dtype=np.int32)
    borders = np.array([len(tokens)] if ends is None else ends)
    return TokenizedText(source, "digest", 0, len(borders), borders, lambda start, stop: array[start:stop])
