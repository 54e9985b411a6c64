"""Bad input on the command line: one line on what was received, exit code 2, no file left. Faults 19 and 32."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnscope.capture import text as corpora
from attnscope.cli import main, run

DIGITS = "9" * 5000  # more than Python makes an integer of
LONG = "x" * 5000

Refused = Callable[[list[str]], str]

SCAN = [
    ("--rows", DIGITS, "--rows takes last, all or a whole number from 1 up; received '999"),
    ("--rows", "-1", "--rows takes last, all or a whole number from 1 up; received '-1'"),
    ("--rows", "1.5", "received '1.5'"),
    ("--rows", "", "received ''"),
    ("--length", DIGITS, "--length takes a whole number; received '999"),
    ("--length", "64.7", "--length takes a whole number; received '64.7'"),  # was rounded to 65
    ("--length", "1e3", "received '1e3'"),
    ("--length", "-5", "--length takes a whole number from 1 up; received -5"),
    ("--length", "9999999999", "--length takes a whole number up to 2,147,483,647; received 9999999999"),
    ("--lengths", "", "--lengths takes whole numbers separated by commas, e.g. 1,5,20; received ''"),
    ("--lengths", "8,,9", "received '8,,9'"),
    ("--lengths", DIGITS, "received '999"),
    ("--lengths", "0", "--lengths takes a whole number from 1 up; received 0"),
    ("--top-n", "nan", "--top-n takes whole numbers"),
    ("--windows", DIGITS, "--windows takes a whole number; received '999"),
    ("--windows", "0", "--windows takes a whole number from 1 up; received 0"),
    ("--temperature", "nan", "--temperature takes positive numbers; received nan"),
    ("--temperature", "1e999", "--temperature takes positive numbers; received inf"),
    ("--temperature", "", "--temperature takes numbers separated by commas"),
    ("--normalizer", "", "no normalizer is named ''"),
    ("--normalizer", LONG, "(5,002 characters)"),
    ("--normalizer", "entmax:alpha=nan", "received nan"),
    ("--normalizer", f"topk:k={DIGITS}", "k must be a whole number"),
    ("--memory-budget", "nan", "received 'nan'"),
    ("--delta-max-length", DIGITS, "--delta-max-length takes a whole number"),
    ("--device", "", "device '' cannot be used"),
    ("--dtype", "", "--dtype"),
    ("--text", "/dev/zero", "/dev/zero has more than 1 MiB; give a part of it as --text"),
    ("--text", "/dev/null", "/dev/null is empty"),
    ("--text", "large.txt", "large.txt has more than 1 MiB"),
    ("--text", "folder", "'folder' is a folder, not saved by datasets; give its files, e.g. folder/*.txt"),
    ("--text", "loop", "Too many levels of symbolic links"),
    ("--text", "a-file/x", "Not a directory"),
    ("--text", "binary", "binary is not UTF-8 text (a zero byte at offset 0)"),
    ("--text", "utf16", "utf16 is not UTF-8 text (a zero byte at offset 1)"),
    ("--text", "", "--text takes the path of a text file; received nothing"),
    ("--text", "a\0b", "embedded null byte"),
    ("--text", "\udcff", "cannot read the text '\\udcff'"),
    ("--text", LONG, "File name too long"),
    ("--text", "corpus:nothing", "unknown corpus 'nothing'"),
    ("--out", "", "--out takes a folder; received nothing"),  # was the current folder
    ("--out", "a-file", "cannot write to the output folder 'a-file': File exists"),
    ("--out", "a-file/x", "Not a directory"),
    ("--out", "/proc/x", "cannot write to the output folder '/proc/x'"),
    ("--out", "a\0b", "embedded null"),  # Python 3.13 says character, before: byte
    ("--out", "\udcff", "surrogates not allowed"),  # was found out after the measuring
    ("--out", "loop/x", "Too many levels of symbolic links"),
    ("--out", LONG, "File name too long"),
]
OTHERS = [
    ("compare", "--normalizers", "", "no normalizer is named ''"),
    ("compare", "--windows", DIGITS, "--windows takes a whole number"),
    ("compare", "--top-n", "1.5", "--top-n takes a whole number; received '1.5'"),
    ("compare", "--calibration-windows", "0", "--calibration-windows takes a whole number from 1 up"),
    ("compare", "--lengths", "x", "received 'x'"),
    ("compare", "--out", "a-file/x", "Not a directory"),
    ("guidelines", "--windows", "0", "--windows takes a whole number from 1 up"),
    ("guidelines", "--top-n", DIGITS, "--top-n takes a whole number"),
    ("guidelines", "--text", "/dev/zero", "more than 1 MiB"),
    ("reproduce", "--vectors", "value,x", "received 'x'"),
    ("reproduce", "--windows", DIGITS, "--windows takes a whole number"),
    ("reproduce", "--seed", "-1", "--seed takes a whole number from 0 up; received -1"),
    ("reproduce", "--text", "/dev/zero", "more than 1 MiB"),
    ("reproduce", "--out", "a-file", "File exists"),
]
WITHOUT_MODEL = [
    (["audit", "--seed", DIGITS], "--seed takes a whole number"),
    (["audit", "--seed", "9999999999"], "--seed takes a whole number up to"),
    (["audit", "--claim", ""], "no claim is called ''"),
    (["audit", "--own", "folder"], "none at folder"),
    (["audit", "--own", "binary"], "binary cannot be run: SyntaxError"),
    (["bench", "scan", "--json"], "type python -m benchmarks"),
    (["serve"], "no folder at 'runs'"),  # a file
    (["serve", "a-file"], "no folder at 'a-file'"),
    (["serve", "folder", "--port", DIGITS], "--port takes a whole number"),
    (["serve", "folder", "--port", "70000"], "received 70000"),
    (["serve", "folder", "--host", ""], "--host takes an address"),  # was every address of the machine
    (["serve", "folder", "--host", LONG], "cannot listen on xxx"),
    ([LONG], "Unknown command"),
]


@pytest.fixture
def refused(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """A function that runs a command in a folder of traps, and returns the one line that it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpora, "LARGEST", 1 << 20)
    Path("book.txt").write_text(text)
    Path("large.txt").write_bytes(b"a" * (1 << 20) + b"\n")
    Path("binary").write_bytes(bytes(range(256)))
    Path("utf16").write_bytes("An ordinary text.".encode("utf-16-le"))
    Path("loop").symlink_to("loop")
    Path("folder").mkdir()
    for name in ("a-file", "runs"):
        Path(name).write_text("in the way")
    before = sorted(tmp_path.rglob("*"))

    def line(arguments: list[str]) -> str:
        assert run(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (only,) = captured.err.splitlines()
        assert only.startswith("attnscope: ")
        assert len(only) < 1000
        assert sorted(tmp_path.rglob("*")) == before
        return only

    return line


def named(*case: object) -> str:
    return " ".join(str(part)[:20] for part in case)


@pytest.mark.parametrize(
    ("verb", "option", "value", "message"),
    [pytest.param("scan", *case, id=ascii(named(*case[:2]))) for case in SCAN]
    + [pytest.param(*case, id=ascii(named(*case[:3]))) for case in OTHERS],
)
def test_a_bad_value_is_one_line(
    refused: Refused, model_folder: Path, verb: str, option: str, value: str, message: str
) -> None:
    options = {"--text": "book.txt", "--out": "out"} | {option: value}
    assert message in refused([verb, str(model_folder), *(word for pair in options.items() for word in pair)])


@pytest.mark.parametrize(
    ("arguments", "message"), WITHOUT_MODEL, ids=[ascii(named(*case[0])) for case in WITHOUT_MODEL]
)
def test_a_bad_command_is_one_line(refused: Refused, arguments: list[str], message: str) -> None:
    assert message in refused(arguments)


def attnscope(*arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "attnscope.cli", *arguments], **streams)


def test_paths_that_are_no_text_are_printed_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text or model may lie in one, and the summary names it."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # `main` would set it for this process
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8"))
    monkeypatch.setattr("attnscope.cli.handle_interrupts", lambda: None)
    monkeypatch.setattr("attnscope.cli.run", lambda _: print("\udcff.txt"))
    with pytest.raises(SystemExit):
        main()
    assert written.getvalue() == b"\\udcff.txt\n"


@pytest.mark.parametrize("arguments", ["scan --help", "audit --claim lemma-1 --json"])
def test_a_closed_pipe_ends_a_command_quietly(arguments: str) -> None:
    """As `| head` closes it; 141 is what a shell reports of other commands then."""
    reader, writer = os.pipe()
    os.close(reader)
    process = attnscope(*arguments.split(), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        process = attnscope("--version", stdout=full, stderr=subprocess.PIPE)
        _, errors = process.communicate(timeout=120)
    assert errors == b"attnscope: cannot use standard output: No space left on device\n"
    assert process.returncode == 2


def test_messages_that_nobody_can_read_keep_the_exit_code() -> None:
    one, other = socket.socketpair()
    other.close()
    with one:
        process = attnscope("nothing", stdout=subprocess.DEVNULL, stderr=one.fileno())
        assert process.wait(timeout=60) == 2


def test_closed_standard_streams_are_no_files_of_the_run() -> None:
    """A file opened later would otherwise take their number, and be written to by prints."""
    command = f'"{sys.executable}" -m attnscope.cli --version <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", command], timeout=120).returncode == 0
