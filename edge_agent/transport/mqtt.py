"""The broker connection: paho-mqtt with a persistent session, a last will and an explicit reconnect loop.

Every connection is a client of its own, whose network thread alone writes its socket: paho lets whoever publishes write
it unless `loop_start` has made that thread, and two threads in one TLS socket break it, or crash OpenSSL.
Callbacks run on the network thread and only post events. Nothing is kept here: what must survive is in the outbox.
"""

from __future__ import annotations

import itertools
import random
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from edge_agent.config.training import BrokerSection
from edge_agent.errors import ConfigError, TrustError
from edge_agent.machine.events import Acknowledged, Announced, Connected, Disconnected, Invited, Offered, Untrusted
from edge_agent.storage.credentials import Login
from federation.errors import WireError
from federation.protocol import topics
from federation.protocol.messages import (
    Acknowledgement,
    Announcement,
    DeviceStatus,
    Invitation,
    Notice,
    Offer,
    read,
    write,
)
from federation.protocol.signing import Kind

CUT_OFF = "cut it off; is there another machine with the same device id, or a copy of this one's folder?"
REFUSED_HINT = "if it was revoked or has lost its password, `edge_agent enrol` gets it new credentials"
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
POLL_S = 0.5
STABLE_S = 30.0
"""A connection that lasted as long was a good one."""
SHORT_LIVED = 3
"""Connections that were lost sooner, one after the other, before it is said and the waits grow."""
SHORTEST_HOLD_S, LONGEST_HOLD_S = 300.0, 6 * 3600.0
"""Before a device tries again that was told to stop: the other one may be gone by then."""


@dataclass(frozen=True)
class Delivered:
    """The broker has acknowledged the message of that number."""

    mid: int


@dataclass(frozen=True)
class Unreadable:
    """A message came that is not of the protocol."""

    topic: str
    reason: str


class CredentialSource(Protocol):
    """How the device introduces itself; `edge_agent.transport.renewal` reads it from files that may change."""

    said: str

    def login(self) -> Login:
        """Name, password and client id, as they are now."""

    def taken(self) -> None:
        """The broker has taken them."""

    def login_refused(self, who: Login) -> bool:
        """The broker refuses them; whether there are others now."""


BrokerEvent = (
    Connected | Disconnected | Announced | Untrusted | Invited | Offered | Acknowledged | Delivered | Unreadable
)


def tls_context(settings: BrokerSection) -> ssl.SSLContext:
    """Return what believes only the configured authorities, and only a certificate for the broker's name.

    Raises:
        ConfigError: if the authorities' file cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"[broker] ca_file {settings.ca_file} cannot be read as PEM: {error}") from error


class Broker:
    """One device's connection; `post` and `verify` are called from the network thread.

    `verify` returns the body of a message that is the server's, or raises TrustError.
    """

    def __init__(
        self,
        settings: BrokerSection,
        federation: str,
        device: str,
        *,
        in_flight: int,
        post: Callable[[BrokerEvent], None],
        renewal: CredentialSource,
        verify: Callable[[Kind, bytes], bytes],
    ) -> None:
        self.settings, self.federation, self.device, self.post = settings, federation, device, post
        self._handlers: dict[str, Callable[[bytes], BrokerEvent | None]] = {
            topics.announce(federation): lambda data: Announced(read(Announcement, verify(Kind.ANNOUNCEMENT, data))),
            topics.invitation(federation, device): lambda data: Invited(
                read(Invitation, verify(Kind.INVITATION, data))
            ),
            topics.offer(federation, device): lambda data: Offered(read(Offer, verify(Kind.OFFER, data))),
            topics.ack(federation, device): lambda data: Acknowledged(
                read(Acknowledgement, verify(Kind.ACKNOWLEDGEMENT, data))
            ),
            topics.notice(federation, device): lambda data: self._noticed(read(Notice, verify(Kind.NOTICE, data))),
        }
        self._in_flight, self._renewal = in_flight, renewal
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._session, self._numbers = secrets.token_hex(8), itertools.count(1)
        self.stop_reason, self._hold_s, self._short_lived = "", SHORTEST_HOLD_S, 0
        self._told = False  # why the server gives no new credentials
        self._last_status: paho.MQTTMessageInfo | None = None
        self._client: paho.Client | None = None  # while the broker has taken us
        self._thread = threading.Thread(target=self._run, name="mqtt", daemon=True)
        if settings.tls:
            tls_context(settings)  # a file that cannot be read is said before anything starts

    @property
    def _status_topic(self) -> str:
        return topics.status(self.federation, self.device)

    def start(self) -> None:
        """Connect, and keep connecting, in a thread."""
        self._thread.start()

    def stop(self, *, say_offline: bool = True, timeout_s: float = 0.6) -> None:
        """Say offline (a finished device has said its last word), disconnect and end the thread."""
        self._stopping.set()
        if client := self._client:
            if say_offline:
                self.publish_status(DeviceStatus(state="offline"))
            if self._last_status and self._last_status.rc == paho.MQTT_ERR_SUCCESS:
                self._last_status.wait_for_publish(timeout_s)
            client.disconnect()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def publish_status(self, status: DeviceStatus) -> None:
        """Publish the status; without a connection it is left to the next one."""
        said = status.model_copy(update={"session": self._session, "number": next(self._numbers)})
        self._last_status = self._publish(self._status_topic, write(said))

    def publish_update(self, update_id: str, payload: bytes, *step: str | int) -> int | None:
        """Publish one part of an upload; returns its message number, or None while it cannot be taken."""
        info = self._publish(topics.update(self.federation, self.device, update_id, *step), payload)
        return info.mid if info and info.rc == paho.MQTT_ERR_SUCCESS else None

    def _publish(self, topic: str, payload: bytes) -> paho.MQTTMessageInfo | None:
        client = self._client
        return client.publish(topic, payload, qos=1) if client else None

    _taken: float | None
    """When the broker took the present connection."""

    def _run(self) -> None:
        wait_s = SHORTEST_WAIT_S
        while not self._stopping.is_set():
            self._taken, self._refusal, self.stop_reason = None, "", ""
            try:
                who = self._renewal.login()
                self._serve(self._new_client(who))
            except OSError as error:
                self.post(Disconnected(self._why_not(error)))
            except ConfigError as error:
                self.post(Disconnected(str(error)))
            wait_s = SHORTEST_WAIT_S if self._was_good() else wait_s
            # full jitter: a fleet that lost its broker must not come back at once
            until = time.monotonic() + (self._hold() if self.stop_reason else random.uniform(wait_s / 2, wait_s))
            while not self._stopping.wait(min(POLL_S, max(0.0, until - time.monotonic()))):
                if (self._refusal and self._renewed(who)) or time.monotonic() >= until:
                    break
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    def _was_good(self) -> bool:
        """Whether the next try may follow soon: the connection lasted, or it is not the third that did not."""
        if self._taken is None:
            return False
        lasted_s = time.monotonic() - self._taken
        if lasted_s >= STABLE_S:
            self._short_lived = 0
        if lasted_s >= self._hold_s:
            self._hold_s = SHORTEST_HOLD_S
        self._short_lived += lasted_s < STABLE_S
        if self._short_lived >= SHORT_LIVED and not self.stop_reason:
            self.post(Disconnected(f"the broker took this device {self._short_lived} times and soon {CUT_OFF}"))
        return self._short_lived < SHORT_LIVED

    def _hold(self) -> float:
        """Say why nothing is tried for long, and for how long."""
        wait_s = random.uniform(self._hold_s / 2, self._hold_s)
        self.post(
            Disconnected(f"stopped by the server: {self.stop_reason}; this one tries again in {wait_s / 60:.0f} min")
        )
        self._hold_s = min(LONGEST_HOLD_S, 2 * self._hold_s)
        return wait_s

    def _renewed(self, refused: Login) -> bool:
        renewed = self._renewal.login_refused(refused)
        if self._renewal.said and not self._told:
            self.post(Disconnected(self._why_refused()))
            self._told = True
        return renewed

    def _why_refused(self) -> str:
        """Say what the broker has said and, where the server was asked why, its answer; empty if it refuses nothing."""
        return "; ".join(filter(None, (self._refusal, self._renewal.said))) if self._refusal else ""

    def _new_client(self, who: Login) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=who.client_id,
            clean_session=False,
            reconnect_on_failure=False,
        )
        client.max_inflight_messages_set(self._in_flight + 4)  # begin, end and a status beside the chunks
        client.max_queued_messages_set(2 * self._in_flight + 16)
        client.will_set(self._status_topic, write(DeviceStatus(state="offline")), qos=1)
        if who.username is not None:
            client.username_pw_set(who.username, who.password)
        if self.settings.tls:
            client.tls_set_context(tls_context(self.settings))  # anew: the authority's file may have been replaced
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        return client

    def _serve(self, client: paho.Client) -> None:
        """Connect, and serve the connection until it ends."""
        self._ended.clear()
        client.connect(self.settings.host, self.settings.port, self.settings.keepalive_s)
        client.loop_start()
        while not self._ended.wait(POLL_S):
            if self._stopping.is_set():
                client.disconnect()
                break
        client.loop_stop()

    def _why_not(self, error: OSError) -> str:
        place = f"{self.settings.host}:{self.settings.port}"
        if isinstance(error, ssl.SSLCertVerificationError):
            todo = "is [broker] host the name in its certificate, and ca_file the authority that signed it?"
            return f"the broker at {place} is not believed: {error.verify_message}; {todo}"
        return f"no broker at {place}: {error.strerror or error}"

    def _on_connect(self, client: paho.Client, _data: Any, _flags: Any, code: ReasonCode, _more: Any) -> None:
        if code.is_failure:
            self._refusal = f"the broker refuses this device: {code}; {REFUSED_HINT}"
            return
        self._client, self._taken, self._told = client, time.monotonic(), False
        self._renewal.taken()
        client.subscribe([(topic, 1) for topic in self._handlers])
        self.post(Connected())

    def _noticed(self, notice: Notice) -> None:
        client = self._client
        if notice.session == self._session and client:
            self.stop_reason = notice.reason
            client.disconnect()

    def _on_disconnect(self, _client: paho.Client, _data: Any, _flags: Any, code: ReasonCode, _more: Any) -> None:
        self._client = None
        self.post(Disconnected(self._why_refused() or str(code)))
        self._ended.set()

    def _on_publish(self, _client: paho.Client, _data: Any, mid: int, _code: Any, _more: Any) -> None:
        self.post(Delivered(mid))

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        try:
            handle = self._handlers.get(message.topic)
            if not message.payload:
                return  # what was retained there was removed
            if handle and (event := handle(bytes(message.payload))):
                self.post(event)
        except TrustError as error:
            self.post(Untrusted(str(error)))
        except WireError as error:
            self.post(Unreadable(message.topic, str(error)))
