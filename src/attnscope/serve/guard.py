"""Protection of the server against requests from other web sites.

A page on any web site can send requests to a server on this machine, and a host name that is made to resolve to
127.0.0.1 (DNS rebinding) could even read the responses. So the Host header of every request must name this server,
and a request that changes something must come from this server's page: same origin, and a token that only that page
can read.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 8 * 2**20
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_allowed(header: str | None, host: str) -> bool:
    """Whether the Host header names this server; a server on a wildcard address accepts any IP address, but no name."""
    name = _host_name(header or "")
    if name is None:
        return False
    if name in _LOOPBACK or name == host.strip("[]").lower():
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return host.strip("[]") in ("0.0.0.0", "::")


def _host_name(header: str) -> str | None:
    """The host without its port; None if the header is malformed."""
    if header.startswith("["):
        name, closed, rest = header[1:].partition("]")
        valid = bool(closed) and (not rest or (rest[0] == ":" and rest[1:].isdecimal()))
    else:
        name, colon, port = header.partition(":")
        valid = not colon or port.isdecimal()
    return name.lower() if valid and name else None


class Guard:
    """Middleware that refuses foreign Host headers and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request or pass it on to the application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        names = [value.decode("latin-1") for key, value in scope["headers"] if key == b"host"]

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(key.lower().encode(), value.encode()) for key, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        if len(names) != 1 or not host_allowed(names[0], self.host):
            refusal = PlainTextResponse("This server does not answer to that host name.\n", 421)
            await refusal(scope, receive, protected)
            return
        await self.app(scope, receive, protected)


def is_from_page(headers: Mapping[str, str], token: str) -> bool:
    """Whether the origin, content type and token show that a request comes from this server's page."""
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{headers.get('host', '')}":
        return False
    if not headers.get("content-type", "").startswith("application/json"):
        return False
    return secrets.compare_digest(headers.get("x-attnscope-token", "").encode(), token.encode())


async def limited_body(request: Request) -> bytes | None:
    """The body of a request; None as soon as it exceeds `LARGEST_BODY`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            return None
    return bytes(body)
