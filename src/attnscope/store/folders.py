"""Folders that runs are written to: locked for one process, and each file there whole or not at all.

Files are first written under temporary names and then moved into place, so that a reader never sees half a file, and a
run that cannot be written leaves an older one unchanged. What goes into which file is up to `tables.py` and others.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl

from attnscope.errors import InputError, OutputError, parameter, shown

_HALF_WRITTEN = ".attnscope-"  # prefix of unfinished files

_LONGEST_NAME = 200  # bytes; file systems allow 255


def folder_name(model: str | None) -> str:
    """The name of a model as a valid folder name, short enough to append a date and time."""
    name = re.sub(r"[^\w.-]+", "-", Path(model).name if model else "sample").strip("-.") or "run"
    return name.encode()[:_LONGEST_NAME].decode(errors="ignore")


def given_folder(folder: str | Path) -> Path:
    """The path of a folder given as an argument; InputError for an empty string, which would be the working folder."""
    if isinstance(folder, os.PathLike) or (isinstance(folder, str) and folder):
        return Path(folder)
    raise InputError(f"a folder is given as a string or a path; received {shown(folder)}")


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Create a folder and check that it is writable before any work; a new folder is removed if the work fails."""
    created: list[Path] = []
    try:
        with ExitStack() as stack:
            try:
                str(path).encode()  # polars cannot write to other paths
                created += [p for p in (path, *path.parents) if not p.exists()]
                path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(sole_writer(path))
                _remove_half_written(path)
                with tempfile.NamedTemporaryFile(dir=path, prefix=_HALF_WRITTEN):
                    pass
            except OutputError:
                raise
            except (OSError, ValueError) as error:
                named = str(path) if len(str(path)) < 200 else f"{str(path)[:200]}..."
                raise OutputError(
                    f"cannot write to the output folder {named!r}: {reason_of(error)}; "
                    f"choose another {parameter('out')}"
                ) from None
            yield path
    except BaseException:
        for folder in created:
            with suppress(OSError, ValueError):  # not empty, or never made
                folder.rmdir()
        raise


def reason_of(error: Exception) -> str:
    """The system's reason for an error; polars embeds it in a longer message."""
    number = re.search(r"os error (\d+)", str(error))
    if number is not None:
        return os.strerror(int(number[1]))
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _remove_half_written(folder: Path) -> None:
    """Remove files left by a process that was killed while writing."""
    for file in folder.glob(f"{_HALF_WRITTEN}*"):
        with suppress(OSError):
            file.unlink()


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes, if the system supports it."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # perhaps by `is_being_written`, for a moment
            time.sleep(0.05)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OutputError(
            f"another attnscope process is writing to {str(folder)!r}; wait for it, or choose another folder"
        ) from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(handle)


def is_being_written(folder: Path) -> bool:
    """Whether some process has locked the folder."""
    try:
        with sole_writer(folder):
            return False
    except OutputError:
        return True


def write_all(folder: Path, files: dict[str, Callable[[Path], object]]) -> None:
    """Write files under temporary names, then move them into place: all are written before the first is moved.

    The folder is created if it is missing; it lies in a folder that `output_folder` has locked for this process.
    """
    staged: dict[Path, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_half_written(folder)
        for name, write_to in files.items():
            target = folder / name
            if target.is_dir():
                raise OutputError(f"cannot write {str(target)!r}: a folder is in the way")
            staged[target] = folder / f"{_HALF_WRITTEN}{name}-{uuid4().hex}"
            write_to(staged[target])
        for target, staged_file in staged.items():
            staged_file.replace(target)
    except OutputError:
        raise
    except (OSError, pl.exceptions.PolarsError) as error:
        raise OutputError(f"cannot write to {str(folder)!r}: {reason_of(error)}") from error
    finally:
        for staged_file in staged.values():
            staged_file.unlink(missing_ok=True)


def copy_run(source: Path, target: Path) -> None:
    """Copy the files of a run, without what is unfinished, to another folder, which is locked already."""
    if source.resolve() == target.resolve():
        return
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot copy {str(source)!r} to {str(target)!r}: {error}") from error


def as_file(content: Any) -> Callable[[Path], object]:
    """What `write_all` needs to write JSON."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    return lambda path: path.write_text(text, encoding="utf-8")


def without_infinities(value: Any) -> Any:
    """The value with None in place of infinities and NaN, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
