"""Results whose words and pictures are in a `View`, a module of this room; `attnscope.show.result` replaces it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from attnscope.results import html
from attnscope.show import result
from attnscope.show.result import bounded

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.show.blocks import Block


class View(Protocol):
    """The words and pictures of one kind of result."""

    def lines(self, result: Any) -> list[str]:
        """The repr in full, the heading first; long lines are wrapped."""

    def body(self, result: Any) -> str:
        """The content of the notebook output, in HTML."""

    def print_summary(self, console: Console, result: Any, verbose: bool) -> None:
        """Print what the command line prints."""

    def pictures(self, result: Any) -> dict[str, Any]:
        """The charts of the page of `show`, by title."""


class Result(result.Result):
    """A result of a measurement: see `summary`, `plot`, `show` and `save`."""

    @staticmethod
    @abstractmethod
    def _view() -> View:
        """The module that describes this kind of result."""

    def blocks(self, verbose: bool = False) -> list[Block]:
        """Not for results with a view."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return bounded(self._view().lines(self))

    def _repr_html_(self) -> str:
        return html.fragment(self._view().body(self))

    def summary(self, width: int = 80, verbose: bool = False) -> result.Summary:
        """The summary that the command line prints, as text."""
        import io

        from rich.console import Console

        from attnscope.errors import whole_number

        text = io.StringIO()
        width = whole_number("width", width)
        console = Console(file=text, width=width, force_terminal=True, color_system=None, highlight=False)
        self.print_summary(console, verbose)
        lines = (line.rstrip() for line in text.getvalue().splitlines())
        return result.Summary("\n".join(lines).strip("\n"))

    def print_summary(self, console: Console, verbose: bool = False) -> None:
        """Print the summary to a console of rich."""
        self._view().print_summary(console, self, verbose)

    def page(self) -> str:
        """The page that `show` opens, as one HTML document that needs no network (`attnscope report` writes it)."""
        title = type(self).__name__
        charts = {name: _svg(chart) for name, chart in self._view().pictures(self).items()}
        return html.document(title, self._repr_html_(), charts)


def _svg(chart: Any) -> str:
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(chart.to_dict())
    return svg
