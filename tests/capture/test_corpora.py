"""`corpus:war-and-peace` against a local server: fetched once, checked, kept, and refused when it is not the book."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from attnscope.capture import text as corpora
from attnscope.capture.text import read_text
from attnscope.errors import InputError

FIRST = "“Well, Prince, this line stands for the first one."
LAST = "This line stands for the last one, of which we are\nnot conscious."
FILLER = "Filler in the place of a novel, a line of no meaning whatsoever.\n" * 47_000
NOVEL = f"{FIRST}\n\n{FILLER}\n{LAST}\n"
HEADER = "The Project Gutenberg eBook of War and Peace\n\nTitle: War and Peace\n\nLanguage: English\n\n"
CONTENTS = "WAR AND PEACE\n\n    CONTENTS\n\n    CHAPTER I\n\nBOOK ONE: 1805\n\nCHAPTER I\n\n"
NEW = f"{HEADER}*** START OF THE PROJECT GUTENBERG EBOOK WAR AND PEACE ***\n\n{CONTENTS}"
NEW_END = "\n\n*** END OF THE PROJECT GUTENBERG EBOOK WAR AND PEACE ***\nThe full license.\n"
OLD = f"{HEADER}*** START OF THIS PROJECT GUTENBERG EBOOK WAR AND PEACE ***\n\n{CONTENTS}"
OLD_END = "\n\nEnd of the Project Gutenberg EBook of War and Peace\n\n*** END OF THIS PROJECT GUTENBERG EBOOK\n"


class Server:
    """What the next answer is, and how many there were."""

    status = 200
    body = b""
    promised: int | None = None
    requests = 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests += 1
            self.send_response(404 if self.path == "/moved.txt" else state.status)
            self.send_header("Content-Length", str(state.promised or len(state.body)))
            self.end_headers()
            self.wfile.write(state.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv(corpora.URL_VARIABLE, f"http://127.0.0.1:{http.server_port}/2600.txt")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield state
        http.shutdown()
        thread.join()


@pytest.mark.parametrize(("before", "after"), [(NEW, NEW_END), (OLD, OLD_END)], ids=["new marks", "old marks"])
def test_fetched_once_and_cut_to_the_novel(server: Server, before: str, after: str) -> None:
    server.body = b"\xef\xbb\xbf" + (before + NOVEL + after).replace("\n", "\r\n").encode()
    text = read_text("corpus:war-and-peace")
    assert text.content == NOVEL
    assert text.source == "corpus:war-and-peace"
    server.status = 500
    assert read_text("corpus:war-and-peace").content == NOVEL
    assert server.requests == 1


def test_a_damaged_copy_is_fetched_again(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.body = (NEW + NOVEL + NEW_END).encode()
    read_text("corpus:war-and-peace")
    kept = corpora.cache_folder() / "corpora" / "war-and-peace.txt"
    kept.write_bytes(kept.read_bytes()[:-1000])
    assert read_text("corpus:war-and-peace").content == NOVEL
    assert server.requests == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"<html>not found</html>", "not a Project Gutenberg book", id="a web page"),
        pytest.param((NEW.replace("Title: War", "Title: Peas") + NOVEL + NEW_END).encode(), "another book", id="title"),
        pytest.param((NEW + NOVEL).encode(), "breaks off before the END line", id="no end"),
        pytest.param((NEW + NOVEL.replace("conscious", "aware") + NEW_END).encode(), "last line", id="other ending"),
        pytest.param((NEW + f"{FIRST}\n{LAST}\n" + NEW_END).encode(), "characters, not", id="abridged"),
        pytest.param((NEW + NOVEL + NEW_END).encode("utf-16"), "not UTF-8", id="encoding"),
    ],
)
def test_what_is_not_the_book_is_refused_and_not_kept(server: Server, body: bytes, reason: str) -> None:
    server.body = body
    with pytest.raises(InputError, match=reason) as caught:
        read_text("corpus:war-and-peace")
    assert "give a file with any copy of the book as text" in str(caught.value)
    assert not (corpora.cache_folder() / "corpora").exists()


def test_a_truncated_body_is_refused(server: Server) -> None:
    server.body = (NEW + NOVEL + NEW_END).encode()
    server.promised = len(server.body) + 500
    with pytest.raises(InputError, match="broke off after"):
        read_text("corpus:war-and-peace")


def test_a_server_error_is_told(server: Server) -> None:
    server.status = 503
    with pytest.raises(InputError, match="the server answered 503"):
        read_text("corpus:war-and-peace")


def test_a_book_that_moved_is_fetched_from_its_other_address(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = os.environ[corpora.URL_VARIABLE]
    monkeypatch.delenv(corpora.URL_VARIABLE)
    moved = replace(corpora.WAR_AND_PEACE, urls=(address.replace("2600", "moved"), address))
    monkeypatch.setitem(corpora.BOOKS, "war-and-peace", moved)
    server.body = (NEW + NOVEL + NEW_END).encode()
    assert read_text("corpus:war-and-peace").content == NOVEL
    assert server.requests == 2
    server.status = 404
    (corpora.cache_folder() / "corpora" / "war-and-peace.txt").unlink()
    with pytest.raises(InputError, match=r"moved\.txt: the server answered 404.*2600\.txt: the server answered 404"):
        read_text("corpus:war-and-peace")
    capsys.readouterr()


def test_offline_and_not_kept_names_the_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(corpora.URL_VARIABLE, "http://127.0.0.1:1/nothing")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(InputError, match=r"no connection.*any copy of the book"):
        read_text("corpus:war-and-peace")


def test_an_unknown_corpus_lists_what_there_is() -> None:
    with pytest.raises(InputError, match="corpus:war-and-peace"):
        read_text("corpus:anna-karenina")


def test_a_copy_on_disk_gives_the_same_novel(tmp_path: Path) -> None:
    path = tmp_path / "copy.txt"
    path.write_bytes((OLD + NOVEL + OLD_END).replace("\n", "\r\n").encode())
    assert read_text(path).content == NOVEL


def test_another_book_loses_its_license_only(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    mark = "THE PROJECT GUTENBERG EBOOK OTHER ***"
    path.write_text(f"Title: Other\n\n*** START OF {mark}\n\nCall me.\n\n*** END OF {mark}\n", "utf-8")
    assert read_text(path).content == "Call me.\n"


def test_a_license_without_a_book_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    mark = "THE PROJECT GUTENBERG EBOOK OTHER ***"
    path.write_text(f"*** START OF {mark}\n\n*** END OF {mark}\n", "utf-8")
    with pytest.raises(InputError, match="is empty"):
        read_text(path)


def test_a_plain_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_bytes(b"  A line.\r\n\r\nAnother.  ")
    assert read_text(path).content == "  A line.\r\n\r\nAnother.  "
