"""One HTTP connection to the device's server: kept open between requests, size-limited, never redirected.

The standard library's client: proxies are those of the environment (`https_proxy`, `no_proxy`), authorities those of
the system, or of a file alone.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import math
import random
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from edge_agent.errors import ConfigError

ANSWER_BYTES = 512 * 1024
"""More than any message of the protocol."""
MAX_PAUSE_S = 60.0
MAX_WAITS = 20
"""Of one request for its turn; whoever has waited longer says that it cannot be sent."""
_RETRY_S = 1.0
OUT_OF_DATE = (9, 10)
"""OpenSSL's codes of certificates that are not valid yet, or no longer."""


class ServerAnswer(NamedTuple):
    """A whole answer; `retry_after_s` is when a server that is busy wants to be asked again."""

    status: int
    body: bytes
    retry_after_s: float = _RETRY_S

    @property
    def reason(self) -> str:
        """What the server says is wrong, in its own words."""
        try:
            detail = str(json.loads(self.body)["detail"])[:500]
        except (ValueError, KeyError, TypeError):
            detail = "it does not say why; is [server] url the server's base URL?"
        return f"{self.status}: {detail}"


def tls_context(ca_file: Path | None, section: str = "server") -> ssl.SSLContext:
    """Return what believes only the authorities of a file, or the system's, and a certificate for the host's name.

    Raises:
        ConfigError: if the file cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"[{section}] ca_file {ca_file} cannot be read as PEM: {error}") from error


def certificate_todo(error: ssl.SSLCertVerificationError, otherwise: str) -> str:
    """Say what to do about a certificate that can't be verified: boards without a battery start with a wrong clock."""
    if error.verify_code not in OUT_OF_DATE:
        return otherwise
    now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return f"this device's clock says {now} UTC; if that is wrong, wait for NTP or set it"


class ServerConnection:
    """A connection that is opened when it is needed; one thread uses it, any may `interrupt` it."""

    def __init__(self, base_url: str, timeout_s: float, ca_file: Path | None = None) -> None:
        self._base, self._timeout_s, self._ca_file = urlsplit(base_url.rstrip("/")), timeout_s, ca_file
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None  # also where the client has handed it over to the last answer
        self._target = ""
        self._headers: dict[str, str] = {}

    def request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> ServerAnswer:
        """Send a request and read the whole answer.

        Raises:
            OSError: if there is nobody, or the connection breaks.
            ConfigError: if the authorities' file cannot be read.
            HTTPException: if the answer is none of HTTP.
        """
        try:
            response = self.begin(method, path, body, headers)
            answer = whole_answer(response)
            if len(answer.body) > ANSWER_BYTES or response.will_close:
                self.close()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        return answer

    def begin(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Send a request and read the beginning of the answer; the rest is the caller's to read."""
        connection = self._connection or self._open()
        connection.request(method, self._target + path, body, {**self._headers, **headers})
        return connection.getresponse()

    def set_timeout(self, seconds: float) -> None:
        """Change how long silence is borne from now on."""
        if self._socket is not None:
            self._socket.settimeout(seconds)

    def interrupt(self) -> None:
        """Let the thread that reads or writes see the end of the connection."""
        if (carrier := self._socket) is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(carrier, socket.SHUT_RDWR)  # below TLS, whose state is the other thread's

    def close(self) -> None:
        """End the connection; the next request opens another."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()

    def _open(self) -> http.client.HTTPConnection:
        base, proxy = self._base, _proxy_for(self._base)
        self._target, self._headers = base.path, {}
        host, port = base.hostname or "", base.port
        if proxy is None:
            made = self._made(base.scheme, host, port)
        else:
            made = self._made(base.scheme, proxy.hostname or "", proxy.port)
            login = _login_of(proxy)
            if base.scheme == "https":
                made.set_tunnel(host, port, login)
            else:
                self._target, self._headers = f"http://{base.netloc}{base.path}", login
        made.connect()
        self._connection, self._socket = made, made.sock
        return made

    def _made(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "https":
            context = tls_context(self._ca_file)  # read for each connection: it may be a new one
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)


def _proxy_for(base: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for a server, such as `http://user:word@proxy:3128`."""
    found = urllib.request.getproxies().get(base.scheme)
    if not found or urllib.request.proxy_bypass(base.hostname or ""):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")


def _login_of(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def in_turn(request: Callable[[], ServerAnswer]) -> ServerAnswer:
    """Return the answer to a request; where the server takes too many, send it again when it says.

    A whole fleet may share its address or its key, so devices do not come back all at once.
    """
    for _ in range(MAX_WAITS):
        answer = request()
        if answer.status != http.client.TOO_MANY_REQUESTS:
            return answer
        time.sleep(answer.retry_after_s * random.uniform(1.0, 1.5))
    return request()


def whole_answer(answer: http.client.HTTPResponse) -> ServerAnswer:
    """Read what is left of an answer, no more than a byte beyond what any message has."""
    return ServerAnswer(answer.status, answer.read(ANSWER_BYTES + 1), _seconds(answer.getheader("Retry-After")))


def _seconds(header: str | None) -> float:
    try:
        seconds = float(header or "")
    except ValueError:
        return _RETRY_S
    return min(MAX_PAUSE_S, max(0.1, seconds)) if math.isfinite(seconds) else _RETRY_S
