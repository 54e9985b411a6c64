"""The form for a new scan: defaults, and what is refused before a scan is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import Served

from attnscope.serve.app import FormError, parse_form, refuse_missing


def test_the_form_is_checked() -> None:
    asked = parse_form({"model": " ", "length": "64", "lengths": "8, 16", "windows": "", "normalizers": "sparsemax"})
    assert (asked.model, asked.length, asked.lengths, asked.windows) == (None, 64, [8, 16], 1)
    assert (asked.rows, asked.normalizers, asked.source) == ("last", ["sparsemax"], "sample")
    assert (asked.verify, asked.bounds) == (False, None)
    assert parse_form({"bounds": "paper"}).bounds == "paper"


def test_a_scan_is_diagnosed_unless_that_is_unticked() -> None:
    assert parse_form({}).diagnose
    assert not parse_form({"diagnose": False}).diagnose
    tried = parse_form({"diagnose": False, "verify": "on"})
    assert (tried.diagnose, tried.verify) == (True, True)


@pytest.mark.parametrize(
    ("form", "field", "message"),
    [
        ({"diagnose": "maybe"}, "diagnose", "takes true or false"),
        ({"text": "a.txt", "pasted": "words"}, "text", "not both"),
        ({"model": ["x"]}, "model", "takes text"),
        ({"windows": "0"}, "windows", "from 1 up; received 0"),
        ({"length": "64,128"}, "length", "takes one whole number"),
        ({"length": "many"}, "length", "takes one whole number"),
        ({"rows": "first"}, "rows", "received 'first'"),
        ({"lengths": "8;9"}, "lengths", "received '8;9'"),
    ],
)
def test_a_wrong_value_names_its_field(form: dict[str, str], field: str, message: str) -> None:
    with pytest.raises(FormError, match=message) as raised:
        parse_form(form)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("form", "field", "message"),
    [
        ({"model": "/no/such/model"}, "model", "no model at '/no/such/model'"),
        ({"model": "missing.gguf"}, "model", "no GGUF file at 'missing.gguf'"),
        ({"model": "EMPTY"}, "model", "has no config.json"),
        ({"model": "x" * 5000}, "model", "File name too long"),
        ({"text": "/no/such/text"}, "text", "No such file"),
        ({"text": "EMPTY"}, "text", "Is a directory"),
        ({"text": "-"}, "text", "for the command line"),
        ({"text": "corpus:iliad"}, "text", "unknown corpus 'iliad'"),
        ({"normalizers": "sparsemax,entmx"}, "normalizers", "no normalizer is named 'entmx'"),
        ({"normalizers": "entmax:beta=2"}, "normalizers", "beta"),
    ],
)
def test_what_is_not_there_is_refused_before_a_scan_starts(
    served: Served, tmp_path: Path, form: dict[str, str], field: str, message: str
) -> None:
    before = sorted(path.name for path in served.root.iterdir())
    answer = served.post("/api/scans", {key: value.replace("EMPTY", str(tmp_path)) for key, value in form.items()})
    assert answer.status == 400
    assert answer.json()["field"] == field
    assert message in answer.json()["error"]
    assert sorted(path.name for path in served.root.iterdir()) == before


def test_an_encoder_decoder_is_scanned_only_without_a_diagnosis(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}', encoding="utf-8")
    with pytest.raises(FormError, match="untick it") as raised:
        refuse_missing(parse_form({"model": str(tmp_path)}))
    assert raised.value.field == "diagnose"
    refuse_missing(parse_form({"model": str(tmp_path), "diagnose": False}))


def test_models_of_the_hub_and_books_to_download_are_let_through(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnscope.capture.checkpoints._ask_hub", lambda name, revision: {})
    refuse_missing(parse_form({"model": "openai-community/gpt2", "text": "corpus:war-and-peace"}))
    refuse_missing(parse_form({"model": str(model_folder), "text": __file__}))


def test_a_line_break_is_not_the_embedded_model() -> None:
    assert parse_form({"model": "\n"}).model == "\n"  # which `locate` refuses
