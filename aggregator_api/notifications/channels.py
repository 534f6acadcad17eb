"""Outgoing notifications: the message, and its channels (webhook, e-mail)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path
from string import Template
from typing import Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import Settings
from gaitway.secret_fields import revealed

MAX_TEMPLATE_BYTES = 64 << 10
MAX_MESSAGE_CHARS = 2000


class Notification(NamedTuple):
    """A notification of `thing` in `state`, sent once; `federation` is empty for the server."""

    level: str
    message: str
    federation: str
    thing: str
    state: str
    page: str
    server: str
    at: float

    @property
    def key(self) -> str:
        """Name the thing among all of the server."""
        return f"{self.federation}/{self.thing}"

    @property
    def delivery(self) -> str:
        """Name this telling: the same in every attempt, so that who receives it twice can know."""
        text = json.dumps([self.federation, self.thing, self.state, self.at])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def subject(self) -> str:
        """Say it in a line."""
        where = f" ({self.federation})" if self.federation else ""
        return f"Gaitway {self.level}{where}: {' '.join(self.message.split())}"[:180]

    def values(self) -> dict[str, str]:
        """Return what a template can name."""
        at = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        shortened = self._replace(message=self.message[:MAX_MESSAGE_CHARS])._asdict()
        return {**shortened, "at": at, "delivery": self.delivery}


def read_template(file: Path | None, form: Literal["json", "text"]) -> Template | None:
    """Read an operator's template; None without one.

    Raises:
        ConfigError: if it cannot be read, names something unknown, or as JSON is none.
    """
    if file is None:
        return None
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(MAX_TEMPLATE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"notify_webhook_template_file {file} cannot be read: {error}") from error
    if len(text) > MAX_TEMPLATE_BYTES:
        raise ConfigError(f"notify_webhook_template_file {file} has more than {MAX_TEMPLATE_BYTES:,} characters")
    template, probe = Template(text), Notification("note", 'a "quoted"\nline', "f", "t", "s", "p", "u", 0.0)
    try:
        written = write(probe, template, form)
    except (KeyError, ValueError) as error:
        known = ", ".join(f"${name}" for name in probe.values())
        raise ConfigError(f"notify_webhook_template_file {file}: {error}; known are {known}, and $$ for a $") from error
    if form == "json":
        try:
            json.loads(written)
        except ValueError as error:
            raise ConfigError(
                f"notify_webhook_template_file {file} is no JSON once it is filled in: {error}; put each $name "
                'between quotation marks, such as {"text": "$message"}, or set notify_webhook_format = "text"'
            ) from error
    return template


def write(notification: Notification, template: Template | None, form: Literal["json", "text"]) -> bytes:
    """Write a POST's body; values in JSON are escaped, so that a message can't end its string."""
    values = notification.values()
    if template is None:
        return (json.dumps(values, ensure_ascii=False) if form == "json" else notification.message).encode()
    if form == "json":
        values = {name: json.dumps(value)[1:-1] for name, value in values.items()}
    return template.substitute(values).encode()


MIN_SECRET_CHARS = 16
MAX_REASON_CHARS = 200


class DeliveryResult(NamedTuple):
    """What became of an attempt: an empty `reason` is success; `is_final`: another attempt would end the same way."""

    reason: str = ""
    is_final: bool = False


class NotificationChannel(Protocol):
    """A way to the operator."""

    name: str

    def deliver(self, notification: Notification) -> DeliveryResult:
        """Try once, and return the result."""


def channels_of(settings: Settings) -> list[NotificationChannel]:
    """Return the ways that the settings name.

    Raises:
        ConfigError: if a file of theirs cannot be read, or a template or a secret is none.
    """
    found: list[NotificationChannel] = []
    if settings.notify_webhook_url is not None:
        found.append(Webhook(settings))
    if settings.notify_email_to:
        found.append(Email(settings))
    return found


class Webhook:
    """Posts to the operator's URL, signed if there is a secret.

    The signature is `t=<Unix time>,v1=<hex>` of HMAC-SHA256 over `<Unix time>.<body>`, as Stripe's webhooks have it, so
    that a receiver can refuse what is old.
    """

    name = "webhook"

    def __init__(self, settings: Settings) -> None:
        self._url = urlsplit(revealed(settings.notify_webhook_url) or "")
        self._form, self._timeout_s = settings.notify_webhook_format, settings.notify_timeout_s
        self._template = read_template(settings.notify_webhook_template_file, self._form)
        self._secret = _secret(settings.notify_webhook_secret_file, "notify_webhook_secret_file", MIN_SECRET_CHARS)
        self._tls = _tls(settings.notify_ca_file)

    def deliver(self, notification: Notification) -> DeliveryResult:
        """Post it once."""
        host, port = self._url.hostname or "", self._url.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
            if self._url.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        )
        body = write(notification, self._template, self._form)
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        try:
            connection.connect()
            with _ended_after(self._timeout_s, lambda: connection.sock):
                connection.request("POST", path, body, self._headers(notification, body))
                status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return DeliveryResult(f"{host}: {_words(error)}")
        finally:
            connection.close()
        if 200 <= status < 300:
            return DeliveryResult()
        # busy and broken servers may recover; another refusal stays one
        return DeliveryResult(f"{host} answered {status}", is_final=status < 500 and status not in (408, 425, 429))

    def _headers(self, notification: Notification, body: bytes) -> dict[str, str]:
        kind = "application/json" if self._form == "json" else "text/plain; charset=utf-8"
        headers = {"Content-Type": kind, "User-Agent": "gaitway", "X-Gaitway-Delivery": notification.delivery}
        if self._secret is not None:
            headers["X-Gaitway-Signature"] = signature(self._secret, int(time.time()), body)
        return headers


def signature(secret: str, at: int, body: bytes) -> str:
    """Sign a body, as the header has it."""
    digest = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class Email:
    """Sends mail over the operator's mail server."""

    name = "email"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tls = _tls(settings.notify_ca_file)
        self._password = _secret(settings.notify_smtp_password_file, "notify_smtp_password_file", 1)

    def deliver(self, notification: Notification) -> DeliveryResult:
        """Send it once."""
        host = self._settings.notify_smtp_host or ""
        try:
            with self._connected(host) as server, _ended_after(self._settings.notify_timeout_s, lambda: server.sock):
                if self._settings.notify_smtp_security == "starttls":
                    server.starttls(context=self._tls)
                if self._settings.notify_smtp_username is not None:
                    server.login(self._settings.notify_smtp_username, self._password or "")
                refused = server.send_message(self._message(notification))
        except smtplib.SMTPResponseException as error:
            return DeliveryResult(f"{host} answered {error.smtp_code}", is_final=error.smtp_code >= 500)
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            return DeliveryResult(f"{host} takes none of the recipients", is_final=all(code >= 500 for code in codes))
        except (OSError, smtplib.SMTPException) as error:
            return DeliveryResult(f"{host}: {_words(error)}")
        # the others have it, and would get it twice
        return DeliveryResult(f"{host} refuses {', '.join(refused)}" if refused else "", is_final=True)

    def _connected(self, host: str) -> smtplib.SMTP:
        port, timeout_s = self._settings.smtp_port, self._settings.notify_timeout_s
        if self._settings.notify_smtp_security == "tls":
            return smtplib.SMTP_SSL(host, port, timeout=timeout_s, context=self._tls)
        return smtplib.SMTP(host, port, timeout=timeout_s)

    def _message(self, notification: Notification) -> EmailMessage:
        sender = self._settings.notify_email_from or ""
        message = EmailMessage()
        message["Subject"] = notification.subject
        message["From"], message["To"] = sender, ", ".join(self._settings.notify_email_to)
        message["Date"] = formatdate(localtime=False)
        message["Message-ID"] = f"<{notification.delivery}@{sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        about = f"\n\nFederation: {notification.federation}" if notification.federation else ""
        message.set_content(f"{notification.message}{about}\n\n{notification.page}\n")
        return message


@contextmanager
def _ended_after(timeout_s: float, connected: Callable[[], socket.socket | None]) -> Iterator[None]:
    """Cut a connection whose other end says a byte now and then for longer than that."""

    def cut() -> None:
        with contextlib.suppress(OSError):
            if (opened := connected()) is not None:
                opened.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"notify_ca_file {ca_file} cannot be read as PEM: {error}") from error


def _secret(file: Path | None, setting: str, shortest: int) -> str | None:
    if file is None:
        return None
    try:
        with file.open(encoding="utf-8") as opened:
            found = opened.readline(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting} {file} cannot be read: {error}") from error
    if len(found) < shortest:
        raise ConfigError(f"{setting} {file}: its first line has {len(found)} characters; expected {shortest} at least")
    return found


def _words(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return " ".join(str(text).split())[:MAX_REASON_CHARS]
