"""Numbers and lists as texts of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnscope import columns
from attnscope.report.terminal import short_path


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
    """A value of a declared quantity, as its kind is written."""
    declared = columns.COLUMNS.get(name)
    return number(value, declared.style if declared else "number")


def counted(count: int, noun: str = "head") -> str:
    """1 head, 2 heads."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shortened(items: Sequence[str], most: int = 5) -> str:
    """The first of the items, and how many more there are."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")


def model_name(run: Mapping[str, Any]) -> str:
    """The model as people call it: of a path its last part."""
    return short_path(run["model"]["name"])


def visible_token(text: str) -> str:
    """The text of a token with spaces and line ends that can be seen, as the report shows it."""
    for hidden, mark in {"\r\n": "\u21b5", "\n": "\u21b5", "\t": "\u21e5", " ": "\u00b7"}.items():
        text = text.replace(hidden, mark)
    return text


def subject(run: Mapping[str, Any]) -> str:
    """What was run: family, layers and heads, text, windows."""
    model, text, settings = run["model"], run["text"], run["settings"]
    layers = model["heads"]
    heads = "/".join(str(count) for count in sorted({entry["heads"] for entry in layers}))
    return (
        f"{model['family']}, {counted(len(layers), 'layer')} x {heads} heads; {short_path(text['source'])}, "
        f"{counted(settings['windows'], 'window')} of {settings['length']:,} tokens"
    )
