"""Maps of all heads in the terminal: one cell for each head, a line for each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from attnscope.columns import label
from attnscope.diagnosis.states import NO_LABEL
from attnscope.results.heat_map import SCALE, ink_on
from attnscope.scanning import overview

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from attnscope.scanning.overview import Overview

_MARGIN = 6  # columns before the first head
_NUMBER = 4  # columns of a cell from which it has room for a number in per cent


class HeadMap:
    """Cells of heads, as wide as the terminal has room for; layers of many heads take several lines.

    `cell` draws the value of a head at a width; `narrow` explains cells of less than 4 columns, if they differ.
    """

    def __init__(
        self,
        heads: Mapping[tuple[int, int], Any],
        cell: Callable[[Any, int], Text],
        widest: int,
        narrow: str = "",
    ) -> None:
        self.heads, self.cell, self.widest, self.narrow = heads, cell, widest, narrow

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The names of heads, as many as there is room for, then one line for each layer, or more."""
        columns = max(head for _, head in self.heads) + 1
        room = options.max_width - _MARGIN
        width = next((width for width in range(self.widest, 1, -1) if columns * width <= room), 1)
        each = max(1, room // width)
        blocks = [range(start, min(start + each, columns)) for start in range(0, columns, each)]
        step = -(-(len(f"H{columns - 1}") + 1) // width)  # heads between two names
        names = "".join(f"H{head}".ljust(step * width) for head in blocks[0][::step])
        yield Text(" " * _MARGIN + names.rstrip(), style="dim")
        for layer in sorted({layer for layer, _ in self.heads}):
            for block in blocks:
                name = f"L{layer}" if block.start == 0 else ""
                line = Text.assemble((f"{name:>{_MARGIN - 2}}  ", "dim"))
                for head in block:
                    line.append_text(self.cell(self.heads.get((layer, head)), width))
                yield line
        if self.narrow and width < _NUMBER:
            yield Text(" " * _MARGIN + self.narrow, style="dim")


def separability_map(view: Overview) -> Group:
    """Separability of every head in per cent."""
    n = view.n
    table = view.heads.select("layer", "head", "separability")
    heads = {(layer, head): value for layer, head, value in table.iter_rows()}
    title = Text.assemble(
        (label("separability", n), "bold"),
        f" in %, {overview.shown_rows(view.run)}: how much of the top {n} tokens lies nearer to their weighted sum "
        "than every other token",
    )
    legend = Text(" " * _MARGIN + "0% ")
    for color in SCALE:
        legend.append("  ", style=f"on {color}")
    legend.append(" 100%")
    return Group(title, HeadMap(heads, _percentage, 5, "digits: tens of %"), legend)


def _percentage(value: float | None, width: int) -> Text:
    if value is None:
        return Text("-".center(width), style="dim")
    level = min(int(value * len(SCALE)), len(SCALE) - 1)
    number = f"{value * 100:.0f} " if width >= _NUMBER else str(min(int(value * 10), 9))
    return Text(number.rjust(width), style=on_color(SCALE[level]))


def state_map(
    heads: list[dict[str, Any]],
    states: dict[str, dict[str, str]],
    title: str = "Map",
    words: str = "the simpler rule that gives nearly the same output",
) -> Group:
    """One letter for each head, and what the letters mean, with the number of heads of each."""
    entries = {(head["layer"], head["head"]): head for head in heads}

    def letter(entry: dict[str, Any] | None, width: int) -> Text:
        look = states.get(entry["state"] or NO_LABEL) if entry else None
        if entry is None or look is None:
            return Text(" " * width)
        edge = "?" if entry["edge"] and width > 1 else " "
        return Text(f"{look['mark']}{edge}"[:width].center(width), style=on_color(look["color"]))

    lines = [
        Text.assemble(
            "     ", (f" {look['mark']} ", on_color(look["color"])), f" {state:12} {count:4}  {look['short']}"
        )
        for state, look in states.items()
        if (count := sum((head["state"] or NO_LABEL) == state for head in heads))
    ]
    near = sum(head["edge"] is not None for head in heads)
    if near:
        lines.append(Text(f"      ?  near a limit {near:4}  other rows could give another label"))
    return Group(Text.assemble((title, "bold"), f": {words}"), HeadMap(entries, letter, 4), *lines)


def on_color(color: str) -> str:
    """The style of a mark on a background of this color (#rrggbb)."""
    return f"{ink_on(color)} on {color}"
