"""Login: an API key is shown once and exchanged for a cookie, and logout ends the session."""

from __future__ import annotations

import re
import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from aggregator_api.auth import api_keys, sessions
from aggregator_api.auth.callers import peer_of
from aggregator_api.auth.scopes import anybody
from aggregator_api.core.errors import ForbiddenError, RequestError
from aggregator_api.core.ports import is_loopback
from aggregator_api.http.dependencies import DatabaseDep
from aggregator_api.http.web.forms import FormDep
from aggregator_api.http.web.pages import page
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.database import Database

router = APIRouter()

_LINK = re.compile(r"[A-Za-z0-9_-]{43}")
_LOCAL_PATH = re.compile(r"/(?![/\\])[A-Za-z0-9_./%~-]{0,300}(\?[A-Za-z0-9_.~%=&+-]{0,300})?")


@router.get("/login")
@anybody()
def show(request: Request, next: str = "/") -> Response:
    """Ask for a key; who has a session already goes on."""
    target = _target(next)
    if request.state.caller is not None:
        return RedirectResponse(target, 303)
    return page(request, "login.html", next=target, problem="")


@router.get("/login/{link}")
@anybody(below=("/login/",))
def follow_link(request: Request, database: DatabaseDep, link: str) -> Response:
    """Let the browser in that comes with a link of `login-link`, once; whoever comes later is asked for a key."""
    peer = peer_of(request.scope)
    if not is_loopback(peer):
        raise ForbiddenError(f"a login link works on the server's machine alone, and not from {peer}; show a key")
    if not _LINK.fullmatch(link):
        words = "This link is cut off; run `login-link` again on the server's machine, and copy it whole."
        return page(request, "login.html", status=422, next="/", problem=words)
    with database.write() as session:
        begun = sessions.follow_link(session, link, time.time())
        if begun is not None:
            audit.record(session, "sessions.create", actor=begun.key, address=peer, detail="by a link")
    if begun is None:
        refuse: Any = request.state.wrong_key
        error = refuse("this link was used, or its time is over; `login-link` on the server's machine makes another")
        return page(request, "login.html", status=error.status, next="/", problem=str(error))
    return _let_in(request, begun, "/")


@router.post("/login")
@anybody()
def log_in(request: Request, database: DatabaseDep, form: FormDep) -> Response:
    """Exchange a key for a session."""
    target = _target(form.get("next", "/"))
    try:
        begun = _begin(request, database, form.get("key", "").strip())
    except RequestError as error:
        refused = page(request, "login.html", status=error.status, next=target, problem=str(error))
        refused.headers.update(error.headers)
        return refused
    return _let_in(request, begun, target)


def _let_in(request: Request, begun: sessions.NewSession, target: str) -> Response:
    answer = RedirectResponse(target, 303)
    answer.set_cookie(value=begun.token, max_age=int(begun.expires_at - time.time()), **_cookie(request))
    return answer


@router.post("/logout")
@anybody()
def log_out(request: Request, database: DatabaseDep, form: FormDep) -> Response:
    """End the session; its cookie opens nothing any more, wherever it was copied to."""
    if request.state.caller is not None:  # else it has ended in another tab
        with database.write() as session:
            sessions.end(session, request.state.session)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(**_cookie(request))
    return answer


def _cookie(request: Request) -> dict[str, Any]:
    """Return what the session's cookie is called, and to whom a browser shows it."""
    scheme, root = request.url.scheme, request.scope.get("root_path", "")
    name, path = sessions.cookie_name(scheme, root), sessions.cookie_path(root)
    return {"key": name, "path": path, "httponly": True, "samesite": "strict", "secure": scheme == "https"}


def _begin(request: Request, database: Database, key: str) -> sessions.NewSession:
    now, wrong = time.time(), "this key is unknown, expired or revoked; look for a slip, or ask for another"
    with database.read() as session:  # a wrong key must not make writers wait
        caller = api_keys.find(session, key, now)
    if caller is None:
        refuse: Any = request.state.wrong_key
        raise refuse(wrong)
    with database.write() as session:
        if not caller.scopes & {"operator", "read"}:
            raise ForbiddenError("this key is a device's: it opens models, not pages", scope="operator read")
        audit.mention(f"key {caller.id}")
        begun = sessions.begin(session, caller, now)
    if begun is None:
        raise ForbiddenError(wrong)
    return begun


def _target(wanted: str) -> str:
    """Return where to go after login: a page of this server, never another site."""
    return wanted if _LOCAL_PATH.fullmatch(wanted) and wanted != "/login" else "/"
