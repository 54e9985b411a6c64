"""The colors of all that is shown: two themes of pages, tones of words, the scale of numbers, colors of series.

Text has a contrast of at least 4.5 to its background in both themes; scale and series suit any color vision.
"""

from __future__ import annotations

THEMES = {
    "light": {
        "page": "#ffffff", "ink": "#1b1f24", "soft": "#59636e", "line": "#dfe3e8", "card": "#f6f8fa", "link": "#005a9c",
        "good": "#00704f", "bad": "#b04400", "warning": "#875800",
    },
    "dark": {
        "page": "#171b20", "ink": "#e8ebee", "soft": "#a2acb6", "line": "#343c45", "card": "#1f252b", "link": "#7cc4f2",
        "good": "#35c79f", "bad": "#ff8a3d", "warning": "#e6b422",
    },
}  # fmt: skip
"""Colors of a page by what they are for, in each theme."""

TERMINAL = {
    "": "", "strong": "bold", "plain": "not bold", "soft": "dim", "good": "green", "bad": "red", "warning": "yellow",
    "code": "",
}  # fmt: skip
"""Styles of rich for the tones of words."""

SCALE = (
    "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
)  # fmt: skip
"""Of numbers, from small to large: cividis."""

UNKNOWN = "#b8bec6"
"""For a missing number."""

# Of Okabe and Ito.
BLUE, RED, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
BLACK, GRAY, LIGHT_GRAY = "#222222", "#5f6368", "#9a9a9a"
SERIES = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, GRAY)


def color_of(value: float | None, low: float = 0.0, high: float = 1.0) -> str:
    """The color of a value on the scale from `low` to `high`."""
    if value is None or value != value:
        return UNKNOWN
    share = (value - low) / (high - low) if high > low else 0.5
    return SCALE[min(len(SCALE) - 1, max(0, int(share * len(SCALE))))]


def ink_on(color: str) -> str:
    """Black or white, whichever is the more readable on a color (#rrggbb)."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"
