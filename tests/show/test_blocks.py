"""Every block in all three backends: words escaped, 80 columns held, nothing that a page could load or run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any, get_args

import pytest
from terminal_tables import assert_readable, recorded_tables

from attnscope.show import html, markdown, page, palette, terminal
from attnscope.show.blocks import (
    Block,
    Cell,
    Chart,
    Details,
    Facts,
    Grid,
    Heading,
    HeadMap,
    Items,
    Key,
    Next,
    Note,
    Span,
    Table,
    Verdict,
)

WORDS = "A sentence of many words that go on and on, so that it takes more than one line of a terminal in any case."
HOSTILE = '<script>alert("x")</script> | \x1b[31m *red* `code` [link](javascript:1) \u202e'


def _map(heads: int = 12, layers: int = 3, **options: Any) -> HeadMap:
    cells = {
        (layer, head): Cell(palette.color_of(head / heads), str(head * 10 // heads), f"L{layer}H{head}", f"{head:>3} ")
        for layer in range(layers)
        for head in range(heads)
    }
    return HeadMap("Separability", cells, **options)


class _Chart:
    def to_dict(self) -> dict[str, Any]:
        values = {"values": [{"a": 1, "b": 2}]}
        encoding = {"x": {"field": "a", "type": "quantitative"}}
        return {
            "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
            "data": values,
            "mark": "point",
            "encoding": encoding,
        }


def everything(words: str = WORDS) -> list[Block]:
    """One block of every kind, with the same words wherever a block has words."""
    return [
        Heading(words, words),
        Verdict(words),
        Note((words, Span(words, "good"), Span("K", color="#0072b2")), "soft", "- ", 2),
        Items([words, (words, Span(words, "code"))], ordered=True),
        Facts({"Place": words, "Nothing": "", "Condition": words}),
        Table(["Name", "Value", words], [[words, "1,234", (Span(words, "bad"),)]], words, (0, 2), [words]),
        _map(note=words, keys=[Key("#0072b2", "B", "broad", words, 3), Key("#d55e00", "S", "sink", words)]),
        _map(scale=("0%", "100%"), narrow="digits: tens of %"),
        Grid(words, [["#000000", "#000000", None], [None, "#ffffff", "#ffffff"]], words),
        Chart(words, _Chart),
        Details("Behind a fold", [Heading("Inside", level=2), Note(words)]),
        Next("attnscope scan gpt2 --text 'a b.txt'", words, "attnscope.scan('gpt2')"),
    ]


def test_the_list_has_every_kind_of_block() -> None:
    assert {type(block) for block in everything()} == set(get_args(Block))


@pytest.mark.parametrize("words", [WORDS, HOSTILE, ""], ids=["words", "hostile", "empty"])
def test_the_terminal_keeps_to_80_columns_and_prints_no_control_character(words: str) -> None:
    text = terminal.text(everything(words), verbose=True)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)


def test_words_are_the_same_in_all_backends() -> None:
    blocks = [block for block in everything() if not isinstance(block, (Chart, Grid))]
    shown = {
        "terminal": terminal.text(blocks, 2_000, verbose=True),
        "html": " ".join(_Parsed.of(html.fragment(blocks)).words),
        "markdown": markdown.text(blocks),
    }
    for text in shown.values():
        assert WORDS in text
        for word in ("Place", "1,234", "broad", "Inside", "L2"):
            assert word in text
    assert "Verdict: A sentence" in shown["terminal"]
    assert "**Verdict:** A sentence" in shown["markdown"]
    assert "Next: attnscope.scan" in shown["html"].replace(" <code>", "").replace(":  ", ": ")


@pytest.mark.parametrize("verbose", [False, True])
def test_details_are_shown_in_the_terminal_if_asked_for(verbose: bool) -> None:
    assert ("inside" in terminal.text([Details("Fold", [Note("inside")])], verbose=verbose)) is verbose
    assert "<details><summary>Fold</summary><p>inside</p></details>" in html.body([Details("Fold", [Note("inside")])])


def test_blank_lines_are_between_tables_maps_and_headings_only() -> None:
    table = Table(["A", "B"], [["a", "1"]], notes=["of the table"])
    shown = terminal.text([Heading("Title", "facts"), Verdict("yes"), Note("why"), table, Note("more"), Note("again")])
    assert shown.splitlines() == [
        "Title: facts",
        "",
        "Verdict: yes",
        "why",
        "",
        "A B",
        "a 1",
        "of the table",
        "",
        "more",
        "again",
    ]


@pytest.mark.parametrize("columns", [3, 6, 9, 12, 20])
@pytest.mark.parametrize("texts", [(0,), (0, 1)])
def test_wide_tables_become_several_within_80_columns(columns: int, texts: Sequence[int]) -> None:
    headings = ["Normalizer", "State of it", *(f"Number {chr(97 + i)} of some rows" for i in range(columns))]
    rows = [[f"entmax:alpha=1.{i}", WORDS, *(f"{k + 12_345:,}" for k in range(columns))] for i in range(3)]
    if 1 not in texts:
        rows = [[row[0], "12", *row[2:]] for row in rows]
    with recorded_tables() as found:
        text = terminal.text([Table(headings, rows, "A title", texts)])
    assert max(map(len, text.splitlines())) <= 80
    for table in found:
        assert_readable(table)
    numbers = [f"{k + 12_345:,}" for k in range(columns)]
    assert all(len(re.findall(rf"(?<![\d,]){number}(?![\d,])", text)) == 3 for number in numbers)
    assert text.count("entmax:alpha=1.2") == len(found)  # each table has the first column


@pytest.mark.parametrize("heads", [6, 15, 24, 32, 64, 128])
@pytest.mark.parametrize("width", [80, 120])
def test_maps_fit_however_many_heads_there_are(heads: int, width: int) -> None:
    block = _map(heads, 12, narrow="digits: tens of %")
    names, *lines = terminal.text([Table([], []), block], width).splitlines()[1:]
    assert max(map(len, (names, *lines))) <= width
    assert names.split()[0] == "H0"
    cells = "".join(line[6:] for line in lines if "digits" not in line)
    if heads * 4 <= width - 6:
        assert [int(cell) for cell in cells.split()] == [*range(heads)] * 12
    else:
        assert cells.replace(" ", "") == "".join(str(head * 10 // heads) for head in range(heads)) * 12


def test_commands_can_be_copied_as_a_whole() -> None:
    command = (
        "attnscope scan some/model --text 'a long name of a book.txt' --windows 100 --lengths 32,64,128 --diagnose"
    )
    lines = terminal.text([Next(command, "why")]).splitlines()
    assert lines[0] == "Next"
    assert all(line.endswith(" \\") for line in lines[1:-2])
    assert " ".join(line.strip(" \\") for line in lines[1:-1]) == command


class _Parsed(HTMLParser):
    """Tags, attributes and words of a document."""

    @classmethod
    def of(cls, text: str) -> _Parsed:
        made = cls()
        made.feed(text)
        return made

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [] if tag in ("meta", "br", "img") else [tag]
        self.attributes += attrs

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("words", [WORDS, HOSTILE], ids=["words", "hostile"])
def test_a_page_loads_and_runs_nothing(words: str) -> None:
    made = html.page(words, everything(words))
    parsed = _Parsed.of(made)
    assert not {"script", "link", "iframe", "object", "a", "form", "base"} & set(parsed.tags)
    assert not [name for name, _ in parsed.attributes if name.startswith("on") or name in ("href", "srcdoc")]
    assert all(
        str(value).startswith("data:image/svg+xml;base64,") for name, value in parsed.attributes if name == "src"
    )
    policy = next(str(value) for name, value in parsed.attributes if name == "content")
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert "script-src" not in policy
    assert parsed.open == []


def test_a_notebook_gets_no_charts_and_what_to_call() -> None:
    made = html.fragment(everything(), [".summary()", '.plot.map("a")'])
    assert "<img" not in made
    assert "<code>.plot.map(&quot;a&quot;)</code>" in made
    assert "<svg" in made


def test_markdown_takes_hostile_words_as_text() -> None:
    made = markdown.text(everything(HOSTILE))
    outside = re.sub(r"(`+).*?\1", "", made, flags=re.S).replace("\\<", "")
    assert "<script" not in outside
    assert "](javascript" not in outside.replace("\\]", "")
    for line in made.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 4


def test_a_chart_in_markdown_is_its_file() -> None:
    assert markdown.text([Chart("Figure 2a", _Chart, "figure-2a.svg")]) == "![Figure 2a](figure-2a.svg)\n"


def test_words_on_the_palette_are_readable() -> None:
    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for colors in palette.THEMES.values():
        page = luminance(colors["page"])
        for name in ("ink", "soft", "link", "good", "bad", "warning"):
            light, dark = sorted((luminance(colors[name]), page), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, name
    for color in (*palette.SCALE, *palette.SERIES):
        light, dark = sorted((luminance(palette.ink_on(color)), luminance(color)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, color


def test_the_live_pages_have_the_colors_of_the_palette() -> None:
    style, script = page.asset("page.css"), page.asset("js/colors.js")
    also = {"good": "held", "bad": "act", "warning": "watch"}
    for name, colors in palette.THEMES.items():
        of_script = script[script.index(f"  {name}: {{") :].split("}")[0]
        drawn = dict(re.findall(r"(\w+): \"(#\w{6})\"", of_script))
        written = style[: style.index("* {")].split("@media" if name == "light" else "\0")[0 if name == "light" else -1]
        styled = dict(re.findall(r"--(\w+): (#\w{6})", written))
        assert {each: styled[also.get(each, each)] for each in colors} == colors
        assert {each: drawn[each] for each in ("page", "ink", "soft", "line")} == {
            each: colors[each] for each in ("page", "ink", "soft", "line")
        }
    assert re.findall(r"#\w{6}", script.split("const DIFFERENCE")[0]) == list(palette.SCALE)


def test_numbers_are_padded_in_a_terminal_alone() -> None:
    cells = ("75.5 \u00b1  4.5  ", ("+1 \u00b1  0.5 ", Span("better   ", "good")))
    block = Table(["Name", "Recall", "Gain"], [["a  name", *cells]])
    assert "75.5 \u00b1  4.5  " in terminal.text([block])
    written = html.body([block])
    assert "<td>75.5 \u00b1 4.5</td>" in written
    assert '<td>+1 \u00b1 0.5 <span class="good">better</span></td>' in written
    assert '<td class="words">a  name</td>' in written
    assert "| a  name | 75.5 \u00b1 4.5 | +1 \u00b1 0.5 better |" in markdown.text([block]).replace("**", "")
