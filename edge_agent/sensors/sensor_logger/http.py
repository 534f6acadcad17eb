"""The app's HTTP push: a small listener with a bound on everything that a stranger could send.

The app cannot send headers, so the token is in the URL: /v1/sensor-logger/{token}. It shows its user the text of an
answer with status 499, so that is what anything gets that the user can put right.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl

from edge_agent.config.sensors import PhoneSection
from edge_agent.http_server import IDLE_TIMEOUT_S, BoundedRequest, BoundedServer, body_length, read_body
from edge_agent.sensors.sensor_logger.inbox import Outcome, PhoneInbox, Reply, TokenCheck
from gaitway.secret_fields import revealed

PATH = "/v1/sensor-logger/"
SHOWN_TO_USER_STATUS = 499
STATUS = {Outcome.ACCEPTED: 200, Outcome.REFUSED: SHOWN_TO_USER_STATUS, Outcome.BROKEN: 400, Outcome.BUSY: 503}
ENROL = "not enrolled: the token in the URL is not that of this device; see docs/phones.md"
UNKNOWN = f"unknown path; set the app's Push URL to http://ADDRESS:PORT{PATH}TOKEN"


class Listener(BoundedServer):
    """Runs until `close`."""

    def __init__(self, settings: PhoneSection, inbox: PhoneInbox) -> None:
        self.inbox, self.token = inbox, TokenCheck(revealed(settings.token))
        self.max_bytes = settings.max_body_kb * 1024
        super().__init__(settings.listen, settings.port, _Request)
        if settings.tls_cert and settings.tls_key:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
            # shaking hands here would let one slow client hold up all others
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.begin("phone")


class _Request(BoundedRequest):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gaitway", ""
    timeout = IDLE_TIMEOUT_S
    server: Listener

    def do_POST(self) -> None:
        """Take a message."""
        if not self._is_enrolled():
            return
        length = body_length(self.headers.get("Content-Length", ""), self.server.max_bytes)
        if length is None:
            self._say(411, "a Content-Length is needed")
        elif length > self.server.max_bytes:
            self._say(413, f"a message may have {self.server.max_bytes:,} bytes; choose a shorter batch period")
        elif (body := read_body(self.rfile, length)) is None:
            self.close_connection = True
        else:
            self._answer(self.server.inbox.take(body))

    def do_GET(self) -> None:
        """Let a person try the URL in a browser."""
        self.close_connection = True  # a body would be read as the next request
        if self._is_enrolled():
            self._say(200, "This is the Push URL of a Gaitway device; set it in Sensor Logger.")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request of the app, without a page that repeats it."""
        self._say(code, http.client.responses.get(code, "not a request of Sensor Logger"))

    def _is_enrolled(self) -> bool:
        path = self.path.partition("?")[0]
        if not path.startswith(PATH):
            self._say(SHOWN_TO_USER_STATUS, UNKNOWN)
            return False
        if not self.server.token.matches(path.removeprefix(PATH).rstrip("/")):
            self._say(SHOWN_TO_USER_STATUS, ENROL)
            return False
        return True

    def _answer(self, answer: Reply) -> None:
        self._say(STATUS[answer.verdict], answer.message)

    def _say(self, status: int, words: str) -> None:
        data = words.encode()
        if status >= 400:
            self.close_connection = True  # what is left of the request is not read
        with contextlib.suppress(OSError):
            self.send_response(status, "Told" if status == SHOWN_TO_USER_STATUS else None)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the path holds the token."""
