"""Numbers, counts and names as people read them: the one formatter of the terminal, pages and Markdown.

>>> from attnscope.show.numbers import counted, number, number_range
>>> number(1234.5), number(0.01234), number(None), number(0.034, "share"), number(0.5, "share")
('1,234', '0.0123', '-', '3.4%', '50%')
>>> number_range(0.25, 0.5, "share"), number_range(2.0, 2.0)
('25% to 50%', '2')
>>> counted(1), counted(1200, "window")
('1 head', '1,200 windows')
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from attnscope import columns

_NAMELESS = ("model", "models", "checkpoint", "weights", "main", "hf")  # these say nothing without their folder


def number(value: float | None, style: str = "number") -> str:
    """Three significant figures, without exponent for everyday sizes; a share in per cent; "-" for no number."""
    if value is None or value != value:
        return "-"
    if style == "share":
        if 0 < value < 0.0005:
            return "<0.1%"
        return f"{value:.0%}" if value >= 0.0995 or value == 0 else f"{value:.1%}"
    if abs(value) < 1e-6:
        return "<1e-06" if value > 0 else "0"
    if abs(value) >= 100:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.2e}"
    return f"{value:.3g}"


def measured(name: str, value: float | None) -> str:
    """A value of a declared column (`attnscope.columns`), as its kind is written."""
    declared = columns.COLUMNS.get(name)
    return number(value, declared.style if declared else "number")


def number_range(low: float | None, high: float | None, style: str = "number") -> str:
    """From one number to another; a single one where both are written alike."""
    first, last = number(low, style), number(high, style)
    return first if first == last else f"{first} to {last}"


def counted(count: int, noun: str = "head") -> str:
    """1 head, 2 heads."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shortened(items: Sequence[str], most: int = 5) -> str:
    """The first of the items, and how many more there are."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")


def short_path(name: str) -> str:
    """The last part of a path, or the last two if that is a word like "model"; names on a hub stay."""
    parts = [part for part in name.replace("\\", "/").split("/") if part]
    if not (name.startswith((".", "/", "~")) or len(parts) > 2 or "\\" in name):
        return name
    return "/".join(parts[-2:] if parts and parts[-1].lower() in _NAMELESS else parts[-1:]) or name


def model_name(run: Mapping[str, Any]) -> str:
    """The model of a run as people call it: of a path its last part."""
    return short_path(run["model"]["name"])


def visible(text: object) -> str:
    """Text in which every character that cannot be seen, or that reorders its neighbors, is written out."""
    return "".join(_written_out(character) for character in str(text))


def _written_out(character: str) -> str:
    hidden = character != "\n" and unicodedata.category(character) in ("Cc", "Cf", "Cs")
    return f"\\u{ord(character):04x}" if hidden else character


def visible_token(text: str) -> str:
    """The text of a token with spaces and line ends that can be seen, as the report shows it."""
    for hidden, mark in {"\r\n": "\u21b5", "\n": "\u21b5", "\t": "\u21e5", " ": "\u00b7"}.items():
        text = text.replace(hidden, mark)
    return text
