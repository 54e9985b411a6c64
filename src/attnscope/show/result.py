"""What all results have in common: a short repr, output for notebooks, a summary, and a page to open.

A result is a dataclass in the room that makes it. What it shows is a list of blocks (`attnscope.show.blocks`).
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import textwrap
import webbrowser
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from html import escape as quoted
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope._process import refuses_after_fork
from attnscope.progress import in_notebook

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.show.blocks import Block

LINES, WIDTH = 10, 80  # of a repr
_FRAME_HEIGHT = 800  # pixels of a page in a notebook


class Summary:
    """Text that shows itself: `print(result.summary())`, or the last line of a notebook's cell."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from attnscope.show.html import escape

        return f"<pre>{escape(self.text)}</pre>"


class Result(ABC):
    """A result of a measurement: see `summary`, `plot`, `show` and `save`."""

    @abstractmethod
    def blocks(self, verbose: bool = False) -> list[Block]:
        """What the result shows: in the terminal, in a notebook, and, with `verbose`, on its page."""

    def calls(self) -> Sequence[str]:
        """What to call next, for the repr and the notebook."""
        return (".summary()", ".show()", ".save(folder)")

    def brief(self) -> list[str]:
        """The lines of the repr but for `calls`; long ones are wrapped. Default: headings, verdict and first notes."""
        return brief_lines(type(self).__name__, self.blocks())

    def __repr__(self) -> str:
        return bounded([*self.brief(), f"Next: {', '.join(self.calls())}"])

    def _repr_html_(self) -> str:
        from attnscope.show import html

        return html.fragment(self.blocks(), self.calls())

    def summary(self, width: int = 80, verbose: bool = False) -> Summary:
        """The summary that the command line prints, as text.

        >>> print(attnscope.audit("lemma-1", progress=False).summary())
        Verdict: Of 1 claim as the paper prints them, 1 holds. Effort quick, seed 0.
        ...

        Parameters
        ----------
        width
            Columns of the text.
        verbose
            With all tables, findings and notes.

        Returns
        -------
        Summary
            Its `str` and `repr` are the text.
        """
        from attnscope.errors import whole_number
        from attnscope.show import terminal

        return Summary(terminal.text(self.blocks(verbose), whole_number("width", width), verbose))

    def print_summary(self, console: Console, verbose: bool = False) -> None:
        """Print the summary to a console of rich."""
        from attnscope.show import terminal

        terminal.write(console, self.blocks(verbose), verbose)

    @refuses_after_fork
    def save(self, folder: str | Path) -> Path:
        """Write the result to a folder.

        >>> folder = attnscope.audit("lemma-1", progress=False).save("runs/audit")
        >>> attnscope.load_run(folder).claims[0].verdict
        'holds'

        Parameters
        ----------
        folder
            It is created if it is missing. Files of an older result of the same kind are replaced.

        Returns
        -------
        Path
            The folder; `attnscope.load_run` reads it.
        """
        from attnscope.store.folders import given_folder, output_folder

        with output_folder(given_folder(folder)) as path:
            self.write(path)
        return path

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the result into a folder that is locked for this process already."""

    def show(self) -> Path:
        """Open the result as a page: inside a notebook, or else in a browser.

        >>> page = attnscope.scan(length=64, progress=False).show()  # doctest: +SKIP

        Returns
        -------
        Path
            The file of the page. Without a browser it is written all the same, and its place is printed.
        """
        file = self._page_file()
        if in_notebook():
            from IPython.display import HTML, display

            page = quoted(file.read_text("utf-8"))
            frame = f'width="100%" height="{_FRAME_HEIGHT}" style="border:0"'
            display(HTML(f'<iframe srcdoc="{page}" {frame} title="attnscope report"></iframe>'))
            return file
        opened = _has_screen() and webbrowser.open(file.as_uri())
        print(f"attnscope: {'opened' if opened else 'open it in a browser:'} {file}")
        return file

    def page(self) -> str:
        """The page that `show` opens, as one HTML document that needs no network (`attnscope report` writes it)."""
        from attnscope.show import html

        return html.page(self.page_title(), self.blocks(verbose=True))

    def page_title(self) -> str:
        """What a browser calls the page: what the result is, and of what. Default: the words of its heading."""
        from attnscope.show.blocks import Heading, plain

        first = next((block for block in self.blocks(verbose=True) if isinstance(block, Heading)), Heading("result"))
        return plain(first.title)

    def _page_file(self) -> Path:
        """The file that `show` opens: the page in a temporary folder, where none was saved."""
        return temporary_page(self.page())


def brief_lines(name: str, blocks: Sequence[Block]) -> list[str]:
    """The first words of blocks as lines: the heading, the verdict, and the notes before the first table or map."""
    from attnscope.show.blocks import Heading, Note, Verdict, plain
    from attnscope.show.numbers import visible

    lines = []
    for block in blocks:
        if isinstance(block, Heading) and block.level == 1:
            title = plain(block.title)
            named = title if title.startswith(f"{name} ") else f"{name}: {title}"
            lines.append(named + (f", {block.note}" if block.note else ""))
        elif isinstance(block, Verdict):
            lines.append(f"Verdict: {plain(block.words)}")
        elif isinstance(block, Note):
            lines.append(plain(block.words))
        else:
            break
    return [visible(line) for line in lines] or [name]


def bounded(lines: Sequence[str]) -> str:
    """At most ten lines of at most 80 characters; the last of the lines, which says what to call next, stays."""
    wrapped = [
        textwrap.wrap(line, WIDTH, initial_indent="  " * (i > 0), subsequent_indent="    ", max_lines=3)
        for i, line in enumerate(lines)
    ]
    *body, last = wrapped
    kept = [line for group in body for line in group]
    room = LINES - len(last)
    if len(kept) > room:
        kept = [*kept[: room - 1], "  ..."]
    return "\n".join([*kept, *last])


def temporary_page(content: str) -> Path:
    """A page in the temporary folder of this process."""
    folder = _page_folder()
    folder.mkdir(mode=0o700, exist_ok=True)  # some systems clear their temporary files now and then
    number = sum(1 for _ in folder.iterdir()) + 1
    file = folder / f"report-{number}.html"
    file.write_text(content, encoding="utf-8")
    return file


@cache
def _page_folder() -> Path:
    """One folder for all pages of this process; a session removes it at its end."""
    folder = Path(tempfile.mkdtemp(prefix="attnscope-"))
    if in_notebook() or hasattr(sys, "ps1"):  # a script may end before the browser has read the page
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _has_screen() -> bool:
    """Whether a browser can open a window; the browsers of a terminal show no such page."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
