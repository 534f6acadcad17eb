"""The page over HTTP: a small server with a bound on everything, and a strict Content-Security-Policy."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edge_agent.config.section import host_and_port, is_loopback
from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, ConfigError
from edge_agent.http_server import IDLE_TIMEOUT_S, BoundedRequest, BoundedServer, body_length, read_body
from edge_agent.page.access import MAX_PASSWORD, Sessions, refusal
from edge_agent.page.service import ACTIONS, VIEWS, Live, PageService
from gaitway import views
from gaitway.errors import first_problem
from gaitway.secret_fields import revealed

log = logging.getLogger(__name__)

MAX_BYTES = 4096
"""Of a request's body: a label and two times."""
FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = {
    **{f"/{path.name}": path for path in FOLDER.iterdir() if path.suffix in TYPES},
    **{f"/views/{path.name}": path for path in views.FOLDER.iterdir() if path.suffix in TYPES},
    **dict.fromkeys(("/", "/timeline"), FOLDER / "index.html"),
}
"""What the page consists of, by its path: its own files, and the views that it shares with the phone's page."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class _Login(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    password: str = Field(max_length=MAX_PASSWORD)


class PageServer(BoundedServer):
    """The page of one device, from when it is made until `close`; port 0 takes a free one."""

    def __init__(self, service: PageService, host: str, port: int, password_hash: str | None = None) -> None:
        self.service = service
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
            self._send(200, FILES[path].read_bytes(), TYPES[FILES[path].suffix])
        elif path == "/api/session":
            sessions = self.server.sessions
            self._answer(200, {"needs_password": sessions.needs_password, "open": sessions.may(self._cookies())})
        elif path.startswith("/api/") and name in VIEWS:
            if self._may():
                self._attempt(lambda: VIEWS[name](self.server.service))
        else:
            self._fail(404, "there is no such page")

    def do_POST(self) -> None:
        body = None if self._is_refused("POST") else self._body()
        if body is None:
            self.close_connection = True
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

    def _is_refused(self, method: str) -> bool:
        reason = refusal(method, self.path.partition("?")[0], self.headers)
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
