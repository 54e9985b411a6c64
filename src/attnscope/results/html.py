"""Fragments of HTML for notebooks: one style for light and dark, no script, nothing loaded from anywhere.

Colors follow the notebook where it says which theme it has (JupyterLab, VS Code, Colab), and else the system. Every
text color has a contrast of at least 4.5 to its background.
"""

from __future__ import annotations

import base64
import html
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

INK = {"light": ("#1f2328", "#57606a", "#d0d7de", "#ffffff"), "dark": ("#e6edf3", "#a3adb8", "#3d444d", "#15191e")}
"""Colors of text, soft text, lines and background."""

_NAMES = ("ink", "soft", "line", "paper")
_DARK = (
    "body[data-jp-theme-light=false] .attnscope",
    "body.vscode-dark .attnscope",
    "html[theme=dark] .attnscope",
    "html[data-theme=dark] .attnscope",
)
_LIGHT = (
    "body[data-jp-theme-light=true] .attnscope",
    "body.vscode-light .attnscope",
    "html[theme=light] .attnscope",
    "html[data-theme=light] .attnscope",
)


def _theme(name: str) -> str:
    return "".join(f"--{each}:{color};" for each, color in zip(_NAMES, INK[name], strict=True)) + f"color-scheme:{name}"


STYLE = (
    f".attnscope{{{_theme('light')}}}"
    f"@media (prefers-color-scheme:dark){{.attnscope{{{_theme('dark')}}}}}"
    f"{','.join(_DARK)}{{{_theme('dark')}}}{','.join(_LIGHT)}{{{_theme('light')}}}"
    """
.attnscope { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  border: 1px solid var(--line); border-radius: 6px; padding: 12px 16px; max-width: 960px; overflow-x: auto }
.attnscope h3 { font-size: 16px; margin: 0 0 2px; color: inherit }
.attnscope h4 { font-size: 14px; margin: 12px 0 4px; color: inherit }
.attnscope p { margin: 4px 0 }
.attnscope .soft { color: var(--soft) }
.attnscope .verdict { font-weight: 600; font-size: 15px; margin-top: 8px }
.attnscope table { border-collapse: collapse; margin: 6px 0; background: none; font: inherit;
  font-size: 13px; color: var(--ink) }
.attnscope tr { background: none !important }
.attnscope td, .attnscope th { padding: 2px 10px 2px 0; text-align: right; font-variant-numeric: tabular-nums;
  background: none; color: inherit; border: 0 }
.attnscope th { color: var(--soft); font-weight: 600; vertical-align: bottom }
.attnscope td:first-child, .attnscope th:first-child, .attnscope .words { text-align: left }
.attnscope ol, .attnscope ul { margin: 4px 0; padding-left: 22px }
.attnscope code { font: 13px ui-monospace, monospace; color: inherit; background: none }
.attnscope svg { display: block; max-width: 100%; height: auto }
.attnscope svg text { font: 11px system-ui, sans-serif; fill: var(--ink) }
.attnscope .maps { display: flex; flex-wrap: wrap; gap: 8px 32px }
.attnscope .key { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 5px;
  vertical-align: -1px }
"""
)


def escape(text: object) -> str:
    """Text as markup shows it; quotes included, and what cannot be seen or reorders its neighbors written out."""
    return html.escape("".join(_visible(character) for character in str(text)))


def _visible(character: str) -> str:
    hidden = character not in "\n" and unicodedata.category(character) in ("Cc", "Cf", "Cs")
    return f"\\u{ord(character):04x}" if hidden else character


def fragment(body: str) -> str:
    """A fragment with its style, to be displayed on its own."""
    return f'<div class="attnscope"><style>{STYLE}</style>{body}</div>'


def document(title: str, body: str, charts: Mapping[str, str]) -> str:
    """A page that may load and run nothing; `charts` are SVG by title."""
    pictures = "".join(
        f'<h2>{escape(name)}</h2><img alt="{escape(name)}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(svg.encode()).decode()}">'
        for name, svg in charts.items()
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>:root{{color-scheme:light dark}}"
        "body{font:15px system-ui,sans-serif;max-width:960px;margin:24px auto;padding:0 16px}"
        "h2{font-size:17px;margin:24px 0 8px}img{max-width:100%;background:#fff;border-radius:6px}</style>\n"
        f"</head>\n<body>\n{body}\n{pictures}\n</body>\n</html>\n"
    )


def heading(title: str, note: str) -> str:
    """A title with a soft line below."""
    return f'<h3>{escape(title)}</h3><p class="soft">{escape(note)}</p>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = ()) -> str:
    """A table of texts; the first column, and those whose numbers are given as words, are aligned to the left."""
    kinds = [' class="words"' if column in words else "" for column in range(len(heads))]

    def cells(kind: str, texts: Sequence[str]) -> str:
        line = (f"<{kind}{of}>{escape(text)}</{kind}>" for of, text in zip(kinds, texts, strict=True))
        return f"<tr>{''.join(line)}</tr>"

    body = "".join(cells("td", row) for row in rows)
    return f"<table><thead>{cells('th', heads)}</thead><tbody>{body}</tbody></table>"


def listed(items: Iterable[str], kind: str = "ul") -> str:
    """A list of texts."""
    return f"<{kind}>{''.join(f'<li>{escape(item)}</li>' for item in items)}</{kind}>"


def calls(*names: str) -> str:
    """What to call next."""
    shown = ", ".join(f"<code>{escape(name)}</code>" for name in names)
    return f'<p class="soft">Next: {shown}</p>'
