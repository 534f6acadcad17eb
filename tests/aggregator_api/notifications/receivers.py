"""A webhook's receiver over HTTPS and a mail server with STARTTLS, on loopback: both do as they are told."""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple


class Posted(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Hook(ThreadingHTTPServer):
    """Answers with the statuses that are set, the last one for ever."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext) -> None:
        self.posted: list[Posted] = []
        self.statuses = [200]
        super().__init__(("127.0.0.1", 0), _Post)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"https://localhost:{self.server_port}/hook?token=1"


class _Post(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append(Posted(self.path, dict(self.headers), body))
        statuses = self.server.statuses
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status == 302:
            self.send_header("Location", self.server.url)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class MailServer(socketserver.ThreadingTCPServer):
    """Speaks as much of SMTP as smtplib asks for, and takes mail after STARTTLS and a login alone."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context, self.mails, self.logins = context, list[bytes](), list[str]()
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.port = self.server_address[1]


class _Smtp(socketserver.StreamRequestHandler):
    server: MailServer
    answers: ClassVar[dict[str, str]] = {"MAIL": "250 ok", "RCPT": "250 ok", "QUIT": "221 bye", "RSET": "250 ok"}

    def handle(self) -> None:
        self._say("220 test")
        is_private = is_known = False
        plain = self.connection
        while line := self.rfile.readline(1000).decode().strip():
            verb = line.split()[0].upper()
            if verb == "EHLO":
                self._say("250-test\r\n250 " + ("AUTH PLAIN" if is_private else "STARTTLS"))
            elif verb == "STARTTLS":
                self._say("220 go")
                self.connection = self.server.context.wrap_socket(plain, server_side=True)
                self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
                is_private = True
            elif verb == "AUTH" and is_private:
                self.server.logins.append(line.split()[-1])
                is_known = True
                self._say("235 ok")
            elif verb == "DATA" and is_known:
                self._say("354 go")
                self.server.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")))
                self._say("250 ok")
            else:
                self._say(self.answers.get(verb, "530 no") if is_known or verb == "QUIT" else "530 log in first")
            if verb == "QUIT":
                break
        self.connection.close()

    def _say(self, words: str) -> None:
        self.wfile.write(f"{words}\r\n".encode())


@contextmanager
def running(server: Any) -> Iterator[None]:
    """Serve until the block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return what shows a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
