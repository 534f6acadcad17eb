"""What goes wrong as a page: a browser that is shown a problem gets it in words, in the look of the other pages."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.auth.scopes import PROGRAMS
from aggregator_api.http.web.pages import page

MESSAGES = {
    404: "There is nothing at this address.",
    405: "This address takes forms from a page alone, and has nothing to show.",
}
"""What is said of errors that no route has met."""


class ErrorPages:
    """Turns problems into pages; whoever must log in first is sent to do so, and comes back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, and rewrite what comes back if it is a problem and a person looks at it."""
        if scope["type"] != "http" or scope["path"].startswith(PROGRAMS) or not _is_browser(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = bytearray()

        async def sending(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_problem(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    await _answer(Request(scope), start, bytes(body))(scope, receive, send)

        await self._app(scope, receive, sending)


def _is_browser(headers: Headers) -> bool:
    return "text/html" in headers.get("accept", "") or "hx-request" in headers


def _is_problem(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith("application/problem+json")


def _answer(request: Request, start: Message, body: bytes) -> Any:
    document: dict[str, Any] = json.loads(body)
    kept = {name: value for name, value in Headers(raw=start["headers"]).items() if name in ("retry-after", "allow")}
    if document["status"] == 401 and request.url.path != "/login":
        return _to_login(request)
    status, title, detail = document["status"], document["title"], document["detail"]
    if detail == title:
        detail = MESSAGES.get(status, detail)
    origin = _federation_of(request.url.path) if document["status"] not in (403, 404) else ""
    answer = page(request, "error.html", status=status, title=title, detail=detail, origin=origin)
    answer.headers.update(kept)
    return answer


def _federation_of(path: str) -> str:
    """Return the federation that a form was about: its page is where one goes on."""
    parts = path.split("/")
    return parts[2] if len(parts) > 3 and parts[1] == "federations" else ""


def _to_login(request: Request) -> Any:
    asked_for = _page_of(request)
    target = "/login" if asked_for in ("", "/") else f"/login?next={quote(asked_for)}"
    status = 401 if "hx-request" in request.headers else 303
    detail = "This page needs an API key."
    answer = page(request, "error.html", status=status, title="Log in first", detail=detail, origin="")
    MutableHeaders(raw=answer.raw_headers)["hx-redirect" if status == 401 else "location"] = target
    return answer


def _page_of(request: Request) -> str:
    """Return the page to come back to after login: the one that is asked for, or that a part or a form is on."""
    if "hx-request" in request.headers:
        found = urlsplit(request.headers.get("hx-current-url", "/"))
    elif request.method in ("GET", "HEAD"):
        return request.url.path + (f"?{request.url.query}" if request.url.query else "")
    else:
        found = urlsplit(request.headers.get("referer", "/"))
    path = found.path.removeprefix(request.scope.get("root_path", ""))
    return path + (f"?{found.query}" if found.query else "")
