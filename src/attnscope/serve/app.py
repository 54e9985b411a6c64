"""The web application: its pages and its API."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from attnscope.errors import AttnscopeError, OutputError
from attnscope.serve import library as reproductions
from attnscope.serve import training
from attnscope.serve.forms import FormError, parse_form, refuse_missing
from attnscope.serve.guard import Guard, is_from_page, limited_body
from attnscope.serve.jobs import Jobs
from attnscope.serve.library import DAMAGED, Library, load_assets
from attnscope.show.html import policy
from attnscope.show.page import scan_page


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
        Route("/run/{name}/data", server.training_data),
        Route("/run/{name}/events", server.events),
        Route("/run/{name}/{file}", server.file),
        Route("/run/{name}/figures/{reading}/{file}", server.figure),
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
        self.streams = training.Streams()
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
        name = request.path_params["name"]
        try:
            page = await run_in_threadpool(self.library.reproduction, name)
            folder = await run_in_threadpool(self.library.training, name)
        except OutputError as error:
            return PlainTextResponse(f"{error}\n", 404)
        if folder is not None:
            return await self._of_training(lambda: HTMLResponse(training.page(name, folder)))
        return await self._page(name) if page is None else HTMLResponse(page)

    async def training_data(self, request: Request) -> Response:
        name = request.path_params["name"]
        return await self._of_training(lambda: PlainTextResponse(training.packed_data(self._training_folder(name))))

    async def events(self, request: Request) -> Response:
        try:
            folder = await run_in_threadpool(self._training_folder, request.path_params["name"])
        except OutputError as error:
            return PlainTextResponse(f"{error}\n", 404)
        since = training.position_of(request.headers.get("last-event-id"), request.query_params.get("since"))
        stream = self.streams.counted(training.events(folder, since, request.app.state.ending))
        return StreamingResponse(stream, media_type="text/event-stream")

    def _training_folder(self, name: str) -> Path:
        folder = self.library.training(name)
        if folder is None:
            raise OutputError(f"{name!r} is not a training run")
        return folder

    @staticmethod
    async def _of_training(make: Callable[[], Response]) -> Response:
        """A response made from the files of a training run."""
        try:
            return await run_in_threadpool(make)
        except OutputError as error:
            return PlainTextResponse(f"{error}\n", 404)
        except DAMAGED as error:
            return PlainTextResponse(f"the training run is damaged ({type(error).__name__}: {error})\n", 404)

    async def compare(self, request: Request) -> Response:
        one, other = request.query_params.get("a"), request.query_params.get("b")
        if not one or not other:
            return PlainTextResponse("Name two runs: /compare?a=NAME&b=NAME\n", 400)
        return await self._page(one, other)

    async def _page(self, *names: str) -> Response:
        try:
            data = [await run_in_threadpool(self.library.data, name) for name in names]
        except OutputError as error:
            return PlainTextResponse(f"{error}\n", 404)
        other = data[1] if len(data) > 1 else None
        try:
            return HTMLResponse(await run_in_threadpool(scan_page, data[0], other, {"home": "/", "names": names}))
        except DAMAGED as error:
            either = " or ".join(repr(name) for name in names)
            return PlainTextResponse(f"run {either} is damaged ({type(error).__name__}: {error}); scan again\n", 404)

    async def file(self, request: Request) -> Response:
        name, file = request.path_params["name"], request.path_params["file"]
        return self._sent(f"{name}-{file}", lambda: self.library.file(name, file))

    async def figure(self, request: Request) -> Response:
        name, reading, file = (request.path_params[key] for key in ("name", "reading", "file"))
        path = f"{reproductions.FIGURES}/{reading}/{file}"
        return self._sent(f"{name}-{reading}-{file}", lambda: self.library.figure(name, path))

    @staticmethod
    def _sent(name: str, find: Callable[[], Path]) -> Response:
        """A file as a download, which the browser never opens as a page of this server."""
        try:
            path = find()
        except OutputError as error:
            return PlainTextResponse(f"{error}\n", 404)
        return FileResponse(path, headers={"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}"})

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
    template, style, script = load_assets("index", ("format.js",))
    return template.substitute(policy=policy(script, style, "; connect-src 'self'"), style=style, script=script)
