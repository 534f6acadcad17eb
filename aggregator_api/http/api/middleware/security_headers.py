"""Headers on every answer that tell a browser how little it may do with it."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Adds them; `Cache-Control` only where the route has not said how long its answer holds."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, and add the headers to what comes back."""
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
