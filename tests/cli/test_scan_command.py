"""`attnscope scan` as a user calls it: output, exit codes, bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from models import build, byte_tokenizer
from rich.console import Console

from attnscope.cli import run
from attnscope.scanning import scan
from attnscope.show import terminal
from attnscope.swapping import swap

TABLES = ["patterns.parquet", "rows.parquet", "topn.parquet", "weights.parquet"]
FILES = sorted([*TABLES, "report.html", "run.json", "tokens.json"])


@pytest.fixture
def book(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a book.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_scan_writes_its_files_and_prints_a_map(
    model_folder: Path, book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["scan", str(model_folder), "--text", str(book), "--length", "64", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == FILES
    printed = capsys.readouterr().out
    for part in ("3 layers x 5 heads", "Separability", "L2", "H4", "Participation", "report.html"):
        assert part in printed
    assert "By length" not in printed


def test_what_has_no_value_is_a_dash(
    model_folder: Path, book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights below zero have no sets; nor has anything that a model swapped so prints of them."""
    common = ["--text", str(book), "--length", "64", "--lengths", "64"]
    raw = ["--normalizer", "sa_softmax_raw"]
    assert run(["scan", str(model_folder), *common, *raw, "--out", str(tmp_path / "what if")]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "sa_softmax_raw" in line)
    assert line.split()[:3] == ["sa_softmax_raw", "-", "-"]
    model = build("gpt2")
    with swap(model, "sa_softmax_raw"):
        result = scan(model, book, tokenizer=byte_tokenizer(), length=64, lengths=[64])
    terminal.write(Console(width=120), result.blocks(verbose=True), verbose=True)
    printed = capsys.readouterr().out
    assert [line.split()[1:3] for line in printed.splitlines() if line.split()[:1] == ["20"]] == [
        ["-", "-"],
        ["-", "-"],
    ]


@pytest.mark.parametrize("bounds", [None, "paper"])
def test_the_summary_says_how_to_measure_the_paper_bounds(
    bounds: str | None, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: Any = {"tokenizer": byte_tokenizer(), "length": 64, "bounds": bounds}
    result = scan(build("gpt2"), book, **options)
    terminal.write(Console(width=200), result.blocks(verbose=True), verbose=True)
    assert ("-: measured with bounds='paper'" in capsys.readouterr().out) == (bounds is None)


def test_json_prints_one_object_and_nothing_else(
    model_folder: Path, book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code = run(["scan", str(model_folder), "--text", str(book), "--length", "64", "--out", str(out), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert answer["run"]["settings"]["length"] == 64
    assert len(answer["heads"]) == 15
    assert sorted(answer["files"]) == FILES
    assert all(Path(path).is_file() for path in answer["files"].values())


def test_options_reach_the_scan(model_folder: Path, book: Path, tmp_path: Path) -> None:
    options = ["--lengths", "16,48", "--top-n", "2,7", "--windows", "2", "--vectors", "hidden", "--dtype", "float64"]
    assert run(["scan", str(model_folder), "--text", str(book), "--out", str(tmp_path / "out"), *options]) == 0
    table = pl.read_parquet(tmp_path / "out" / "topn.parquet")
    assert table["length"].unique().sort().to_list() == [16, 48]
    assert table["n"].unique().sort().to_list() == [2, 7]
    assert table["window"].unique().sort().to_list() == [0, 1]
    record = json.loads((tmp_path / "out" / "run.json").read_text("utf-8"))
    assert record["settings"]["vectors"] == "hidden"
    assert record["model"]["dtype"] == "float64"


def test_the_papers_bounds_come_on_request(model_folder: Path, book: Path, tmp_path: Path) -> None:
    """Without --bounds paper, and in rows beyond --delta-max-length keys, their columns are null and no other is."""
    common = ["scan", str(model_folder), "--text", str(book), "--lengths", "24,48", "--top-n", "3"]
    assert run([*common, "--out", str(tmp_path / "none")]) == 0
    assert run([*common, "--out", str(tmp_path / "some"), "--bounds", "paper", "--delta-max-length", "24"]) == 0
    assert run([*common, "--out", str(tmp_path / "all"), "--bounds", "paper"]) == 0
    none, some, full = (pl.read_parquet(tmp_path / name / "topn.parquet") for name in ("none", "some", "all"))
    bounds = [
        "distance_bound_printed",
        "delta",
        "separability_lower_printed",
        "separability_upper_printed",
        "separability_lower",
    ]
    assert [name for name in none.columns if none[name].null_count()] == bounds
    assert all(none[name].null_count() == len(none) for name in bounds)
    assert [name for name in some.columns if some.filter(length=48)[name].null_count()] == bounds
    assert some.filter(length=24).equals(full.filter(length=24))
    assert none.drop(bounds).equals(full.drop(bounds))
    assert some.drop(bounds).equals(full.drop(bounds))
    assert full.null_count().sum_horizontal().item() == 0
    assert run([*common, "--out", str(tmp_path / "old"), "--bounds", "paper", "--delta-keys", "24"]) == 0  # former name
    assert pl.read_parquet(tmp_path / "old" / "topn.parquet").equals(some)
    assert run([*common, "--bounds", "proved"]) == 2
    assert run([*common, "--delta-max-length", "0"]) == 2


REMOTE = """
import transformers

class Config(transformers.GPT2Config):
    model_type = "unheard_of"

class Model(transformers.GPT2LMHeadModel):
    config_class = Config
"""


@pytest.mark.parametrize("verb", ["scan", "compare", "guidelines", "reproduce"])
def test_code_that_comes_with_a_model_runs_only_on_request(
    verb: str,
    model_folder: Path,
    book: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Fault 9."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "modules")])
    folder = tmp_path / "remote"
    shutil.copytree(model_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    code = {"AutoConfig": "code_of_model.Config", "AutoModelForCausalLM": "code_of_model.Model"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "unheard_of", "auto_map": code}))
    (folder / "code_of_model.py").write_text(REMOTE + f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    command = [verb, str(folder), "--text", str(book), "--out", str(tmp_path / "out")]
    assert run(command) == 2
    assert "--trust-remote-code" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    if verb == "scan":
        assert run([*command, "--length", "24", "--trust-remote-code"]) == 0
        assert json.loads((tmp_path / "out" / "run.json").read_text())["model"]["family"] == "unheard_of"
    else:  # the model is loaded; what follows is not the matter here
        run([*command, "--trust-remote-code", *(["--length", "999"] if verb == "reproduce" else ["--lengths", "999"])])
    assert (tmp_path / "ran").exists()


def test_text_from_standard_input(
    model_folder: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run(["scan", str(model_folder), "--text", "-", "--length", "32", "--out", str(tmp_path / "out")]) == 0


def test_results_go_to_a_dated_folder_by_default(
    model_folder: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["scan", str(model_folder), "--text", str(book), "--length", "32"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "run.json").is_file()


def test_a_broken_head_ends_with_exit_code_3(
    book: Path, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault 11."""
    model = build("llama-mqa")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0] = torch.inf
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    code = run(["scan", str(tmp_path / "model"), "--text", str(book), "--length", "32", "--out", str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert code == 3
    assert "L0H0 left out" in captured.err
    assert (tmp_path / "out" / "run.json").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["no/such/model"], "no/such/model"),
        (["./missing"], "no model at './missing'"),
        (["missing.gguf"], "no GGUF file"),
        (["--text", "missing.txt"], "missing.txt"),
        (["--text", "empty.txt"], "empty"),
        (["--text", "latin1.txt"], "not UTF-8"),
        (["--text", "short.txt"], "has 5 tokens"),
        (["--length", "4096"], "128 positions"),
        (["--length", "many"], "many"),
        (["--lengths", "8;16"], "8;16"),
        (["--top-n", "64", "--length", "64"], "use one below 64"),
        (["--top-n", "1.5"], "1.5"),
        (["--vectors", "keys"], "keys"),
        (["--dtype", "int8"], "int8"),
        (["--device", "tpu:9"], "tpu:9"),
        (["--windows", "0"], "received 0"),
        (["--device", "meta"], "meta"),
        (["--revision", "main"], "--revision main"),
        (["--out", "x" * 300], "too long"),
        (["--unknown"], "--unknown"),
        (["--out", "a-file/out"], "a-file/out"),
        (["--bos", "--windows", "900"], "tokens, too few"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(
    options: list[str],
    message: str,
    model_folder: Path,
    book: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Faults 6, 19 and 20."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9 " * 500)
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "a-file").write_text("in the way")
    before = sorted(path.name for path in tmp_path.iterdir())
    names_model = not options[0].startswith("--")
    arguments = ["scan", *([] if names_model else [str(model_folder)]), *options]
    arguments += [] if "--text" in options else ["--text", str(book)]
    arguments += [] if "--out" in options else ["--out", "results"]
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("attnscope: ")
    assert message in line
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only folder")
def test_a_read_only_folder_is_refused(model_folder: Path, book: Path, tmp_path: Path) -> None:
    """Fault 19."""
    tmp_path.chmod(0o555)
    try:
        assert run(["scan", str(model_folder), "--text", str(book), "--out", str(tmp_path / "out")]) == 2
    finally:
        tmp_path.chmod(0o755)


def test_help_and_import_load_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, attnscope, attnscope.cli\n"
        "attnscope.cli.run(['scan', '--help'])\n"
        "heavy = {'torch', 'transformers', 'polars', 'altair', 'numba'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "--top-n" in answer.stdout


@pytest.mark.parametrize("module", ["attnscope", "attnscope.cli"])
def test_version_is_the_packages(module: str) -> None:
    import attnscope

    answer = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == attnscope.__version__
