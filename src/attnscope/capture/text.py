"""Texts, from files, standard input or a book downloaded once (`--text corpus:war-and-peace`), and tokens.

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
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from attnscope.capture.checkpoints import CHECK_TOKENIZER, foreign_errors
from attnscope.errors import InputError, ModelError, parameter, shown

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


_SPACE = re.compile(r"\s")
_LIKE_A_FILE = re.compile(r"[^\s]{1,200}\.[A-Za-z]\w{0,4}")  # one word with a suffix
_TRIAL_CHARACTERS = tuple(2**power for power in range(4, 12))  # of a text, to try a tokenizer on
_TRIAL_SECONDS = 2.0  # of processor time; a usual tokenizer takes a thousandth of it


@dataclass(frozen=True)
class Text:
    """A text and where it came from.

    >>> from attnscope.capture import Text
    >>> Text("It was a bright cold day in April.", "a novel").digest[:8]
    'b53c86ee'
    """

    content: str
    source: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text as UTF-8."""
        return hashlib.sha256(self.content.encode()).hexdigest()


def given_text(text: str | Path | Text | None) -> Text:
    """A `Text` from an argument: a string is the text itself, a path is read, and None is the embedded sample.

    >>> given_text("a text").source
    'the string given'

    A string that names a file or a corpus is refused: its characters are hardly what should be measured.
    """
    if isinstance(text, Text):
        return text
    if text is None or isinstance(text, os.PathLike):
        return read_text(text)
    if not isinstance(text, str):
        raise InputError(f"a text is a string, a pathlib.Path or an attnscope.capture.Text; received {shown(text)}")
    if not text.strip():
        raise InputError("the string given is empty; give a text of at least one window")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the string given is no Unicode text: a lone surrogate at offset {error.start}") from None
    if _is_file(text):
        raise InputError(f"{text!r} is a file; give pathlib.Path({text!r}) for the text in it")
    name = text.removeprefix(PREFIX)
    if name in BOOKS or (name != text and not _SPACE.search(text)):
        raise InputError(f"{shown(text)} is the name of a corpus; give attnscope.capture.corpus({shown(name)})")
    if _LIKE_A_FILE.fullmatch(text):
        raise InputError(
            f"{text!r} looks like the name of a file, and there is none; a string is the text itself, "
            f"pathlib.Path({text!r}) a file"
        )
    return Text(text, "the string given")


def corpus(name: str) -> Text:
    """A book as a text to measure: downloaded once, checked, and kept.

    >>> attnscope.scan("openai-community/gpt2", attnscope.capture.corpus("war-and-peace"))  # doctest: +SKIP

    Parameters
    ----------
    name
        "war-and-peace". The command line calls it `corpus:war-and-peace`.

    Returns
    -------
    Text
        The novel without the license around it.
    """
    return Text(read_corpus(name), f"{PREFIX}{name}")


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long for a name, or not allowed in one
        return False


def read_text(source: str | Path | None) -> Text:
    """The text of a file, as the command line names it.

    >>> _ = Path("book.txt").write_text("It was a bright cold day in April.")
    >>> attnscope.capture.read_text("book.txt").source
    'book.txt'

    A book of Project Gutenberg is read without its header and footer; any other text to the byte. More than
    `corpora.LARGEST` bytes are refused: their tokens would take some 150 times as many.

    Parameters
    ----------
    source
        A file, "-" for standard input, "corpus:NAME" for a corpus, or None for the embedded sample.

    Returns
    -------
    Text
        attnscope.InputError says why a text cannot be read.
    """
    if source is None:
        return Text((resources.files("attnscope") / "sample" / "text.txt").read_text("utf-8"), "sample")
    if str(source) == "-":
        return decoded(sys.stdin.buffer.read(LARGEST + 1), "standard input")
    if str(source).startswith(PREFIX):
        return corpus(str(source).removeprefix(PREFIX))
    if not str(source):
        raise InputError(f"{parameter('text')} takes the path of a text file; received nothing")
    path = Path(source)
    try:
        with path.open("rb") as file:  # also a pipe or a device, which may have no end
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read the text {shown(str(path))}: {reason}; give the path of a text file") from None
    return decoded(data, str(path))


def decoded(data: bytes, source: str) -> Text:
    """The text in the bytes of a file; InputError if there is none."""
    if len(data) > LARGEST:
        raise InputError(f"{source} has more than {LARGEST >> 20} MiB; give a part of it as {parameter('text')}")
    if b"\0" in data:
        raise InputError(f"{source} is not UTF-8 text (a zero byte at offset {data.index(0)}); convert it")
    try:
        content = without_license(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start}); "
            "convert it, for instance with iconv -t utf-8"
        ) from None
    if not content.strip():
        raise InputError(f"{source} is empty; give a text of at least one window")
    return Text(content, source)


def token_ids(tokenizer: Any, text: Text, characters: int | None = None) -> list[int]:
    """The tokens of a text, or of its first characters, without special tokens; there may be none."""
    with foreign_errors(f"tokenize {text.source}", CHECK_TOKENIZER):
        return list(tokenizer(text.content[:characters], add_special_tokens=False, verbose=False)["input_ids"])


def check_tokenizer(tokenizer: Any, text: Text) -> None:
    """Refuse a tokenizer whose patterns would take forever on the text, after a few of its characters."""
    for characters in _TRIAL_CHARACTERS:
        started = time.process_time()  # of all threads: the tokenizer has its own
        token_ids(tokenizer, text, characters)
        seconds = time.process_time() - started
        if seconds > _TRIAL_SECONDS:
            raise ModelError(
                f"the tokenizer takes {seconds:.1f} s for {characters} characters, so that {text.source} would not "
                "end; check the patterns in its tokenizer.json"
            )


def tokenize(tokenizer: Any, text: Text) -> list[int]:
    """The tokens of a text, without special tokens; raises if there are none or it would take forever."""
    check_tokenizer(tokenizer, text)
    tokens = token_ids(tokenizer, text)
    if not tokens:
        raise InputError(f"the tokenizer makes no tokens of {text.source}")
    return tokens
