"""A server below a path of its proxy, such as https://host/gaitway/: what is asked for is inside, what is told outside.

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

LOCATION_HEADERS = ("location", "hx-redirect")
"""Headers that send a client to another path."""


class SubPath:
    """Translates between the paths that clients see and those of the routes."""

    def __init__(self, app: ASGIApp, root_path: str, trusted: Sequence[Network]) -> None:
        self._app, self._root_path, self._trusted = app, root_path, tuple(trusted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on with the path of a route, and what comes back with the client's."""
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
