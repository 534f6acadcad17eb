"""Headers of every answer, and addresses below a proxy's sub-path.

A server below a path of its proxy, such as https://host/gaitway/: what is asked for is inside, what is told outside.
The path is the setting `root_path`, or what a trusted proxy says in `X-Forwarded-Prefix`. It is taken off the request's
path where the proxy has left it there, and put before every redirect to this server. Pages and cookies read it from
`scope["root_path"]`, as ASGI calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.auth.callers import Network, is_trusted, peer_of
from aggregator_api.core.settings import is_root_path

NOTHING = "default-src 'none'; frame-ancestors 'none'"
"""An answer to a program: a browser that shows it loads and runs nothing."""
DOCS = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""Swagger UI: only files of this server; it styles elements inline, and its pictures are data URLs."""
PAGES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
"""The operator's pages: only files of this server, no code and no style within a page."""
PHONE = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; object-src 'none'; form-action 'none'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
"""The phone's page and its worker: only files of this server; ONNX Runtime compiles its WebAssembly."""
ALWAYS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class SecurityHeaders:
    """Adds the headers; `Cache-Control` only if the route didn't set it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the request, and add the headers to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in ALWAYS.items():
                    headers[name] = value
                is_page = path != "/docs" and headers.get("content-type", "").startswith("text/html")
                policy = DOCS if path == "/docs" else PAGES if is_page else NOTHING
                headers["content-security-policy"] = PHONE if path.startswith("/phone/") else policy
                if path.startswith("/phone/"):  # isolated from all others: only then may its worker train with threads
                    headers["cross-origin-embedder-policy"] = "require-corp"
                if is_page:  # without a referrer a browser would not say from which site a form comes
                    headers["referrer-policy"] = "same-origin"
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, sending)


LOCATION_HEADERS = ("location", "hx-redirect")
"""Headers that send a client to another path."""


class SubPath:
    """Translates between the paths that clients see and those of the routes."""

    def __init__(self, app: ASGIApp, root_path: str, trusted: Sequence[Network]) -> None:
        self._app, self._root_path, self._trusted = app, root_path, tuple(trusted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the request with the route's path, and the response with the client's."""
        root = self._root_of(scope) if scope["type"] == "http" else ""
        if not root:
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path == root or path.startswith(f"{root}/"):
            path = path.removeprefix(root) or "/"
        host = Headers(scope=scope).get("host", "")

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name in LOCATION_HEADERS:
                    if target := headers.get(name):
                        headers[name] = below(root, target, host)
            await send(message)

        await self._app({**scope, "path": path, "root_path": root}, receive, sending)

    def _root_of(self, scope: Scope) -> str:
        if is_trusted(peer_of(scope), self._trusted):
            prefix = Headers(scope=scope).get("x-forwarded-prefix", "").rstrip("/")
            if is_root_path(prefix):
                return prefix
        return self._root_path


def below(root: str, target: str, host: str) -> str:
    """Return where a redirect leads from outside: below `root` if it stays on this server."""
    parts = urlsplit(target)
    is_local = parts.netloc in ("", host) and parts.path.startswith("/")
    return parts._replace(path=root + parts.path).geturl() if is_local else target
