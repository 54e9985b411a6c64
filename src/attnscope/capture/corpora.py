"""Books that are downloaded once and cached: `--text corpus:war-and-peace`.

Requirements of the design:

- downloads use the standard library, and happen only when a user names a corpus;
- a download is checked before it is cached (complete, UTF-8, license markers, title, first and last line of the novel,
  size). Project Gutenberg revises its files, so comparing a digest would reject a corrected comma;
- the cache holds the novel without the license, from its first line on, and a digest: a damaged copy is fetched again;
- a user's own copy (`--text FILE`) is trimmed in the same way.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from attnscope.errors import InputError
from attnscope.parameters import parameter

PREFIX = "corpus:"
URL_VARIABLE = "ATTNSCOPE_CORPUS_URL"  # a mirror to fetch from instead
TIMEOUT = 60  # seconds without a response
LARGEST = 64 << 20  # bytes of a text; no book is larger

_START = re.compile(r"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG EBOOK\b.*$", re.MULTILINE)
_LAST_MARK = re.compile(r"^\*\*\* ?END OF TH(?:E|IS) PROJECT GUTENBERG EBOOK\b", re.MULTILINE)
_END = re.compile(rf"{_LAST_MARK.pattern}|^End of (?:the )?Project Gutenberg(?:['\u2019]s)? ", re.MULTILINE)


@dataclass(frozen=True)
class Book:
    """A book of Project Gutenberg: its addresses, and how to recognize it."""

    name: str
    title: str
    urls: tuple[str, ...]
    first_line: str
    last_line: str
    characters: tuple[int, int]  # characters of the novel, smallest and largest number


WAR_AND_PEACE = Book(
    "war-and-peace",
    "War and Peace",
    ("https://www.gutenberg.org/cache/epub/2600/pg2600.txt", "https://www.gutenberg.org/files/2600/2600-0.txt"),
    r"^\W?Well, Prince,",
    r"we\s+are\s+not\s+conscious\.",
    (3_000_000, 3_500_000),
)
BOOKS = {book.name: book for book in (WAR_AND_PEACE,)}


def read_corpus(name: str) -> str:
    """The text of a corpus from the cache; if missing, it is downloaded, checked and cached."""
    book = BOOKS.get(name)
    if book is None:
        raise InputError(f"unknown corpus {name!r}; there is {', '.join(PREFIX + known for known in BOOKS)}")
    content = _read_cache(book)
    if content is None:
        content = fetch(book)
        _write_cache(book, content)
    return content


def fetch(book: Book) -> str:
    """Download the novel from the first address that has it, and check it."""
    mirror = os.environ.get(URL_VARIABLE)
    reasons = []
    for url in (mirror,) if mirror else book.urls:
        try:
            return novel(_body(url), book)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reasons.append(f"{url}: {_reason(error)}")
    raise InputError(
        f"cannot fetch {book.title} ({'; '.join(reasons)}); connect once, or give a file with any copy of the book as "
        f"{parameter('text')}"
    )


def novel(data: bytes, book: Book) -> str:
    """Extract the novel from a Project Gutenberg file; raises ValueError with the reason if the file is not intact."""
    try:
        text = _unix_newlines(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("the body is not UTF-8 text") from None
    start, end = _START.search(text), _END.search(text)
    if start is None:
        raise ValueError("the body is not a Project Gutenberg book (no START line)")
    if not re.search(rf"^Title: {book.title}\s*$", text[: start.start()], re.MULTILINE):
        raise ValueError(f"the body is another book than {book.title}")
    if end is None:
        raise ValueError("the body breaks off before the END line")
    first = re.search(book.first_line, text, re.MULTILINE)
    if first is None or not re.search(book.last_line, text[: end.start()][-2000:]):
        raise ValueError(f"the body lacks the first or the last line of {book.title}")
    content = text[first.start() : end.start()].rstrip() + "\n"
    least, most = book.characters
    if not least <= len(content) <= most:
        raise ValueError(f"the novel has {len(content):,} characters, not {least:,} to {most:,}")
    return content


def without_license(content: str) -> str:
    """Remove the header and footer of Project Gutenberg; one of `BOOKS` starts at its first line.

    A text that has neither is returned unchanged.
    """
    start = _START.search(content)
    if start is None and not _LAST_MARK.search(content):
        return content
    text = _unix_newlines(content[start.end() if start else 0 :])
    end = _END.search(text)
    body = text[: end.start()] if end else text
    for book in BOOKS.values():
        first = re.search(book.first_line, body, re.MULTILINE)
        if first is not None:
            return body[first.start() :].rstrip() + "\n"
    return body.strip() + "\n"


def cache_folder() -> Path:
    """The cache folder of this package for the current user."""
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path.home() / ".cache"
    return base / "attnscope"


def _unix_newlines(text: str) -> str:
    return text.replace("\r\n", "\n")


def _body(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "attnscope"})
    if request.type not in ("http", "https"):
        raise ValueError(f"{URL_VARIABLE} takes an http or https address")
    print(f"attnscope: fetching {url} (once; kept in {cache_folder()})", file=sys.stderr)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        data: bytes = response.read(LARGEST + 1)
        # read(amount) does not complain about a body that ends early.
        expected = response.headers.get("Content-Length")
    if len(data) > LARGEST:
        raise ValueError(f"the body is larger than {LARGEST >> 20} MiB")
    if expected is not None and len(data) < int(expected):
        raise ValueError(f"the body broke off after {len(data):,} of {int(expected):,} bytes")
    return data


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        cause = error.reason
        return f"no connection ({getattr(cause, 'strerror', None) or cause})"
    return str(error) or type(error).__name__


def _cache_files(book: Book) -> tuple[Path, Path]:
    folder = cache_folder() / "corpora"
    return folder / f"{book.name}.txt", folder / f"{book.name}.sha256"


def _read_cache(book: Book) -> str | None:
    """The cached text, or None if there is none or it is damaged."""
    text_file, digest_file = _cache_files(book)
    try:
        data = text_file.read_bytes()
        whole = digest_file.read_text("ascii").strip() == hashlib.sha256(data).hexdigest()
    except (OSError, UnicodeDecodeError):
        return None
    if not whole:
        print(f"attnscope: {text_file} is damaged; fetching it again", file=sys.stderr)
        return None
    return data.decode("utf-8")


def _write_cache(book: Book, content: str) -> None:
    """Cache a text; if the cache cannot be written, the text is downloaded again next time."""
    data = content.encode()
    text_file, digest_file = _cache_files(book)
    try:
        text_file.parent.mkdir(parents=True, exist_ok=True)
        for path, part in ((text_file, data), (digest_file, f"{hashlib.sha256(data).hexdigest()}\n".encode())):
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(part)
                Path(temporary).replace(path)
            finally:
                Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        print(f"attnscope: cannot keep {book.title} in {text_file.parent} ({error.strerror})", file=sys.stderr)
