"""Receives the Sensor Logger app's messages, by a bounded HTTP listener or an MQTT topic, into one inbox.

Errors in a message are reported to the phone at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import logging
import queue
import ssl
import threading
import time
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.config.brokers import BrokerPlace
from edge_agent.config.sensors import PhoneSection
from edge_agent.config.settings import Config
from edge_agent.errors import ConfigError, MessageError
from edge_agent.http_server import IDLE_TIMEOUT_S, BoundedRequest, BoundedServer, body_length, read_body
from edge_agent.sensors.sensor_logger.message import CALIBRATE, SampleBatch, parse, signed, wrong_direction, wrong_units
from edge_agent.storage.broker_address import require_place
from edge_agent.storage.credentials import Login, login, read_credentials
from gaitway.secret_fields import revealed
from har_pipeline.apps.export import ActivityWords

log = logging.getLogger(__name__)

MAX_QUEUED = 16
"""Messages that wait for the collecting thread; as arrays at most 640 kB each."""
TAKEOVER_AFTER_S = 30.0
"""After which another phone may take over."""
HASHED = "sha256:"


class Outcome(Enum):
    """What becomes of a message."""

    ACCEPTED = "taken"
    REFUSED = "refused"  # and the phone's user can do something about it
    BROKEN = "broken"
    BUSY = "busy"


class Reply(NamedTuple):
    """A verdict, and words for the phone's user."""

    verdict: Outcome
    message: str


class PhoneInbox:
    """Thread-safe; `batches` is what the collecting thread takes from."""

    def __init__(self, settings: PhoneSection) -> None:
        self.settings = settings
        self.batches: queue.Queue[SampleBatch | None] = queue.Queue(MAX_QUEUED)
        self._lock = threading.Lock()
        self._device, self._heard = "", 0.0

    def take(self, body: bytes) -> Reply:
        """Check one message, and queue it if it can be used."""
        try:
            batch = parse(body)
        except MessageError as error:
            return Reply(Outcome.BROKEN, str(error))
        if batch is None:
            return Reply(Outcome.ACCEPTED, "connected; start a recording")
        if words := self._stranger(batch.device) or wrong_units(batch):
            return Reply(Outcome.REFUSED, words)
        batch = signed(batch, self.settings.platform)
        if any(note.text.strip().lower() == CALIBRATE for note in batch.notes) and (words := wrong_direction(batch)):
            return Reply(Outcome.REFUSED, words)
        try:
            self.batches.put_nowait(batch)
        except queue.Full:
            return Reply(Outcome.BUSY, "this device cannot keep up; choose a lower rate or fewer sensors in the app")
        return Reply(Outcome.ACCEPTED, "")

    def wake(self) -> None:
        """Let the collecting thread look up although no message came."""
        with contextlib.suppress(queue.Full):
            self.batches.put_nowait(None)

    def _stranger(self, device: str) -> str:
        """Say why a phone's messages are not wanted now; '' if they are."""
        wanted = self.settings.device_id
        if wanted is not None and device != wanted:
            return f"not enrolled: this device listens to the phone {wanted!r} only; this one is {device!r}"
        with self._lock:
            now = time.monotonic()
            if device != self._device and self._device and now - self._heard < TAKEOVER_AFTER_S:
                return "another phone is recording to this device; stop it there first"
            self._device, self._heard = device, now
        return ""


class TokenCheck:
    """Compares tokens in constant time; only the hash stays in memory."""

    def __init__(self, token: str | None) -> None:
        if token is None:
            raise ConfigError(
                "[phone] token is missing; make one with "
                "`python -c 'import secrets; print(secrets.token_urlsafe(16))'`, "
                "set it as GAITWAY_EDGE_PHONE_TOKEN, and see docs/phones.md"
            )
        self._hash = token.removeprefix(HASHED) if token.startswith(HASHED) else _hash(token)

    def matches(self, token: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(_hash(token).encode(), self._hash.lower().encode())


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Vocabulary(ActivityWords):
    """What the texts of annotations mean under a plan's labels."""

    def __init__(self, settings: PhoneSection, labels: Sequence[str]) -> None:
        super().__init__(labels, settings.annotations, settings.stop_annotations)


PATH = "/v1/sensor-logger/"
SHOWN_TO_USER_STATUS = 499
STATUS = {Outcome.ACCEPTED: 200, Outcome.REFUSED: SHOWN_TO_USER_STATUS, Outcome.BROKEN: 400, Outcome.BUSY: 503}
ENROL = "not enrolled: the token in the URL isn't this device's; see docs/phones.md"
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
            self._say(413, f"a message may have at most {self.server.max_bytes:,} bytes; choose a shorter batch period")
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


MAX_WAIT_S = 60


class Subscription:
    """Connects again by itself until `close`; refused messages are logged, each reason once in a row."""

    def __init__(self, config: Config, inbox: PhoneInbox) -> None:
        phone = config.phone
        self._inbox, self._topic, self._max_bytes = inbox, phone.topic, phone.max_body_kb * 1024
        self._said = ""
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{config.agent.device}-phone"[:64])
        self._client.reconnect_delay_set(1, MAX_WAIT_S)
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message
        place, who = _broker_of(config)
        if who.username:
            self._client.username_pw_set(who.username, who.password)
        if place.tls:
            self._client.tls_set_context(ssl.create_default_context(cafile=place.ca_file))
        self._client.connect_async(place.host, place.port, config.broker.keepalive_s)
        self._client.loop_start()

    def close(self) -> None:
        """Leave the broker."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: paho.Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            log.warning("phone broker refused the login: %s", reason)
        else:
            client.subscribe(self._topic, qos=0)

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        if len(message.payload) > self._max_bytes:
            words = f"a message of {len(message.payload):,} bytes; [phone] max_body_kb allows {self._max_bytes:,}"
        else:
            answer = self._inbox.take(bytes(message.payload))
            words = "" if answer.verdict is Outcome.ACCEPTED else answer.message
        if words and words != self._said:
            log.warning("phone message ignored: %s", words)
        self._said = words


def _broker_of(config: Config) -> tuple[BrokerPlace, Login]:
    phone = config.phone
    if not phone.mqtt_host:
        return require_place(config), login(config.broker, read_credentials(config.agent.data_dir), config.agent.device)
    place = BrokerPlace(phone.mqtt_host, phone.mqtt_port, phone.mqtt_ca is not None, phone.mqtt_ca)
    return place, Login("", phone.mqtt_username, revealed(phone.mqtt_password))
