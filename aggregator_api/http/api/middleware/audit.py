"""Records every request that may change something in the audit log, for all routes."""

from __future__ import annotations

import json
from functools import lru_cache
from re import Pattern
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.auth.scopes import declared_routes, is_device_message
from aggregator_api.http.api.middleware.problems import replay
from aggregator_api.operations.counts import RefusalLog
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.audit import Intent
from aggregator_api.storage.db.database import Database

SAFE = ("GET", "HEAD", "OPTIONS")
ENROL, CLAIM, TOKEN = "/v1/enrol", "/v1/enrol/claim", "/v1/enrol/token"
UNKNOWN = "unknown.request"
LOGIN, LOGOUT, CHECK = "/login", "/logout", "/new-federation/check"
_PAGE_ACTIONS = {LOGIN: "sessions.create", LOGOUT: "sessions.delete", "/new-federation": "federations.create"}
_PAGES = frozenset({"", "checkpoints", "events", "federations", "live", "new-federation"})
"""First parts of the paths of pages, which are named like what REST does at the path of the same name."""
_SECRET = frozenset({"key", "csrf"})
"""Fields of forms that the audit must not hold."""
_VERBS = {"post": "create", "put": "set", "patch": "change", "delete": "delete"}
_BODY_CHARS = 300
_DELETES = "/delete"
"""What a page adds to the path of REST's DELETE."""
_UNAUDITED_STATUSES = (201, 202)
"""Answers of those that wait: a token for some minutes, which devices ask for again and again; not approved yet."""
_ANSWER_CHARS = 200


class Target(NamedTuple):
    """What a request is for: the audit's word for it, and the federation and device that its path names."""

    action: str
    federation: str = ""
    device: str = ""


class AuditRequests:
    """Hands the entry to the request's first transaction; a refused or failed request gets one that says so.

    What devices say passes by, as it does at a broker: the journal has what came of it.

    It stands behind authentication, which knows who asks, and behind Idempotency, which answers repeats by itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, and see how it ends before its caller does."""
        changes_nothing = scope["type"] != "http" or scope["method"] in SAFE or scope["path"] == CHECK
        if changes_nothing or is_device_message(scope.get("state", {})):
            await self._app(scope, receive, send)
            return
        body = (await receive()).get("body", b"")  # all of it: BodyLimit has put it together
        intent = _intent(scope, body)
        state = scope["app"].state
        is_known = scope.get("state", {}).get("caller") is not None
        waits = scope["path"] in (CLAIM, TOKEN)
        answered = _AuditingSend(state.database, state.refusals, intent, send, waits=waits, is_known=is_known)
        if answered.waits:
            await self._app(scope, replay(body, receive), answered)
            return
        with audit.intended(intent):
            await self._app(scope, replay(body, receive), answered)


class _AuditingSend:
    """Sends a response once the audit log has its outcome; for a refusal, the problem's message."""

    def __init__(
        self, database: Database, refusals: RefusalLog, intent: Intent, send: Send, *, waits: bool, is_known: bool
    ) -> None:
        self._database = database
        self._refusals = refusals
        self._intent = intent
        self._send = send
        self.waits = waits
        """Whether most such requests only poll, so that an entry is written only for their outcome."""
        self._start: Message | None = None
        self._is_known = is_known

    async def __call__(self, message: Message) -> None:
        """Keep the start of an answer until its first bytes, which say why it was refused."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            start, self._start = self._start, None
            await run_in_threadpool(self._note, start["status"], message.get("body", b""))
            await self._send(start)
        await self._send(message)

    def _note(self, status: int, body: bytes) -> None:
        intent, was_written = self._intent, self._intent.is_written
        intent.is_written = True  # what follows are transactions of this request too
        if status >= 400:
            words = f"answered {status}: {_reason(body)}"
            intent.detail = f"{words}; {intent.detail}" if intent.detail else words
            if self._is_known:
                self._refusals.note(intent)
            else:
                self._refusals.count(intent)
        elif not was_written and not (self.waits and status in _UNAUDITED_STATUSES):
            with self._database.write() as session:
                audit.write(session, intent)


@lru_cache(maxsize=4)
def _operations(app: FastAPI) -> list[tuple[Pattern[str], dict[str, str]]]:
    """Return each path's pattern, and the audit's word for each of its methods."""
    paths: dict[str, set[str]] = {}
    for route in declared_routes(app).routes:
        if route.path.startswith("/v1/"):
            paths.setdefault(route.path, set()).update(method.lower() for method in route.methods)
    return [
        (compile_path(path)[0], {method: action(method, path, has_list="get" in methods) for method in methods})
        for path, methods in paths.items()
    ]


def target(app: FastAPI, method: str, path: str) -> Target:
    """Name what a request does, and to what; a page's form does what REST does at the path of the same name."""
    if path in _PAGE_ACTIONS:
        return Target(_PAGE_ACTIONS[path])
    is_page = _is_page(path)
    if is_page and path.endswith(_DELETES):  # forms cannot DELETE
        method, path = "DELETE", path.removesuffix(_DELETES)
    for pattern, actions in _operations(app):
        if found := pattern.match(f"/v1{path}" if is_page else path):
            named = found.groupdict()
            done = actions.get(method.lower())
            if done is None and is_page:  # forms only POST
                done = actions.get("put") or actions.get("patch")
            if done is None and is_page and method == "POST":
                done = action("put", path, has_list=True)  # to a list, naming which one of it in a field
            return Target(done or UNKNOWN, named.get("name", ""), named.get("device", ""))
    return Target(UNKNOWN)


def _is_page(path: str) -> bool:
    return path.startswith("/") and path.split("/", 2)[1] in _PAGES


def action(method: str, path: str, *, has_list: bool) -> str:
    """Return a noun and a verb: `POST /v1/federations/{name}/devices/{device}/revoke` is `devices.revoke`.

    What is POSTed to a path that can be listed (`has_list`) is made there; else the path ends in a verb.
    """
    if path in (ENROL, CLAIM, TOKEN):
        return f"devices.{path.rpartition('/')[2]}"
    nouns = [part for part in path.split("/")[2:] if not part.startswith("{")]
    if method == "post" and not has_list and len(nouns) > 1:
        return ".".join(nouns[-2:])
    return f"{nouns[-1]}.{_VERBS.get(method, method)}"


def _intent(scope: Scope, body: bytes) -> Intent:
    state = scope.get("state", {})
    client = scope["client"][0] if scope.get("client") else ""
    caller, address = state.get("caller"), state.get("client_address", client)
    found = target(scope["app"], scope["method"], scope["path"])
    is_form = _is_page(scope["path"]) or scope["path"] in _PAGE_ACTIONS
    if _is_file(scope):  # not read as text, which takes as much memory again, nor shown
        is_form, body = False, f"{len(body):,} bytes".encode()
    fields = _fields(body) if is_form else _object(body)
    federation = found.federation or _text(fields, "federation")
    if found.action == "federations.create":
        federation = _text(fields, "name")
    device = found.device or _text(fields, "device")
    # what a device sends to enrol holds a secret
    text = json.dumps(fields, ensure_ascii=False) if is_form else body[:_BODY_CHARS].decode(errors="replace")
    shown = "" if scope["path"] in (ENROL, CLAIM, TOKEN) else text[:_BODY_CHARS]
    detail = shown if found.action != UNKNOWN else f"{scope['method']} {scope['path'][:200]}"
    unnamed = "unknown" if is_form else "device"
    return Intent(caller.id if caller else unnamed, address, found.action, federation, device, detail)


def _is_file(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.removeprefix("/v1") == "/checkpoints"


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _fields(body: bytes) -> dict[str, Any]:
    """Read a form as far as it can be read, without its secrets."""
    try:
        fields = parse_qsl(body.decode(errors="replace"), max_num_fields=200)
    except ValueError:
        return {}
    return {name: value for name, value in fields if name not in _SECRET}


def _text(fields: dict[str, Any], name: str) -> str:
    return value if isinstance(value := fields.get(name), str) else ""


def _reason(body: bytes) -> str:
    return _text(_object(body), "detail")[:_ANSWER_CHARS] or "no reason was given"
