"""Numbers of NumPy and torch where Python's are accepted, and texts with half of Project Gutenberg's marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import build

from attnscope.capture.text import read_text
from attnscope.errors import InputError
from attnscope.measure.settings import memory_size, plan, row_choice
from attnscope.scanning import ScanResult, scan
from attnscope.studies.paper.settings import plan as plan_reproduction


def test_numbers_of_numpy_are_numbers(tmp_path: Path, tokenizer: Any, text: str) -> None:
    """The record is the same, and is written: JSON knows only Python's numbers."""
    numpy = {"length": np.int64(32), "lengths": np.array([16, 32]), "top_n": np.array([2, 5], np.int32)}
    more = {"windows": np.int16(2), "delta_max_length": np.uint8(64), "temperatures": np.array([0.5], np.float32)}
    result = scan(build("gpt2"), text, tokenizer=tokenizer, out=tmp_path, **numpy, **more)  # type: ignore[arg-type]
    plain: dict[str, Any] = {"length": 32, "lengths": [16, 32], "top_n": [2, 5], "windows": 2}
    same = scan(build("gpt2"), text, tokenizer=tokenizer, delta_max_length=64, temperatures=[0.5], **plain)
    assert ScanResult.load(tmp_path).rows.equals(same.rows)
    assert result.run["settings"] == same.run["settings"]


@pytest.mark.parametrize("number", [np.int64(5), np.uint8(5), np.array(5), torch.tensor(5)], ids=repr)
def test_a_number_of_any_library_is_the_integer(number: Any) -> None:
    settings = plan(64, windows=number, rows=number, top_n=number, memory_budget=number)
    assert (settings.windows, settings.rows, settings.top_n, settings.memory_budget) == (5, 5, (5,), 5)
    assert all(type(value) is int for value in (settings.windows, settings.rows, *settings.top_n))
    assert plan_reproduction(64, windows=number, seed=number).windows == 5


@pytest.mark.parametrize(
    "number",
    [
        np.float64(5),
        np.bool_(True),
        np.array([[5]]),
        np.int64(0),
        np.datetime64("2020"),
        10**5000,
        -(10**5000),
        "5",
        2.5,
    ],
    ids=["float", "bool", "matrix", "zero", "date", "huge", "huge and negative", "text", "half"],
)
def test_what_is_no_count_is_refused_in_one_line(number: Any) -> None:
    for take in (
        lambda: plan(64, windows=number),
        lambda: plan(64, lengths=[number]),
        lambda: plan(64, top_n=[number]),
    ):
        with pytest.raises(InputError, match="takes a whole number") as caught:
            take()
        assert len(str(caught.value)) < 500
    if number != "5":
        with pytest.raises(InputError, match=r"^rows takes last, all or a whole number"):
            row_choice(number)
    with pytest.raises(InputError):
        plan(64, temperatures=[10**400])


def test_a_budget_of_any_number_of_digits_is_a_budget() -> None:
    assert memory_size("9" * 5000 + "GB") == 2**90


FOOTER = "*** END OF THE PROJECT GUTENBERG EBOOK A TALE ***\n\nUpdated editions will replace the previous one.\n"


@pytest.mark.parametrize("credit", ["", "End of the Project Gutenberg EBook of A Tale, by Nobody\n\n"])
def test_a_footer_without_a_header_is_cut_off(tmp_path: Path, credit: str) -> None:
    book = tmp_path / "book.txt"
    book.write_text(f"It was a dark night.\n\nThe end.\n\n{credit}{FOOTER}")
    assert read_text(book).content == "It was a dark night.\n\nThe end.\n"


def test_a_text_about_project_gutenberg_is_kept_to_the_byte(tmp_path: Path) -> None:
    content = "A history.\r\nEnd of Project Gutenberg as we knew it: the *** END OF mark goes on.\r\n"
    book = tmp_path / "book.txt"
    book.write_bytes(content.encode())
    assert read_text(book).content == content
