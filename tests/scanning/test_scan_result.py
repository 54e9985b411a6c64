"""What a scan shows of itself: repr, notebook output, table of heads, one head, charts, the report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import polars as pl
import pytest
import vl_convert
from models import build, byte_tokenizer
from reports import enlarged, large_shown, made_findings, withdrawn_findings

import attnscope
from attnscope.diagnosis.result import Diagnosis
from attnscope.errors import InputError
from attnscope.scanning import ScanResult, scan
from attnscope.show import palette, result as base
from attnscope.show.numbers import visible_token
from attnscope.show.palette import SCALE, ink_on

TEXT = "The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9
WINDOWS, HEADS, LAYERS = 2, 5, 3


@pytest.fixture(scope="module")
def plain() -> ScanResult:
    options: Any = {"tokenizer": byte_tokenizer(), "length": 61, "top_n": [1, 5], "windows": WINDOWS}
    return scan(build("gpt2"), TEXT, lengths=[23, 61], **options)


@pytest.fixture(scope="module")
def diagnosed() -> ScanResult:
    return scan(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), length=61, top_n=[1, 5], windows=2, diagnose=True)


@pytest.fixture(scope="module")
def large(plain: ScanResult) -> ScanResult:
    """A model of 30 layers x 32 heads with findings that withdraw a label and leave a head out."""
    heads = [(layer, head) for layer in range(30) for head in range(32)]
    entries = [{"layer": layer, "heads": 32, "module": f"h.{layer}", "kind": "self"} for layer in range(30)]
    run = plain.run | {
        "model": plain.run["model"] | {"heads": entries, "name": "a-long/name-" * 12},
        "text": plain.run["text"] | {"source": "/a/long/path/" * 20 + "book.txt"},
        "skipped_heads": [{"layer": 1, "head": 2, "window": 0, "reason": "logits not finite"}],
    }
    assert plain.token_weights
    rows, topn = (enlarged(table, 30, 32) for table in (plain.rows, plain.topn))
    shown = large_shown(plain.token_weights, 30, 32)
    return ScanResult(rows, topn, run, shown, Diagnosis(withdrawn_findings(heads)))


def bounded(text: str) -> bool:
    return len(text.splitlines()) <= 10 and all(len(line) <= 80 for line in text.splitlines())


class Tags(HTMLParser):
    """The elements and attributes of a fragment; every element must be closed."""

    EMPTY = ("meta", "img", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        self.names.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def self_contained(text: str) -> bool:
    """No script, no handler of events, and nothing that a browser would load."""
    tags = Tags(text)
    loads = {"src", "href", "srcset", "action", "data"} & tags.attributes
    handlers = {name for name in tags.attributes if name.startswith("on")}
    active = tags.names & {"script", "iframe", "link", "object", "embed", "form"}
    return not (loads or handlers or active or re.search(r"https?:|url\(|@import", text))


# Repr and notebook output


@pytest.mark.parametrize("name", ["plain", "diagnosed", "large"])
def test_the_repr_is_short_and_says_what_to_call_next(name: str, request: pytest.FixtureRequest) -> None:
    result = request.getfixturevalue(name)
    assert bounded(repr(result))
    assert repr(result).startswith("ScanResult: ")
    assert ".summary()" in repr(result)
    assert bounded(repr(result.head(1, 3)))
    assert result.findings is None or bounded(repr(result.findings))


def test_the_repr_has_the_verdict_and_the_medians_over_heads(diagnosed: ScanResult) -> None:
    words = " ".join(repr(diagnosed).split())
    assert diagnosed.findings is not None
    assert diagnosed.findings["verdict"]["headline"] in words
    participation: Any = diagnosed.heads["participation"].median()
    assert f"Participation {participation:.3g}" in words


@pytest.mark.parametrize("name", ["plain", "diagnosed", "large"])
def test_the_notebook_output_is_static_small_and_self_contained(name: str, request: pytest.FixtureRequest) -> None:
    result = request.getfixturevalue(name)
    outputs = [result._repr_html_(), result.head(1, 3)._repr_html_()]
    outputs += [] if result.findings is None else [result.findings._repr_html_()]
    for output in outputs:
        assert self_contained(output)
        assert len(output.encode()) < 200_000


def test_names_and_tokens_cannot_become_markup(plain: ScanResult) -> None:
    hostile = "<script>alert(1)</script>\u202e"
    run = plain.run | {"model": plain.run["model"] | {"name": hostile, "family": hostile}}
    result = ScanResult(plain.rows, plain.topn, run, plain.token_weights)
    for output in (result._repr_html_(), result.head(0, 0)._repr_html_()):
        assert "<script" not in output
        assert "\u202e" not in output
        assert "&lt;script&gt;" in output


def test_the_map_has_a_cell_for_each_head_that_names_it(large: ScanResult) -> None:
    titles = re.findall(r"<title>(L\d+H\d+) (\S+%)</title>", large._repr_html_())
    expected = {
        f"L{layer}H{head}": value
        for layer, head, value in large.heads.select("layer", "head", "separability").iter_rows()
    }
    assert {name for name, _ in titles} == set(expected)
    assert len(titles) == 30 * 32
    for name, shown in titles[::97]:
        assert float(shown.rstrip("%")) / 100 == pytest.approx(expected[name], abs=0.0051)


def luminance(color: str) -> float:
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_a_contrast_of_at_least_4_5(theme: str) -> None:
    colors = palette.THEMES[theme]
    assert all(contrast(colors[name], colors["page"]) >= 4.5 for name in ("ink", "soft", "good", "bad", "warning"))


def test_letters_on_cells_have_a_contrast_of_at_least_4_5() -> None:
    from attnscope.diagnosis.states import STATES

    assert all(contrast(ink_on(color), color) >= 4.5 for color in (*SCALE, *(state.color for state in STATES.values())))


def test_the_summary_is_what_the_command_line_prints(diagnosed: ScanResult) -> None:
    text = str(diagnosed.summary())
    assert text == repr(diagnosed.summary())
    assert diagnosed.findings is not None
    assert diagnosed.findings["verdict"]["headline"] in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert self_contained(diagnosed.summary()._repr_html_())


def test_the_summary_has_more_on_request(diagnosed: ScanResult) -> None:
    assert len(str(diagnosed.summary(verbose=True))) > len(str(diagnosed.summary()))


def test_paths_are_shown_by_their_last_part_and_tokens_with_what_cannot_be_seen(plain: ScanResult) -> None:
    run = plain.run | {"model": plain.run["model"] | {"name": "/a/folder/model.gguf"}}
    result = ScanResult(plain.rows, plain.topn, run, plain.token_weights)
    assert repr(result).startswith("ScanResult: model.gguf, gpt2, 3 layers x 5 heads, 0.1M parameters; 2 x 61 tokens")
    assert visible_token(" a\n\tb") == "\u00b7a\u21b5\u21e5b"


@pytest.mark.parametrize("width", [0, -1, "a"])
def test_a_width_that_is_none_is_refused(plain: ScanResult, width: Any) -> None:
    with pytest.raises(InputError, match=f"width takes a whole number from 1 up; received {width!r}"):
        plain.summary(width=width)


@pytest.mark.parametrize("folder", ["", None, 3, b"runs"])
def test_what_names_no_folder_is_refused_before_anything_is_written(
    plain: ScanResult, folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for act in (plain.save, attnscope.load_run):
        with pytest.raises(InputError, match=f"a folder is given as a string or a path; received {folder!r}"):
            act(folder)
    assert not list(tmp_path.iterdir())


# One line for each head


def test_heads_are_the_means_of_a_naive_aggregation(plain: ScanResult) -> None:
    """Rows at the longest length, averaged over windows; separability only where the support holds the top set."""
    rows: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    sets: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for line in plain.rows.to_dicts():
        if line["position"] == 60:
            rows[line["layer"], line["head"]].append(line)
    for line in plain.topn.to_dicts():
        if line["position"] == 60 and line["n"] == 5:  # the size nearest to 20
            sets[line["layer"], line["head"]].append(line)
    table = plain.heads
    assert table.height == LAYERS * HEADS
    for line in table.to_dicts():
        place = line["layer"], line["head"]
        for name in ("participation", "sink_weight", "max_weight", "entropy_ratio", "jacobian_norm", "logit_range"):
            values = [row[name] for row in rows[place]]
            assert len(values) == WINDOWS
            assert line[name] == pytest.approx(mean(values))
            assert line[f"{name}_spread"] == pytest.approx(np.std(values, ddof=1))
        for name in ("separability", "top_mass"):
            assert line[name] == pytest.approx(mean(row[name] for row in sets[place]))
        ratios = [row["distance"] / mean((row["expected_lower"], row["expected_upper"])) for row in sets[place]]
        assert line["distance_ratio"] == pytest.approx(mean(ratios))


def test_heads_have_the_same_columns_with_and_without_a_diagnosis(plain: ScanResult, diagnosed: ScanResult) -> None:
    assert plain.heads.schema == diagnosed.heads.schema
    assert plain.heads["state"].null_count() == plain.heads.height
    assert plain.heads["tokens_needed"].null_count() == plain.heads.height


def test_heads_have_what_the_diagnosis_found(diagnosed: ScanResult) -> None:
    assert diagnosed.findings is not None
    found = {(head["layer"], head["head"]): head for head in diagnosed.findings["heads"]}
    for line in diagnosed.heads.to_dicts():
        head = found[line["layer"], line["head"]]
        assert line["state"] == head["state"]
        assert line["sureness"] == head["sureness"]
        for name in ("tokens_needed", "growth_exponent", "null_uniform", "null_random", "error_local"):
            assert line[name] == head["evidence"][name], name
        for name in ("separability", "participation", "sink_weight", "max_weight"):
            assert line[f"{name}_diagnosed"] == head["evidence"][name]


def test_a_run_without_heads_has_an_empty_table(plain: ScanResult) -> None:
    empty = ScanResult(plain.rows.clear(), plain.topn.clear(), plain.run)
    assert empty.heads.height == 0
    assert bounded(repr(empty))
    assert self_contained(empty._repr_html_())


# One head


def test_a_head_has_its_numbers_rows_weights_and_pattern(plain: ScanResult) -> None:
    head = plain.head(2, 4)
    assert head.name == "L2H4"
    assert head["participation"] == plain.heads.filter(layer=2, head=4)["participation"].item()
    assert head.rows.height == 2 * WINDOWS
    assert set(head.topn["n"]) == {1, 5}
    assert plain.token_weights
    stored = plain.token_weights.weights.filter(layer=2, head=4).sort("weight", descending=True)
    assert head.weights["weight"].to_list() == stored["weight"].to_list()
    assert head.weights["token"].to_list() == [plain.token_weights.texts[key] for key in stored["key"]]
    assert head.pattern.height == 61


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((3, 0), "no layer 3; this model has layers 0 to 2"),
        ((0, 5), "no head 5 in layer 0, which has heads 0 to 4"),
        ((-1, 0), "layer takes a whole number from 0 up; received -1"),
        (("1", 0), "layer takes a whole number from 0 up; received '1'"),
    ],
)
def test_a_head_that_is_not_there_is_refused_with_the_ranges(plain: ScanResult, place: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        plain.head(*place)


def test_a_head_that_was_left_out_is_refused_with_the_reason(plain: ScanResult) -> None:
    without = {name: table.filter(pl.col("head") != 2) for name, table in (("rows", plain.rows), ("topn", plain.topn))}
    skipped = [{"layer": 1, "head": 2, "window": 0, "reason": "logits not finite"}]
    result = ScanResult(without["rows"], without["topn"], plain.run | {"skipped_heads": skipped})
    with pytest.raises(InputError, match="L1H2 was left out of this run: logits not finite"):
        result.head(1, 2)


def test_a_number_that_is_not_there_is_refused_with_those_that_are(plain: ScanResult) -> None:
    with pytest.raises(InputError, match="no number 'tokens_in_use' of a head; there are layer, head, state"):
        plain.head(0, 0)["tokens_in_use"]


# Charts


def values_of(chart: Any, layer: int = 0) -> list[dict[str, Any]]:
    content = chart.to_dict()
    assert vl_convert.vegalite_to_svg(content).startswith("<svg")
    part = content["layer"][layer]
    values: list[dict[str, Any]] = content["datasets"][(part.get("data") or content["data"])["name"]]
    return values


def test_a_map_has_the_numbers_of_the_table(diagnosed: ScanResult) -> None:
    for measure in ("separability", "sink_weight", "tokens_needed", "state"):
        values = values_of(diagnosed.plot.map(measure))
        expected = {(line["layer"], line["head"]): line[measure] for line in diagnosed.heads.to_dicts()}
        assert {(one["layer"], one["head"]): one[measure] for one in values} == expected


def test_maps_of_something_else_are_refused_with_those_that_are_there(plain: ScanResult) -> None:
    with pytest.raises(InputError, match="no map of 'tokens in use'; there are sureness, separability"):
        plain.plot.map("tokens in use")
    with pytest.raises(InputError, match="no map of 'state' without a diagnosis"):
        plain.plot.map("state")


def test_a_curve_of_one_head_has_its_means_and_bounds(plain: ScanResult) -> None:
    lines = [line for line in plain.topn.to_dicts() if (line["layer"], line["head"], line["position"]) == (1, 2, 60)]
    for one in values_of(plain.plot.curve("separability", 1, 2)):
        same = [line for line in lines if line["n"] == one["n"]]
        assert one["value"] == pytest.approx(mean(line["separability"] for line in same))
        assert one["separability_upper"] == pytest.approx(mean(line["separability_upper"] for line in same))


def test_a_curve_of_all_heads_has_the_median_and_the_range(plain: ScanResult) -> None:
    heads: dict[Any, list[float]] = defaultdict(list)
    for line in plain.rows.to_dicts():
        heads[line["position"] + 1, line["layer"], line["head"]].append(line["participation"])
    values = values_of(plain.plot.curve("participation"))
    assert [one["length"] for one in values] == [23, 61]
    for one in values:
        means = [mean(found) for (length, _, _), found in heads.items() if length == one["length"]]
        assert one["value"] == pytest.approx(np.median(means))
        assert (one["low"], one["high"]) == pytest.approx(tuple(np.quantile(means, [0.05, 0.95])))


@pytest.mark.parametrize("measure", ["participation", "entropy_ratio"])
def test_the_page_and_the_terminal_have_the_medians_of_the_curve(plain: ScanResult, measure: str) -> None:
    lines = plain.overview.median_by_length()
    values = values_of(plain.plot.curve(measure))
    assert lines["length"].to_list() == [one["length"] for one in values]
    assert lines[measure].to_list() == pytest.approx([one["value"] for one in values])


def test_curves_of_many_rows_are_against_powers_of_two() -> None:
    result = scan(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), length=61, top_n=[5], rows="all")
    values = values_of(result.plot.curve("max_weight", 0, 1))
    lines = [line for line in result.rows.to_dicts() if (line["layer"], line["head"]) == (0, 1)]
    assert [one["length"] for one in values] == [1, 2, 4, 8, 16, 32, 64]
    for one in values:
        inside = [line["max_weight"] for line in lines if one["length"] / 2 < line["length"] <= one["length"]]
        assert one["value"] == pytest.approx(mean(inside))


def test_curves_without_a_column_or_half_a_head_are_refused(plain: ScanResult) -> None:
    with pytest.raises(InputError, match="no curve of 'state'; there are top_mass"):
        plain.plot.curve("state")
    with pytest.raises(InputError, match="a layer and a head, or neither"):
        plain.plot.curve("separability", 1)


@pytest.mark.parametrize("top", [0, -1, 1.5, "a"])
def test_a_number_of_weights_that_is_none_is_refused(plain: ScanResult, top: Any) -> None:
    with pytest.raises(InputError, match=f"top takes a whole number from 1 up; received {top!r}"):
        plain.plot.weights(1, 2, top=top)


def test_weights_are_the_largest_of_the_last_row(plain: ScanResult) -> None:
    assert plain.token_weights
    stored = plain.token_weights.weights.filter(layer=1, head=2).sort("weight", descending=True).head(7)
    values = values_of(plain.plot.weights(1, 2, top=7))
    assert [one["weight"] for one in values] == stored["weight"].to_list()
    assert [one["key"] for one in values] == stored["key"].to_list()


@pytest.mark.parametrize("hide_first", [False, True])
def test_a_pattern_has_the_weights_of_its_rows(plain: ScanResult, hide_first: bool) -> None:
    assert plain.token_weights
    assert plain.token_weights.patterns is not None
    stored = {line["position"]: line for line in plain.token_weights.patterns.filter(layer=1, head=2).to_dicts()}
    values = values_of(plain.plot.pattern(1, 2, hide_first))
    assert len(values) == 61 * 62 / 2  # a causal row sees itself and those before; a key is a cell
    for one in values:
        row = stored[one["position"]]
        weight = row["weights"][one["first"]]
        if hide_first:
            rest = sum(each or 0 for each in row["weights"]) - row["first_key_weight"]
            weight = 0.0 if one["first"] == 0 else weight
            if one["weight"] is None:
                assert rest < 1e-5
                continue
            weight /= rest
        assert one["weight"] == pytest.approx(weight, abs=1e-4)
        assert one["end"] == one["first"] + 1


def test_a_row_without_its_first_key_sums_to_one(plain: ScanResult) -> None:
    sums: dict[int, float] = defaultdict(float)
    for one in values_of(plain.plot.pattern(0, 0, hide_first=True)):
        sums[one["position"]] += one["weight"] or 0
    assert [round(total, 4) for position, total in sums.items() if position] == [1.0] * 60


def test_a_run_of_an_older_version_has_no_pattern_and_says_so(plain: ScanResult) -> None:
    old = ScanResult(plain.rows, plain.topn, plain.run)
    with pytest.raises(InputError, match="no attention patterns"):
        old.plot.pattern(0, 0)
    with pytest.raises(InputError, match="no weights over the text"):
        old.plot.weights(0, 0)
    assert self_contained(old.head(0, 0)._repr_html_())


def test_charts_are_displayed_without_a_network(plain: ScanResult) -> None:
    one, other = plain.plot.map(), plain.plot.curve()
    joined = one | other
    assert joined.to_dict()["hconcat"]
    for chart in (one, joined, joined & one, joined | other):
        bundle = chart._repr_mimebundle_()
        assert bundle["image/svg+xml"].startswith("<svg")
        assert "text/html" not in bundle


# Showing


def test_show_writes_the_report_where_there_is_no_browser(
    plain: ScanResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(base.webbrowser, "open", lambda address: pytest.fail("no browser"))
    file = plain.show()
    assert "<!doctype html>" in file.read_text("utf-8").lower()
    assert str(file) in capsys.readouterr().out


def test_show_opens_the_report_of_a_saved_run(
    plain: ScanResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(base.webbrowser, "open", lambda address: opened.append(address) or True)
    saved = attnscope.load_run(plain.save(tmp_path / "a run"))
    assert saved.show() == (tmp_path / "a run" / "report.html").resolve()
    assert opened == [(tmp_path / "a run" / "report.html").resolve().as_uri()]
    assert tmp_path not in plain.show().parents  # saving changes no result


def test_show_displays_the_report_in_a_notebook(plain: ScanResult, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    fake, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell = type("ZMQInteractiveShell", (), {})()
    fake.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    plain.show()
    assert shown[0].startswith('<iframe srcdoc="&lt;!doctype html&gt;')


SESSION = """
import sys
from attnscope.show.result import temporary_page
if len(sys.argv) > 1:
    sys.ps1 = ">>> "
files = [temporary_page(word) for word in ("one", "two")]
assert [file.read_text() for file in files] == ["one", "two"]
assert files[0].parent == files[1].parent
"""


@pytest.mark.parametrize("kind", ["script", "session"])
def test_pages_share_a_folder_that_a_session_removes(kind: str, tmp_path: Path) -> None:
    """A script may end before the browser has read the page."""
    arguments = ["session"] if kind == "session" else []
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", SESSION, *arguments], env=environment, check=True)
    assert len(list(tmp_path.iterdir())) == (kind == "script")


# Findings


def test_findings_are_still_the_mapping_of_the_file() -> None:
    content = made_findings([(0, 0), (0, 1)])
    found = Diagnosis(content)
    assert found["verdict"] is content["verdict"]
    assert found == content
    assert dict(found) == content
    assert list(found) == list(content)
    assert found.get("nothing") is None
