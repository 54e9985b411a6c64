"""The printed tables of benchmarks at 80 columns."""

from __future__ import annotations

from typing import Any

from terminal_tables import assert_readable, recorded_tables

from attnscope.show import terminal
from benchmarks import tables
from benchmarks.normalizers import SUBJECTS
from benchmarks.protocol import ALGORITHMS

CONSOLE = {"width": 80, "force_terminal": True, "color_system": None}


def test_tables_of_benchmarks() -> None:
    large = 12345.678
    normalizers: dict[str, Any] = {"threads": 64, "repeats": 5, "peer": "entmax 1.3.1", "memory": "words"}
    normalizers["results"] = [
        {"normalizer": name, "length": 8192, "rows": 147456, "forward_seconds": 123.456, "forward_ratio": 1234.56}
        | {"total_seconds": 123.456, "total_ratio": 1234.56, "peer_speedup": large, "largest_error": 1e-16}
        for name in SUBJECTS
    ]
    scans: dict[str, Any] = {"threads": 2, "shorter": 4096, "naive_over_all": {"random": 27.1}}
    scans["results"] = [
        {"model": "random", "subject": subject, "installed": True, "seconds": 1234.567, "forward_seconds": 123.456}
        | {"time_ratio": 1234.56, "peak_bytes": 1e11, "forward_peak_bytes": 1e11, "memory_ratio": 123.45}
        | {"shorter_peak_bytes": 1e11, "growth": 12.34, **more}
        for subject, more in (("last+bounds", {}), ("naive", {"heads_timed": 144}), ("transformer_lens", {}))
    ]
    scans["results"] += [{"model": "random", "subject": "nnsight", "installed": False}]
    protocol: dict[str, Any] = {"threads": 2, "size": {"length": 1024}, "paper_machine": "a machine"}
    protocol["results"] = [
        {"algorithm": number, "measures": about.measures, "seconds": 12345.6, "forward_seconds": 12.34}
        | {"time_ratio": 12345.6, "peak_bytes": 1e11, "paper_seconds": 61440.0, "times_faster": 123456.0}
        for number, about in ALGORITHMS.items()
    ]
    with recorded_tables() as found:
        blocks = [*tables.normalizers(normalizers), *tables.scans(scans), *tables.protocol(protocol)]
        assert max(map(len, terminal.text(blocks).splitlines())) <= 80
    assert len(found) == 3
    for table in found:
        assert_readable(table)
