"""The web application: its pages, its API, and the form for a new scan."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from functools import partial
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from attnscope.capture.checkpoints import locate
from attnscope.capture.text import BOOKS, PREFIX, read_text
from attnscope.errors import AttnscopeError, InputError, OutputError, shown, whole_number
from attnscope.measure.settings import row_choice
from attnscope.serve.guard import Guard, is_from_page, limited_body
from attnscope.serve.jobs import Jobs, ScanRequest
from attnscope.serve.library import DAMAGED, Library
from attnscope.serve.streams import Streams, events
from attnscope.show.html import policy
from attnscope.show.page import asset
from attnscope.store.kinds import resolve

Value = TypeVar("Value")


def create_app(root: Path, host: str = "127.0.0.1", *, read_only: bool = False) -> Starlette:
    """The web application for the runs of the folder `root`."""
    server = _Server(Library(root), read_only)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await server.jobs.close()

    routes = [
        Route("/", server.index),
        Route("/run/{name}", server.run),
        Route("/run/{name}/data", server.live_data),
        Route("/run/{name}/events", server.events),
        Route("/run/{name}/{file:path}", server.file),
        Route("/compare", server.compare),
        Route("/api/runs", server.runs),
        Route("/api/runs/{name}/{act}", server.change, methods=["POST"]),
        Route("/api/scans", server.start, methods=["POST"]),
        Route("/api/scans/{name}", server.scan),
        Route("/api/scans/{name}/{act}", server.act, methods=["POST"]),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(Guard, host=host)])
    app.state.ending = lambda: False  # whether the server is about to end, and streams should
    return app


class _Server:
    def __init__(self, library: Library, read_only: bool) -> None:
        self.library, self.read_only = library, read_only
        self.jobs = Jobs(library.root)
        self.streams = Streams()
        self.token = secrets.token_urlsafe(24)

    async def index(self, request: Request) -> Response:
        return HTMLResponse(_index_page())

    async def runs(self, request: Request) -> Response:
        entries = await run_in_threadpool(self.library.entries)
        running = self.jobs.running
        busy = running.name if running else None
        return JSONResponse(
            {
                "folder": str(self.library.root),
                "runs": [asdict(entry) for entry in entries if entry.name != busy],
                "resumable": [entry.name for entry in entries if self.library.request(entry.name) is not None],
                "running": running.as_json() if running else None,
                "read_only": self.read_only,
                "token": None if self.read_only else self.token,
            }
        )

    async def run(self, request: Request) -> Response:
        return await self._page(request.path_params["name"])

    async def compare(self, request: Request) -> Response:
        one, other = request.query_params.get("a"), request.query_params.get("b")
        if not one or not other:
            return PlainTextResponse("Name two runs: /compare?a=NAME&b=NAME\n", 400)
        return await self._page(one, other)

    async def _page(self, *names: str) -> Response:
        return await self._found(lambda: HTMLResponse(self.library.page(*names)))

    async def live_data(self, request: Request) -> Response:
        def data() -> Response:
            folder, live = self.library.live(request.path_params["name"])
            return PlainTextResponse(resolve(f"{live}:data")(folder))

        return await self._found(data)

    async def events(self, request: Request) -> Response:
        positions = request.headers.get("last-event-id"), request.query_params.get("since")
        since = next((position for position in positions if position), "")

        def stream() -> Response:
            folder, live = self.library.live(request.path_params["name"])
            added = self.streams.counted(events(live, folder, since, request.app.state.ending))
            return StreamingResponse(added, media_type="text/event-stream")

        return await self._found(stream)

    async def file(self, request: Request) -> Response:
        """A file as a download, which the browser never opens as a page of this server."""
        name, file = request.path_params["name"], request.path_params["file"]
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(f'{name}-{file}'.replace('/', '-'))}"}
        return await self._found(lambda: FileResponse(self.library.file(name, file), headers=headers))

    @staticmethod
    async def _found(make: Callable[[], Response]) -> Response:
        """A response made from the files of a run, or one line that says why there is none."""
        try:
            return await run_in_threadpool(make)
        except OutputError as error:
            return PlainTextResponse(f"{error}\n", 404)
        except DAMAGED as error:
            return PlainTextResponse(f"the run is damaged ({type(error).__name__}: {error})\n", 404)

    async def start(self, request: Request) -> Response:
        async def work(form: dict[str, Any]) -> Response:
            wanted = parse_form(form)
            await run_in_threadpool(refuse_missing, wanted)
            job = await self.jobs.start(wanted)
            return JSONResponse(job.as_json(), 202)

        return await self._changing(request, work)

    async def act(self, request: Request) -> Response:
        name, act = request.path_params["name"], request.path_params["act"]

        async def work(_: dict[str, Any]) -> Response:
            if act == "cancel":
                return JSONResponse((await self.jobs.cancel(name)).as_json())
            if act == "resume":
                return JSONResponse((await self.jobs.resume(name, self.library.folder(name))).as_json(), 202)
            return JSONResponse({"error": f"cannot {act[:100]} a scan"}, 404)

        return await self._changing(request, work)

    async def change(self, request: Request) -> Response:
        name, act = request.path_params["name"], request.path_params["act"]

        async def work(form: dict[str, Any]) -> Response:
            if act not in ("rename", "delete"):
                return JSONResponse({"error": f"cannot {act[:100]} a run"}, 404)
            async with self.jobs.idle(name):
                if act == "rename":
                    new = await run_in_threadpool(self.library.rename, name, form.get("name"))
                    return JSONResponse({"name": new})
                await run_in_threadpool(self.library.delete, name)
                return JSONResponse({"name": name})

        return await self._changing(request, work)

    async def scan(self, request: Request) -> Response:
        job = self.jobs.by_name.get(request.path_params["name"])
        return JSONResponse(job.as_json()) if job else JSONResponse({"error": "no such scan was started here"}, 404)

    async def _changing(self, request: Request, work: Callable[[dict[str, Any]], Awaitable[Response]]) -> Response:
        """Run `work` on the request's JSON object, if it comes from this server's page and is not too large."""
        if self.read_only:
            return JSONResponse({"error": "this server is read-only: it starts no scans and changes no runs"}, 403)
        if not is_from_page(request.headers, self.token):
            return JSONResponse({"error": "the request does not come from this server's page; reload it"}, 403)
        body = await limited_body(request)
        if body is None:
            return JSONResponse(
                {"error": "the text is too large for the form; save it to a file and give its path"}, 413
            )
        try:
            form = json.loads(body or b"{}")
            if not isinstance(form, dict):
                raise ValueError
        except (ValueError, RecursionError):
            return JSONResponse({"error": "the request is not a JSON object"}, 400)
        try:
            return await work(form)
        except FormError as error:
            return JSONResponse({"error": str(error), "field": error.field}, 400)
        except AttnscopeError as error:
            return JSONResponse({"error": str(error)}, 400)
        except OSError as error:
            return JSONResponse({"error": f"cannot change the folder: {error.strerror}"}, 500)


def _index_page() -> str:
    serve = resources.files("attnscope.serve") / "web"
    style = asset("page.css") + (serve / "index.css").read_text("utf-8")
    script = asset("js/format.js") + "\n" + (serve / "index.js").read_text("utf-8")
    template = Template((serve / "index.html").read_text("utf-8"))
    return template.substitute(policy=policy(script, style, "; connect-src 'self'"), style=style, script=script)


class FormError(InputError):
    """A field of the form that cannot be right; the page shows the message beside the field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


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
