"""The last lines of a command: its files, how to open its page, and what to type next.

A command that is too long for the terminal is continued on the next line after a backslash, so that it can be copied
as a whole; a path is never broken.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from attnscope.show.terminal import paragraph

if TYPE_CHECKING:
    from rich.console import Console

NAME = "attnscope"


def print_closing(
    console: Console,
    folder: Path | None = None,
    files: Sequence[str] = (),
    page: Path | None = None,
    commands: Mapping[str, str] | None = None,
) -> None:
    """Print the files in a folder, how to open a page, and commands to type next (`attnscope ...`) with the reason."""
    console.print()
    if files:
        console.print(Text.assemble(("Files", "bold"), f"  in {folder}:"), soft_wrap=True)
        console.print(paragraph(", ".join(files), 7))
    if page is not None:
        console.print(Text.assemble(("Open", "bold"), f"   {open_command(page)}"), soft_wrap=True)
    if commands:
        console.print(Text("Next", style="bold"))
    for command, reason in (commands or {}).items():
        words = [*shlex.split(program()), *shlex.split(command)[1:]]
        # A file or another program gets one line, and cmd.exe has no backslash.
        wrapped = console.is_terminal and sys.platform != "win32"
        text = broken(words, console.width) if wrapped else f"  {shlex.join(words)}"
        console.print(Text(text), soft_wrap=True)
        console.print(paragraph(reason, 6, tone="soft"))


def broken(words: Sequence[str], width: int) -> str:
    """A command on lines of at most `width` columns, as far as its words allow; a shell reads it as one line."""
    lines = [" "]
    for word in map(shlex.quote, words):
        if lines[-1].strip() and len(f"{lines[-1]} {word} \\") > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def command_line(*parts: object, **options: object) -> str:
    """A command to type: `attnscope`, its parts without those that are None, and the options that are not None.

    An option with a list is repeated for each of its values.
    """
    words = [str(part) for part in parts if part is not None]
    for name, value in options.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        words += [word for each in values for word in (f"--{name.replace('_', '-')}", str(each))]
    return shlex.join([NAME, *words])


def program() -> str:
    """How to call attnscope here: by its name, by the path that it was called by, or as a module."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"python -m {NAME}"
    found = shutil.which(NAME)
    if called.name != NAME or (found is not None and Path(found).resolve() == called.resolve()):
        return NAME
    return shlex.quote(str(called))


def open_command(page: Path) -> str:
    """What opens a page from a shell here; its file:// address where there is no such command."""
    if sys.platform == "win32":
        return f'start "" "{page}"'
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    return f"{opener} {shlex.quote(str(page))}" if shutil.which(opener) else page.absolute().as_uri()
