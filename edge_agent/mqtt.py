"""The broker connection: paho-mqtt with a persistent session, a last will and an explicit reconnect loop.

Callbacks run on paho's network thread and only post events. Nothing is kept here: what must survive is in the outbox.
"""

from __future__ import annotations

import random
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from edge_agent.credentials import Login
from edge_agent.errors import ConfigError
from edge_agent.events import Acknowledged, Announced, Connected, Disconnected, Invited
from edge_agent.training_settings import BrokerSection
from federation.errors import WireError
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, Announcement, DeviceStatus, Invitation, read, write

REFUSED_HINT = "if it was revoked or has lost its password, `edge_agent enrol` gets it new credentials"
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0


@dataclass(frozen=True)
class Delivered:
    """The broker has acknowledged the message of that number."""

    mid: int


@dataclass(frozen=True)
class Unreadable:
    """A message came that is not of the protocol."""

    topic: str
    reason: str


BrokerEvent = Connected | Disconnected | Announced | Invited | Acknowledged | Delivered | Unreadable


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
    """One device's connection; `post` is called from the network thread."""

    def __init__(
        self,
        settings: BrokerSection,
        federation: str,
        device: str,
        *,
        in_flight: int,
        post: Callable[[BrokerEvent], None],
        who: Login,
    ) -> None:
        self.settings, self.federation, self.device, self.post = settings, federation, device, post
        self._heard: dict[str, Callable[[bytes], BrokerEvent]] = {
            topics.announce(federation): lambda payload: Announced(read(Announcement, payload)),
            topics.invitation(federation, device): lambda payload: Invited(read(Invitation, payload)),
            topics.ack(federation, device): lambda payload: Acknowledged(read(Acknowledgement, payload)),
        }
        self._stopping = threading.Event()
        self._last_status: paho.MQTTMessageInfo | None = None
        self._thread = threading.Thread(target=self._run, name="mqtt", daemon=True)
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=who.client_id,
            clean_session=False,
            reconnect_on_failure=False,
        )
        self._client.max_inflight_messages_set(in_flight + 4)  # begin, end and a status beside the chunks
        self._client.max_queued_messages_set(2 * in_flight + 16)
        self._client.will_set(self._status_topic, write(DeviceStatus(state="offline")), qos=1, retain=True)
        if who.username is not None:
            self._client.username_pw_set(who.username, who.password)
        if settings.tls:
            self._client.tls_set_context(tls_context(settings))
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_publish = self._on_publish

    @property
    def _status_topic(self) -> str:
        return topics.status(self.federation, self.device)

    def start(self) -> None:
        """Connect, and keep connecting, in a thread."""
        self._thread.start()

    def stop(self, *, say_offline: bool = True, timeout_s: float = 0.6) -> None:
        """Say offline (a finished device has said its last word), disconnect and end the thread."""
        self._stopping.set()
        if self._client.is_connected():
            if say_offline:
                self.publish_status(DeviceStatus(state="offline"))
            if self._last_status and self._last_status.rc == paho.MQTT_ERR_SUCCESS:
                self._last_status.wait_for_publish(timeout_s)
        self._client.disconnect()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def publish_status(self, status: DeviceStatus) -> None:
        """Publish the retained status."""
        self._last_status = self._publish(self._status_topic, write(status), retain=True)

    def publish_update(self, update_id: str, payload: bytes, *step: str | int) -> int | None:
        """Publish one part of an upload; returns its message number, or None while it cannot be taken."""
        info = self._publish(topics.update(self.federation, self.device, update_id, *step), payload)
        return info.mid if info.rc == paho.MQTT_ERR_SUCCESS else None

    def _publish(self, topic: str, payload: bytes, *, retain: bool = False) -> paho.MQTTMessageInfo:
        return self._client.publish(topic, payload, qos=1, retain=retain)

    def _run(self) -> None:
        wait_s = SHORTEST_WAIT_S
        while not self._stopping.is_set():
            try:
                self._client.connect(self.settings.host, self.settings.port, self.settings.keepalive_s)
            except OSError as error:
                self.post(Disconnected(self._why_not(error)))
            else:
                was_connected = self._loop()
                wait_s = SHORTEST_WAIT_S if was_connected else wait_s
            # full jitter: a fleet that lost its broker must not come back at once
            self._stopping.wait(random.uniform(wait_s / 2, wait_s))
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    def _why_not(self, error: OSError) -> str:
        place = f"{self.settings.host}:{self.settings.port}"
        if isinstance(error, ssl.SSLCertVerificationError):
            todo = "is [broker] host the name in its certificate, and ca_file the authority that signed it?"
            return f"the broker at {place} is not believed: {error.verify_message}; {todo}"
        return f"no broker at {place}: {error.strerror or error}"

    def _loop(self) -> bool:
        """Serve the connection until it ends; returns whether the broker had taken us."""
        self._taken = False
        self._client.loop_forever(timeout=0.5)
        return self._taken

    def _on_connect(self, client: paho.Client, _data: Any, _flags: Any, code: ReasonCode, _more: Any) -> None:
        if code.is_failure:
            self.post(Disconnected(f"the broker refuses this device: {code}; {REFUSED_HINT}"))
            return
        self._taken = True
        client.subscribe([(topic, 1) for topic in self._heard])
        self.post(Connected())

    def _on_disconnect(self, _client: paho.Client, _data: Any, _flags: Any, code: ReasonCode, _more: Any) -> None:
        self.post(Disconnected(str(code)))

    def _on_publish(self, _client: paho.Client, _data: Any, mid: int, _code: Any, _more: Any) -> None:
        self.post(Delivered(mid))

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        try:
            if hear := self._heard.get(message.topic):
                self.post(hear(bytes(message.payload)))
        except WireError as error:
            self.post(Unreadable(message.topic, str(error)))
