"""Runs over a corpus: speed with workers, memory of the driver, time of the report, and whether all tables are equal.

Every scan runs in a process of its own, with one thread here and in each worker. Times are those after start-up: the
model is loaded, by this process or by its workers. Scans in this process, with one worker and with two take turns, and
ratios are medians over such rounds. One more scan is killed with SIGKILL when half of its windows are finished, and
started again.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from attnscope.engine.ray_engine import import_ray
from attnscope.errors import AttnscopeError, InputError, parameter, whole_number
from attnscope.options import ModelOption, WholeNumber, Words
from attnscope.progress import Step, reporting
from attnscope.store.manifest import FINISHED, UNFINISHED, Manifest
from benchmarks.options import Hidden
from benchmarks.resident import environment, peak_so_far

PARTS = ("speed", "memory")
_WORKERS = {"in_process": None, "one_worker": 1, "two_workers": 2}
_SHORT = 16  # tokens of the windows of which there are many
# Ray gives its workers a low priority, which would count whatever else the machine does as their time.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}


def measure(
    model: ModelOption = None,
    /,
    *,
    length: WholeNumber = 256,
    windows: WholeNumber = 64,
    many: WholeNumber = 10_000,
    repeats: WholeNumber = 3,
    only: Words = PARTS,
    progress: Hidden = None,
) -> dict[str, Any]:
    """Time scans with two Ray workers, one, and none, compare their tables, and measure the driver of a large run.

    Every worker has one thread, and so has the scan without workers. Needs the extra attnscope[ray].

    For example:

    - `python -m benchmarks scale model.gguf --json`
    - `python -m benchmarks scale --only memory --many 2000`

    Parameters
    ----------
    length
        Tokens in a window of the scans that are timed.
    windows
        How many windows they have.
    many
        Short windows of the large run, with the embedded model; its memory is compared with that of 100 windows.
    repeats
        How often the scans are timed, in turn; medians of ratios are reported.
    only
        speed: time, and whether tables are equal, also after a kill; memory: the large run and its report.
    """
    for name, value, least in (
        ("length", length, 2),
        ("windows", windows, 4),
        ("many", many, 200),
        ("repeats", repeats, 1),
    ):
        whole_number(name, value, least)
    for name in only:
        if name not in PARTS:
            raise InputError(f"{parameter('only')} takes {' or '.join(PARTS)}; received {name!r}")
    ray = import_ray()
    report: dict[str, Any] = {"benchmark": "scale", "ray": ray.__version__, "cores": os.cpu_count(), "threads": 1}
    with tempfile.TemporaryDirectory(prefix="attnscope-") as folder, reporting(progress) as show:
        root = Path(folder)
        if "speed" in only:
            text = _corpus(root, length * windows)
            scan = {"model": model, "text": text, "length": length, "windows": windows}
            report |= _speed(root, scan, repeats, show)
        if "memory" in only:
            report |= _memory(root, many, show)
    return report


def _corpus(root: Path, tokens: int) -> str:
    """A file of documents, the sample text again and again: at least so many tokens of any tokenizer."""
    from attnscope.capture.text import read_text

    content = read_text(None).content
    file = root / f"{tokens}.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for number in range(1 + 8 * tokens // len(content)):  # no token has more than 8 characters on the average
            lines.write(json.dumps({"text": f"{number}. {content}"}) + "\n")
    return str(file)


def _speed(root: Path, scan: dict[str, Any], repeats: int, show: Any) -> dict[str, Any]:
    rounds: list[dict[str, float]] = []
    tables: dict[str, str] = {}
    for number in range(repeats):
        seconds: dict[str, float] = {}
        for name, workers in _WORKERS.items():
            show(Step(len(_WORKERS) * number + len(seconds), len(_WORKERS) * repeats + 1, name.replace("_", " ")))
            out = root / f"{name}-{number}"
            seconds[name] = round(_run(scan | {"workers": workers, "out": str(out)})["seconds"], 3)
            tables.setdefault(name, _digest(out))
        rounds.append(seconds)
    show(Step(len(_WORKERS) * repeats, len(_WORKERS) * repeats + 1, "killed and resumed"))
    out = root / "killed"
    finished = _killed(scan | {"workers": 2, "out": str(out)}, out)
    _run(scan | {"workers": 2, "out": str(out)})
    tables["killed_and_resumed"] = _digest(out)
    return {
        "model": scan["model"] or "sample",
        "length": scan["length"],
        "windows": scan["windows"],
        "seconds": rounds,
        "two_workers_to_one": round(statistics.median(one["one_worker"] / one["two_workers"] for one in rounds), 3),
        "one_worker_to_in_process": round(
            statistics.median(one["one_worker"] / one["in_process"] for one in rounds), 3
        ),
        "killed_after_windows": finished,
        "tables": tables,
        "identical": len(set(tables.values())) == 1,
    }


def _memory(root: Path, many: int, show: Any) -> dict[str, Any]:
    found = {}
    text = _corpus(root, _SHORT * many)
    for done, windows in enumerate((100, many)):
        show(Step(done, 2, f"{windows:,} windows"))
        scan = {"model": None, "text": text, "length": _SHORT, "windows": windows, "workers": 2}
        found[windows] = _run(scan | {"out": str(root / f"{windows}")})
    few, large = found[100], found[many]
    known = few["peak_bytes"] is not None
    return {
        "many_windows": many,
        "driver_peak_bytes": large["peak_bytes"],
        "driver_peak_bytes_of_100_windows": few["peak_bytes"],
        "driver_memory_ratio": round(large["peak_bytes"] / few["peak_bytes"], 3) if known else None,
        "many_windows_seconds": round(large["seconds"], 3),
        "report_seconds": round(large["report_seconds"], 3),
    }


def _command(scan: dict[str, Any]) -> dict[str, Any]:
    arguments = [sys.executable, "-m", "benchmarks.scale", json.dumps(scan)]
    return {"args": arguments, "env": environment(_ENVIRONMENT), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def _run(scan: dict[str, Any]) -> Any:
    """What `_scan` gives, in a process of its own."""
    done = subprocess.run(**_command(scan), text=True, check=False)
    if done.returncode:
        raise AttnscopeError(
            f"a scan of the benchmark failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
        )
    return json.loads(done.stdout)


def _killed(scan: dict[str, Any], out: Path) -> int:
    """Start a scan and kill it when half of its windows are finished; how many are."""
    with subprocess.Popen(**_command(scan)) as driver:
        while driver.poll() is None:
            manifest = Manifest.read(out / UNFINISHED)
            if manifest is not None and 2 * manifest.finished_windows >= scan["windows"]:
                break
            time.sleep(0.01)
        driver.kill()
    manifest = Manifest.read(out / UNFINISHED)
    return scan["windows"] if manifest is None else manifest.finished_windows


def _digest(out: Path) -> str:
    """SHA-256 of all tables of a run."""
    digest = hashlib.sha256()
    for file in sorted((*out.glob("*.parquet"), *(out / FINISHED).glob("*-[0-9]*.parquet"))):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _scan(scan: dict[str, Any]) -> dict[str, Any]:
    """Scan; the seconds after start-up, those of the report made again from the tables, and peak memory of both."""
    import attnscope
    from attnscope.capture import Corpus

    text = Corpus((scan.pop("text"),))
    result = attnscope.scan(scan.pop("model"), text, packed=True, progress=False, **scan)
    seconds = result.run["timings"]["scan_seconds"]
    for overview in Path(scan["out"]).glob(f"{FINISHED}/overview*"):
        overview.unlink()
    started = time.perf_counter()
    attnscope.load_run(scan["out"]).page()
    return {"seconds": seconds, "report_seconds": time.perf_counter() - started, "peak_bytes": peak_so_far()}


if __name__ == "__main__":
    print(json.dumps(_scan(json.loads(sys.argv[1]))))
