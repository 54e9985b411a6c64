"""The form for a new scan: its fields, and what is refused before a scan is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from attnscope.capture.checkpoints import locate
from attnscope.capture.text import BOOKS, PREFIX, read_text
from attnscope.errors import AttnscopeError, InputError, shown, whole_number
from attnscope.measure.settings import row_choice

Value = TypeVar("Value")


class FormError(InputError):
    """A field of the form that cannot be right; the page shows the message beside the field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class ScanRequest:
    """The checked settings of a scan from the form."""

    model: str | None
    text: str | None
    pasted: str | None
    length: int | None
    lengths: list[int] | None
    rows: str
    windows: int
    normalizers: list[str]
    bounds: str | None
    diagnose: bool
    verify: bool
    source: str


_FIELDS = {field.name for field in fields(ScanRequest)} - {"source"}


def parse_form(form: dict[str, Any]) -> ScanRequest:
    """The settings of a scan, with the types and ranges of the form's fields checked; unset fields have defaults."""
    unknown = sorted(set(form) - _FIELDS)
    if unknown:
        raise InputError(f"a scan has no setting {shown(unknown[0])}; it has {', '.join(sorted(_FIELDS))}")

    def content(key: str) -> str | None:
        value = form.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise FormError(key, f"{key} takes text; received {shown(value)}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise FormError(key, f"{key} is no Unicode text: a lone surrogate at offset {error.start}") from None
        if "\0" in value:
            raise FormError(key, f"{key} has a zero byte at offset {value.index(chr(0))}; leave it out")
        return value if value.strip(" ") else None

    def text(key: str) -> str | None:
        value = content(key)
        return None if value is None else value.strip() or value  # a line break is no name, and not nothing

    def numbers(key: str) -> list[int]:
        value = text(key) or ""
        try:
            found = [int(part) for part in value.split(",") if part.strip()]
        except ValueError:
            raise FormError(key, f"{key} takes whole numbers separated by commas; received {shown(value)}") from None
        return [_of_field(key, partial(whole_number, key, one)) for one in found]

    def number(key: str) -> int | None:
        value = text(key)
        if value is not None and not value.isdecimal():
            raise FormError(key, f"{key} takes one whole number; received {shown(value)}")
        found = numbers(key)
        return found[0] if found else None

    def checked(key: str, default: bool) -> bool:
        value = form.get(key, default)
        if value not in (True, False, "on", ""):
            raise FormError(key, f"{key} takes true or false; received {shown(value)}")
        return bool(value)

    pasted, path = content("pasted"), text("text")
    if pasted and path:
        raise FormError("text", "give a text file or pasted text, not both")
    rows = text("rows") or "last"
    _of_field("rows", partial(row_choice, rows))
    verify = checked("verify", False)
    return ScanRequest(
        text("model"),
        path,
        pasted,
        number("length"),
        numbers("lengths") or None,
        rows,
        number("windows") or 1,
        [part for part in (text("normalizers") or "").split(",") if part],
        text("bounds"),
        checked("diagnose", True) or verify,
        verify,
        "pasted text" if pasted else path or "sample",
    )


def refuse_missing(request: ScanRequest) -> None:
    """Raise FormError for what is not there or cannot be read, or cannot be done. May ask the model hub."""
    if request.model is not None:
        _of_field("model", partial(locate, request.model))
        if request.diagnose and _is_encoder_decoder(Path(request.model) / "config.json"):
            raise FormError("diagnose", "a diagnosis takes decoders and encoders, not encoder-decoders: untick it")
    path = request.text
    if path == "-":
        raise FormError("text", "text takes the path of a file; standard input is for the command line")
    is_book = path is not None and path.startswith(PREFIX) and path.removeprefix(PREFIX) in BOOKS
    if path is not None and not is_book:  # a book is downloaded by the scan
        _of_field("text", partial(read_text, path))
    if request.normalizers:
        from attnscope.normalizers import parse  # loads torch

        for spec in request.normalizers:
            _of_field("normalizers", partial(parse, spec))


def _is_encoder_decoder(config: Path) -> bool:
    """Whether a model folder's configuration says so; False where it cannot be read, which the scan will refuse."""
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("is_encoder_decoder") is True


def _of_field(field: str, check: Callable[[], Value]) -> Value:
    """What `check` returns; its errors name the field."""
    try:
        return check()
    except AttnscopeError as error:
        raise FormError(field, str(error)) from None
    except OSError as error:
        raise FormError(field, f"cannot use {shown(error.filename)}: {error.strerror}") from None
