"""Blocks as HTML: a fragment for notebooks, or a page that loads and runs nothing.

Colors follow the notebook where it says which theme it has (JupyterLab, VS Code, Colab), and else the system.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from itertools import groupby
from typing import Any

from attnscope.show import blocks as kind, palette
from attnscope.show.blocks import Block, Span, Words, parts, plain, unpadded
from attnscope.show.numbers import visible

_NOTEBOOKS = {
    "dark": (
        "body[data-jp-theme-light=false] .attnscope",
        "body.vscode-dark .attnscope",
        "html[theme=dark] .attnscope",
        "html[data-theme=dark] .attnscope",
    ),
    "light": (
        "body[data-jp-theme-light=true] .attnscope",
        "body.vscode-light .attnscope",
        "html[theme=light] .attnscope",
        "html[data-theme=light] .attnscope",
    ),
}


def theme(name: str) -> str:
    """The colors of a theme as variables of CSS: `--ink`, `--soft`, ..."""
    return "".join(f"--{each}:{color};" for each, color in palette.THEMES[name].items()) + f"color-scheme:{name}"


STYLE = (
    f".attnscope{{{theme('light')}}}"
    f"@media (prefers-color-scheme:dark){{.attnscope{{{theme('dark')}}}}}"
    + "".join(f"{','.join(where)}{{{theme(name)}}}" for name, where in _NOTEBOOKS.items())
    + """
.attnscope { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page);
  border: 1px solid var(--line); border-radius: 6px; padding: 12px 16px; max-width: 960px; overflow-x: auto }
.attnscope h3 { font-size: 16px; margin: 0 0 2px; color: inherit }
.attnscope h4 { font-size: 14px; margin: 14px 0 4px; color: inherit }
.attnscope p { margin: 4px 0; overflow-wrap: anywhere } .attnscope p, .attnscope td { white-space: pre-line }
.attnscope .soft { color: var(--soft) } .attnscope .strong { font-weight: 600 } .attnscope .plain { font-weight: 400 }
.attnscope .good { color: var(--good) } .attnscope .bad { color: var(--bad) }
.attnscope .warning { color: var(--warning) }
.attnscope .verdict { font-weight: 600; font-size: 15px; margin-top: 8px }
.attnscope .indented { padding-left: 18px }
.attnscope table { border-collapse: collapse; margin: 6px 0; background: none; font: inherit; font-size: 13px;
  color: var(--ink) }
.attnscope tr { background: none !important }
.attnscope td, .attnscope th { padding: 2px 10px 2px 0; text-align: right; font-variant-numeric: tabular-nums;
  background: none; color: inherit; border: 0; vertical-align: top }
.attnscope th { color: var(--soft); font-weight: 600; vertical-align: bottom }
.attnscope .words { text-align: left }
.attnscope td.good { color: var(--good) } .attnscope td.bad { color: var(--bad) }
.attnscope ol, .attnscope ul { margin: 4px 0; padding-left: 22px }
.attnscope code { font: 13px ui-monospace, monospace; color: inherit; background: none; white-space: pre-wrap }
.attnscope svg { display: block; max-width: 100%; height: auto }
.attnscope svg text { font: 11px system-ui, sans-serif; fill: var(--ink) }
.attnscope img { max-width: 100%; background: #fff; border-radius: 6px }
.attnscope .maps { display: flex; flex-wrap: wrap; gap: 8px 32px }
.attnscope .scroll { overflow-x: auto }
.attnscope .mark { border-radius: 3px; padding: 0 4px; margin-right: 5px }
.attnscope .key { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 5px;
  vertical-align: -1px }
.attnscope .scale { display: inline-block; width: 14px; height: 10px }
.attnscope summary { cursor: pointer; font-weight: 600; margin: 10px 0 4px }
"""
)
_PAGE_STYLE = (
    f":root{{{theme('light')}}}@media (prefers-color-scheme:dark){{:root{{{theme('dark')}}}}}"
    "body{margin:24px auto;padding:0 16px;max-width:960px;background:var(--page)}"
    ".attnscope{border:0;padding:0;font-size:15px}.attnscope h3{font-size:22px}"
    ".attnscope h4{font-size:17px;margin-top:22px}"
)


def fragment(blocks: Iterable[Block], calls: Sequence[str] = ()) -> str:
    """Blocks for a notebook, without charts; `calls` are what to call next in Python."""
    shown = [block for block in blocks if not isinstance(block, kind.Chart)]
    return f'<div class="attnscope"><style>{STYLE}</style>{body(shown)}{_calls(calls)}</div>'


def page(title: str, blocks: Iterable[Block]) -> str:
    """Blocks as one HTML document, which needs no network; its policy lets nothing load or run."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{_PAGE_STYLE}</style>\n</head>\n"
        f'<body>\n<main class="attnscope">{body(blocks)}</main>\n</body>\n</html>\n'
    )


def policy(script: str, style: str, more: str = "", images: str = "data: blob:") -> str:
    """A content security policy that lets nothing run or load but this script and this style."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src {images}; "
        f"base-uri 'none'; form-action 'none'{more}"
    )


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def body(blocks: Iterable[Block]) -> str:
    """Blocks without page and style; maps and pictures that follow each other are put side by side."""
    found = []
    for beside, group in groupby(blocks, lambda block: isinstance(block, (kind.HeadMap, kind.Grid))):
        made = "".join(_written(block) for block in group)
        found.append(f'<div class="maps">{made}</div>' if beside else made)
    return "".join(found)


def escape(text: object) -> str:
    """Text as markup shows it; quotes included, and what cannot be seen or reorders its neighbors written out."""
    return html.escape(visible(text))


def marked_up(words: Words) -> str:
    """Words with their tones."""
    return "".join(escape(part) if isinstance(part, str) else _span(part) for part in parts(words))


def _span(span: Span) -> str:
    if span.color:
        look = f"background:{escape(span.color)};color:{palette.ink_on(span.color)}"
        return f'<span class="mark" style="{look}">{escape(span.text)}</span>'
    if span.tone == "code":
        return f"<code>{escape(span.text)}</code>"
    return f'<span class="{span.tone}">{escape(span.text)}</span>' if span.tone else escape(span.text)


@singledispatch
def _written(block: Block) -> str:
    raise TypeError(f"a page shows no {type(block).__name__}")


@_written.register
def _heading(block: kind.Heading) -> str:
    tag = "h3" if block.level == 1 else "h4"
    note = f'<p class="soft">{escape(block.note)}</p>' if block.note else ""
    return f"<{tag}>{marked_up(block.title)}</{tag}>{note}"


@_written.register
def _verdict(block: kind.Verdict) -> str:
    return f'<p class="{f"verdict {block.tone}".strip()}">{marked_up(block.words)}</p>'


@_written.register
def _note(block: kind.Note) -> str:
    kinds = " ".join(filter(None, (block.tone, "indented" if block.indent else "")))
    mark = f"{marked_up(block.mark).rstrip()} " if block.mark else ""
    start = f'<p class="{kinds}">' if kinds else "<p>"
    return f"{start}{mark}{marked_up(block.words)}</p>"


@_written.register
def _items(block: kind.Items) -> str:
    tag = "ol" if block.ordered else "ul"
    items = "".join(f"<li>{marked_up(item)}</li>" for item in block.items)
    return f"<{tag}>{items}</{tag}>" if items else ""


@_written.register
def _facts(block: kind.Facts) -> str:
    rows = [(name, words) for name, words in block.facts.items() if plain(words)]
    lines = (
        f'<tr><td class="words soft">{escape(name)}</td><td class="words">{marked_up(words)}</td></tr>'
        for name, words in rows
    )
    return f"<table><tbody>{''.join(lines)}</tbody></table>" if rows else ""


@_written.register
def _table(block: kind.Table) -> str:
    kinds = [' class="words"' if column in block.texts else "" for column in range(len(block.headings))]

    def line(tag: str, cells: Sequence[Words]) -> str:
        made = (
            f"<{tag}{of}>{marked_up(cell if of else unpadded(cell))}</{tag}>"
            for of, cell in zip(kinds, cells, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    title = f"<h4>{escape(block.title)}</h4>" if block.title else ""
    rows = "".join(line("td", row) for row in block.rows)
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in block.notes)
    head = f"<thead>{line('th', block.headings)}</thead>"
    return f'{title}<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>{notes}'


@_written.register
def _head_map(block: kind.HeadMap) -> str:
    label = f"Map of the heads: {block.title}"
    made = [f"<h4>{escape(block.title)}</h4>"]
    made += [f'<p class="soft">{escape(block.note)}</p>'] if block.note else []
    made.append(head_map(block, label))
    if block.scale:
        low, high = map(escape, block.scale)
        boxes = "".join(f'<span class="scale" style="background:{color}"></span>' for color in palette.SCALE)
        made.append(f'<p class="soft">{low} {boxes} {high}</p>')
    for key in block.keys:
        words = f"{key.name}: {key.words}" if key.words else key.name
        count = "" if key.heads is None else f' <span class="soft">({key.heads:,})</span>'
        swatch = f'<span class="key" style="background:{escape(key.color)}"></span>' if key.color else f"{key.mark} "
        made.append(f"<div>{swatch}{escape(words)}{count}</div>")
    return f"<div>{''.join(made)}</div>"


@_written.register
def _grid(block: kind.Grid) -> str:
    note = f'<p class="soft">{escape(block.note)}</p>' if block.note else ""
    return f"<div><h4>{escape(block.title)}</h4>{_grid_map(block)}{note}</div>"


@_written.register
def _chart(block: kind.Chart) -> str:
    picture = base64.b64encode(svg(block.draw()).encode()).decode()
    return f'<h4>{escape(block.title)}</h4><img alt="{escape(block.title)}" src="data:image/svg+xml;base64,{picture}">'


@_written.register
def _next(block: kind.Next) -> str:
    return f'<p class="soft">Next: <code>{escape(block.python or block.command)}</code> {escape(block.why)}</p>'


@_written.register
def _details(block: kind.Details) -> str:
    fold = "<details open>" if block.open else "<details>"
    return f"{fold}<summary>{escape(block.title)}</summary>{body(block.blocks)}</details>"


def _calls(names: Sequence[str]) -> str:
    shown = ", ".join(f"<code>{escape(name)}</code>" for name in names)
    return f'<p class="soft">Next: {shown}</p>' if names else ""


def svg(chart: Any) -> str:
    """A chart, of Altair or a `Figure`, as SVG; one that is drawn already as it is."""
    if isinstance(chart, str):
        return chart
    import vl_convert

    drawn = chart if hasattr(chart, "to_dict") else chart.chart(titles=True)
    made: str = vl_convert.vegalite_to_svg(drawn.to_dict())
    return made


_LARGE, _SMALL = 18, 13  # pixels of a head on a map


def head_map(block: kind.HeadMap, label: str) -> str:
    """A cell for each (layer, head) as SVG: layers from top to bottom, heads from left to right."""
    cells: Mapping[tuple[int, int], Any] = block.cells
    if not cells:
        return ""
    layers, heads = max(layer for layer, _ in cells) + 1, max(head for _, head in cells) + 1
    size = _LARGE if max(layers, heads) <= 16 else _SMALL
    left, top, side = 30, 16, size - 1
    made = [
        _text(left + (head + 0.5) * size, top - 4, f"H{head}", "middle")
        for head in _numbered(heads, (30 if heads > 10 else 1) // size + 1)
    ]
    made += [_text(left - 4, top + (layer + 0.5) * size + 4, f"L{layer}", "end") for layer in _numbered(layers, 1)]
    by_color: dict[str, list[str]] = {}
    marks = []
    for (layer, head), cell in cells.items():
        x, y = left + head * size, top + layer * size
        title = f"<title>{escape(cell.words)}</title>" if cell.words else ""
        box = f'<rect x="{x}" y="{y}" width="{side}" height="{side}">{title}</rect>'
        by_color.setdefault(cell.color, []).append(box)
        if cell.mark and not block.scale and size == _LARGE:  # digits are for terminals, where colors are coarse
            place = f'x="{x + side / 2:g}" y="{y + side / 2 + 4:g}" text-anchor="middle"'
            style = f'style="fill:{palette.ink_on(cell.color)};pointer-events:none"'
            marks.append(f"<text {place} {style}>{escape(cell.mark)}</text>")
    made += [f'<g fill="{escape(color)}">{"".join(boxes)}</g>' for color, boxes in by_color.items()]
    return _drawn(left + heads * size, top + layers * size, label, [*made, *marks])


def _grid_map(block: kind.Grid, size: int = 6) -> str:
    """Runs of equal colors are one mark, and cells without color are left out."""
    made = []
    for y, row in enumerate(block.cells):
        x = 0
        while x < len(row):
            end = x + 1
            while end < len(row) and row[end] == row[x]:
                end += 1
            if row[x]:
                box = f'x="{x * size}" y="{y * size}" width="{(end - x) * size}" height="{size}"'
                made.append(f'<rect {box} fill="{row[x]}"/>')
            x = end
    return _drawn(max(map(len, block.cells), default=0) * size, len(block.cells) * size, block.title, made)


def _numbered(count: int, every: int) -> range:
    step = max(1, every)
    while count > step * 16:
        step *= 2
    return range(0, count, step)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def _drawn(width: float, height: float, label: str, made: Sequence[str]) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(made)}</svg>'
