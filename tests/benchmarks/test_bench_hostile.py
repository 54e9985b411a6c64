"""What the benchmarks refuse: one line on standard error, and exit code 2; and their help."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import BENCHMARKS, app, run

DIGITS = "9" * 5000
REFUSED = [
    (["normalizers", "--rows", "9" * 4000], "--rows takes a whole number up to"),
    (["normalizers", "--lengths", "0"], "--lengths takes a whole number from 1 up"),
    (["normalizers", "--only", ""], "no benchmark is named"),
    (["scan", "--layers", DIGITS], "--layers takes a whole number"),
    (["scan", "--width", "1200000000"], "GiB of memory"),
    (["scan", "--models", ""], "received none"),
    (["magic"], "Unknown command"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=lambda value: " ".join(value)[:30])
def test_wrong_options_are_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("benchmarks: ")
    assert message in line


def test_without_a_name_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_option_of_a_benchmark_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert "progress" not in capsys.readouterr().out
    for argument in app[name].assemble_argument_collection():
        assert argument.parameter.help or not argument.parameter.show, argument.name
