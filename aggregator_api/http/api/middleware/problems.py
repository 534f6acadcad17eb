"""Errors as application/problem+json (RFC 9457), and a limit on requests' size."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.core.errors import (
    RequestError,
    ServerFailedError,
    StorageFullError,
    TooLargeError,
    UnavailableError,
)
from aggregator_api.http.queries.resources import Problem
from aggregator_api.storage.outages import Outage, failures, outage_of
from gaitway.plain_text import cleaned

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


def problem(
    request: Request, status: int, title: str, detail: str, *, errors: list[dict[str, Any]] | None = None
) -> Response:
    """Return an error response."""
    body = Problem(title=title, status=status, detail=detail, instance=request.url.path, errors=errors)
    return Response(body.model_dump_json(exclude_none=True), status, media_type=MEDIA_TYPE)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route for OpenAPI."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def install(app: FastAPI, *, max_body_bytes: int, larger: Mapping[str, int] | None = None) -> None:
    """Answer every error of the application as a problem, and refuse bodies that are too large.

    larger: paths whose bodies may be larger, and how large.
    """

    @app.exception_handler(RequestError)
    async def known(request: Request, error: RequestError) -> Response:
        answer = problem(request, error.status, error.title, str(error))
        answer.headers.update(error.headers)
        return answer

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        errors = [
            {"field": cleaned(_where(item["loc"])), "message": cleaned(str(item["msg"]))} for item in error.errors()
        ]
        detail = "; ".join(f"{item['field']}: {item['message']}" for item in errors[:3])
        return problem(request, 422, "Unprocessable content", detail, errors=errors)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        answer = problem(request, error.status_code, HTTPStatus(error.status_code).phrase, str(error.detail))
        answer.headers.update(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            answer.headers["Allow"] = ", ".join(sorted(_methods_at(app, request.url.path)))
        return answer

    app.add_middleware(BodyLimit, limit=max_body_bytes, larger=larger or {})


def _methods_at(app: FastAPI, path: str) -> set[str]:
    """Return what a path answers; starlette itself names only the methods of the first route there."""
    documented = app.openapi()["paths"].items()
    matching = (operations for template, operations in documented if compile_path(template)[0].match(path))
    return {method.upper() for operations in matching for method in operations}


class BodyLimit:
    """Refuses a request whose body is larger than the limit, whatever its Content-Length says."""

    def __init__(self, app: ASGIApp, limit: int, larger: Mapping[str, int]) -> None:
        self._app = app
        self._limit = limit
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body within the limit, then hand the request on."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        limit = self._larger.get(scope["path"], self._limit)
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > limit:
                setting = "max_model_bytes" if scope["path"] in self._larger else "max_body_bytes"
                detail = f"the body is larger than {limit:,} bytes ({setting})"
                await send_problem(scope, send, TooLargeError(detail))
                return
        whole = bytes(body)
        del body  # a model is large: it is held once
        await self._app(scope, replay(whole, receive), send)


async def send_problem(scope: Scope, send: Send, error: RequestError) -> None:
    """Answer a request with an error before it reaches a route; its body, if it has one, is not read."""
    body = Problem(title=error.title, status=error.status, detail=str(error), instance=scope["path"])
    text = body.model_dump_json(exclude_none=True).encode()
    length = str(len(text))
    headers = {"content-type": MEDIA_TYPE, "content-length": length, "connection": "close", **error.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": text})


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body that was read already."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()  # the disconnect, once it comes
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _where(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location if part != "body") or "body"


class FailedRequests:
    """Answers failed requests with problems; unexpected errors are raised again for the server to log.

    An exception handler of the application would answer outside of all middleware: a browser would get JSON, without
    the headers that every answer has.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; an answer that has begun can only be cut off."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if outage_of(error) is not None and not begun:
                outage = failures.report(f"{scope['method']} {scope['path']} failed", error)
                await send_problem(scope, send, _answer(outage))
                return
            log.error("request failed path=%s: %r", scope["path"], error)
            if not begun:
                await send_problem(scope, send, ServerFailedError("internal error; the server log has the details"))
            raise


def _answer(outage: Outage | None) -> RequestError:
    if outage is Outage.FULL:
        return StorageFullError(f"{outage.value}: nothing was changed; free some space, then try again")
    detail = outage.value if outage else "the store cannot be used"
    return UnavailableError(f"{detail}; the same request may work in a few seconds")
