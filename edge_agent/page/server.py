"""The page over HTTP: a small server with a bound on everything, and a strict Content-Security-Policy."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edge_agent.config.section import host_and_port, is_loopback
from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, ConfigError
from edge_agent.http_server import IDLE_TIMEOUT_S, BoundedRequest, BoundedServer, body_length, read_body
from edge_agent.page.access import MAX_PASSWORD, Sessions, refusal
from edge_agent.page.service import ACTIONS, VIEWS, Live, PageService
from edge_agent.page.timeline import DayQuery, SpanLabel, TimelinePage
from edge_agent.page.timeline_html import login_page
from gaitway.errors import first_problem
from gaitway.secret_fields import revealed

log = logging.getLogger(__name__)

MAX_BYTES = 4096
"""Of a request's body: a label and two times."""
FOLDER = Path(__file__).parent / "static"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/dom.js": ("dom.js", "text/javascript; charset=utf-8"),
    "/teach.js": ("teach.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/timeline.js": ("timeline.js", "text/javascript; charset=utf-8"),
    "/timeline.css": ("timeline.css", "text/css; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FORM_HEADERS = {
    "Content-Security-Policy": HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'"),
    "Referrer-Policy": "same-origin",  # without a referrer a form's Origin is null, and who sent it cannot be told
}
"""Of the timeline's page, whose forms work without JavaScript."""
FORM = "application/x-www-form-urlencoded"
MAX_FIELDS = 8
TIMELINE = "/timeline"


class _Login(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    password: str = Field(max_length=MAX_PASSWORD)


class PageServer(BoundedServer):
    """The page of one device, from when it is made until `close`; port 0 takes a free one."""

    def __init__(self, service: PageService, host: str, port: int, password_hash: str | None = None) -> None:
        self.service, self.timeline = service, TimelinePage(service.config)
        super().__init__(host, port, _Request)
        # cookies are not kept apart by port: two devices on one machine must not end each other's sessions
        self.sessions = Sessions(password_hash, f"gaitway_device_{self.port}")
        self.begin("page")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what is our own mistake; a client that goes away is none."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("page request failed")


@contextlib.contextmanager
def served_page(config: Config, config_file: Path, live: Live) -> Iterator[None]:
    """Serve the device's page while the block runs; without `[agent] page` do nothing.

    Raises:
        ConfigError: if the address cannot be listened on.
    """
    me = config.agent
    if me.page is None:
        yield
        return
    try:
        service, hashed = PageService(config, config_file, live), revealed(me.page_password_hash)
        server = PageServer(service, *host_and_port(me.page), hashed)
    except OSError as error:
        raise ConfigError(f"[agent] page {me.page} cannot be listened on: {error.strerror}") from error
    unguarded = "" if is_loopback(me.page) else "; without TLS, so only for a network that you trust"
    log.info("page started url=http://%s/%s", me.page, unguarded)
    try:
        yield
    finally:
        server.close()


class _Undo(BaseModel):
    model_config = ConfigDict(extra="forbid")
    day: date


class _Request(BoundedRequest):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gaitway", ""
    timeout = IDLE_TIMEOUT_S
    server: PageServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = path.removeprefix("/api/")
        if self.headers.get("Content-Length") or self.headers.get("Transfer-Encoding"):
            self.close_connection = True  # a body would be read as the next request
        if self._is_refused("GET"):
            return
        if path in FILES:
            file, kind = FILES[path]
            self._send(200, (FOLDER / file).read_bytes(), kind)
        elif path == TIMELINE:
            self._show_timeline()
        elif path == "/api/session":
            sessions = self.server.sessions
            self._answer(200, {"needs_password": sessions.needs_password, "open": sessions.may(self._cookies())})
        elif path.startswith("/api/") and name in VIEWS:
            if self._may():
                self._attempt(lambda: VIEWS[name](self.server.service))
        else:
            self._fail(404, "there is no such page")

    def do_POST(self) -> None:
        is_form = self.path.startswith(f"{TIMELINE}/")
        body = None if self._is_refused("POST", FORM if is_form else "application/json") else self._body()
        if body is None:
            self.close_connection = True
            return
        if is_form:
            self._take_form(self.path.removeprefix(f"{TIMELINE}/"), body)
            return
        name = self.path.removeprefix("/api/")
        try:
            if name == "login":
                self._log_in(_Login.model_validate_json(body).password)
            elif not self._may():
                return
            elif name == "logout":
                self.server.sessions.log_out(self._cookies())
                self._answer(200, {})
            elif self.path.startswith("/api/") and name in ACTIONS:
                kind, do = ACTIONS[name]
                request = kind.model_validate_json(body)
                self._attempt(lambda: do(self.server.service, request))
            else:
                self._fail(404, "there is no such request")
        except ValidationError as error:
            self._fail(422, first_problem(error))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request of the page, without repeating it."""
        self._fail(code, http.client.responses.get(code, "not a request of this page"))

    # ---- the timeline, whose forms are answered with pages

    def _show_timeline(self) -> None:
        if not self.server.sessions.may(self._cookies()):
            self._send_page(200, login_page())
            return
        timeline = self.server.timeline
        try:
            query = DayQuery.model_validate(_fields(self.path.partition("?")[2]))
            self._send_page(200, timeline.show(query))
        except ValidationError as error:
            self._send_page(422, timeline.show(DayQuery(), first_problem(error)))
        except (AgentError, OSError) as error:
            self._fail(409, str(error))

    def _take_form(self, name: str, body: bytes) -> None:
        sessions, timeline = self.server.sessions, self.server.timeline
        given, day = _fields(body.decode("ascii", "replace")), DayQuery()
        try:
            if name == "login":
                self._log_in_by_form(_Login.model_validate(given).password)
            elif not sessions.may(self._cookies()):
                self._send_page(401, login_page("Log in first."))
            elif name == "label":
                request = SpanLabel.model_validate(given)
                day = DayQuery(day=request.day)
                self._redirect(timeline.label(request))
            elif name == "undo":
                day = DayQuery(day=_Undo.model_validate(given).day)
                self._redirect(timeline.undo(day.day or date.today()))
            else:
                self._fail(404, "there is no such form")
        except ValidationError as error:
            self._send_page(
                422,
                login_page("What came is no password.")
                if name == "login"
                else timeline.show(day, first_problem(error)),
            )
        except (AgentError, OSError) as error:
            self._send_page(409, timeline.show(day, str(error)))

    def _log_in_by_form(self, password: str) -> None:
        try:
            cookie = self.server.sessions.log_in(password, self.client_address[0])
        except PermissionError as error:
            self._send_page(429, login_page(str(error)))
            return
        if cookie is None:
            self._send_page(401, login_page("This is not the password."))
        else:
            self._redirect(TIMELINE, {"Set-Cookie": cookie})

    def _redirect(self, address: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(303, b"", "text/plain", {"Location": address, **FORM_HEADERS, **(headers or {})})

    def _send_page(self, status: int, text: str) -> None:
        self._send(status, text.encode(), "text/html; charset=utf-8", FORM_HEADERS)

    def _is_refused(self, method: str, body: str = "application/json") -> bool:
        reason = refusal(method, self.path.partition("?")[0], self.headers, body)
        if reason:
            self._fail(403, reason)
        return bool(reason)

    def _may(self) -> bool:
        may = self.server.sessions.may(self._cookies())
        if not may:
            self._fail(401, "log in first")
        return may

    def _cookies(self) -> str:
        return self.headers.get("Cookie", "")

    def _body(self) -> bytes | None:
        length = body_length(self.headers.get("Content-Length", ""), MAX_BYTES)
        if length is None:
            self._fail(411, "a Content-Length is needed")
        elif length > MAX_BYTES:
            self._fail(413, f"a request may have {MAX_BYTES:,} bytes")
        else:
            return read_body(self.rfile, length)
        return None

    def _log_in(self, password: str) -> None:
        try:
            cookie = self.server.sessions.log_in(password, self.client_address[0])
        except PermissionError as error:
            self._fail(429, str(error))
            return
        if cookie is None:
            self._fail(401, "this is not the password")
        else:
            self._answer(200, {}, {"Set-Cookie": cookie})

    def _attempt(self, do: Any) -> None:
        try:
            answer = do()
        except (AgentError, OSError) as error:
            self._fail(409, str(error))
            return
        self._answer(200, answer)

    def _fail(self, status: int, words: str) -> None:
        self._answer(status, {"error": words})

    def _answer(self, status: int, found: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        self._send(status, json.dumps(found, allow_nan=False).encode(), "application/json", headers)

    def _send(self, status: int, data: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
        if status >= 400:
            self.close_connection = True  # what is left of the request is not read
        with contextlib.suppress(OSError):
            self.send_response(status)
            more = {"Connection": "close"} if self.close_connection else {}
            sized = {"Content-Type": kind, "Content-Length": str(len(data))}
            for name, value in {**HEADERS, **sized, **more, **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the page asks every second."""


def _fields(text: str) -> dict[str, str]:
    """Read the fields of a form or a query; what is none of them, or too much, is nothing."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"))
    except ValueError:
        return {}
