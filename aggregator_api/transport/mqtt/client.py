"""The server's interface to a message broker, and its MQTT client."""

from __future__ import annotations

import logging
import random
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import BrokerAccess, Settings
from aggregator_api.transport.mqtt.inbox import Message
from federation.protocol import topics
from gaitway.threads import guarded

log = logging.getLogger(__name__)


class Transport(Protocol):
    """A connection to a broker that keeps itself up."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send a message with QoS 1."""

    @property
    def is_up(self) -> bool:
        """Whether the broker is connected now."""

    def certificate_expiry(self) -> float | None:
        """Return when the certificate that the broker showed last expires; None if it has shown none."""

    def start(self) -> None:
        """Connect in the background."""

    def remove_retained(self) -> None:
        """Remove what devices had the broker retain, which they must not."""

    def listen(self, federations: frozenset[str]) -> None:
        """Hear the devices of these federations alone, where several processes share the work."""

    def stop(self) -> None:
        """Disconnect."""


Connect = Callable[[Settings, Callable[[Message], None], Callable[[], None]], Transport]
"""Makes a transport from the settings, what takes a message, and what to call after each connection."""


QOS = 1
KEEPALIVE_S = 30
IN_FLIGHT = 100
QUEUED = 200_000
"""Messages that wait in memory: a large cohort is invited at once, with some hundred bytes to each device."""


def secure(client: Client, login: BrokerAccess) -> None:
    """Give a client its name and password, and let it speak only to a broker whose certificate fits its host.

    Raises:
        ConfigError: if the authority's file cannot be read.
    """
    if login.username is not None:
        client.username_pw_set(login.username, login.password)
    if login.ca_file is not None:
        try:
            client.tls_set(str(login.ca_file))  # requires a certificate and compares the host name
        except OSError as error:
            raise ConfigError(f"mqtt_ca_file {login.ca_file} cannot be read: {error}") from error


class MqttDriver:
    """The server's connection to the broker; it reconnects by itself, with a jittered back-off."""

    def __init__(self, settings: Settings, receive: Callable[[Message], None], connected: Callable[[], None]) -> None:
        self._address = (settings.broker_host, settings.broker_port)
        self._receive = receive
        self._connected = connected
        self._connection = 0
        self._expiry: float | None = None
        self._up = threading.Event()
        self._said_unreachable = False
        self._federations: frozenset[str] | None = frozenset() if settings.shares_work else None
        # among several processes a session would keep collecting for a process that no longer leads
        alone = self._federations is None
        client_id = settings.mqtt_client_id if alone else f"{settings.mqtt_client_id}-{settings.holder}"
        self._client = Client(CallbackAPIVersion.VERSION2, client_id, clean_session=not alone, manual_ack=True)
        secure(self._client, settings.mqtt_login)
        self._client.max_inflight_messages_set(IN_FLIGHT)
        self._client.max_queued_messages_set(QUEUED)
        self._client.reconnect_delay_set(1, random.randint(8, 16))
        # an exception would end paho's thread, and with it every connection to the broker
        self._client.on_connect = guarded("mqtt", self._on_connect)
        self._client.on_connect_fail = guarded("mqtt", self._on_connect_fail)
        self._client.on_disconnect = guarded("mqtt", self._on_disconnect)
        self._client.on_message = guarded("mqtt", self._on_message)

    @property
    def is_up(self) -> bool:
        """Whether the broker is connected now."""
        return self._up.is_set()

    def certificate_expiry(self) -> float | None:
        """Return when the certificate that the broker showed last expires; None without TLS or connection."""
        return self._expiry

    def start(self) -> None:
        """Connect in the background; the broker may come later."""
        self._client.connect_async(*self._address, keepalive=KEEPALIVE_S)
        self._client.loop_start()

    def stop(self) -> None:
        """Disconnect and end the network's thread."""
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send a message with QoS 1; while the broker is away it waits in memory."""
        self._client.publish(topic, payload, QOS, retain)

    def remove_retained(self) -> None:
        """Subscribe again: the broker then repeats what devices had it retain, and each of these is removed."""
        if self.is_up:
            self._subscribe(_filters(self._heard))

    def listen(self, federations: frozenset[str]) -> None:
        """Hear the devices of these federations and no others'; at first none are heard where work is shared."""
        before, self._federations = self._federations or frozenset(), federations
        if self.is_up:
            self._subscribe(_filters(federations - before))
            if gone := _filters(before - federations):
                self._client.unsubscribe(gone)

    @property
    def _heard(self) -> list[str]:
        return ["+"] if self._federations is None else sorted(self._federations)

    def _subscribe(self, filters: list[str]) -> None:
        if filters:
            self._client.subscribe([(topic, QOS) for topic in filters])

    def _on_connect(
        self, _client: Client, _data: Any, _flags: ConnectFlags, reason: ReasonCode, _properties: Properties | None
    ) -> None:
        if reason.is_failure:
            log.error("broker refused the server host=%s port=%d: %s", *self._address, reason)
            return
        log.info("broker connected host=%s port=%d", *self._address)
        self._said_unreachable = False
        self._connection += 1
        self._expiry = _expiry(self._client.socket())
        self._up.set()
        self._subscribe(_filters(self._heard))
        self._connected()

    def _on_connect_fail(self, _client: Client, _data: Any) -> None:
        if not self._said_unreachable:  # once an outage: it is tried again every few seconds
            log.warning("broker unreachable host=%s port=%d; trying again until it answers", *self._address)
        self._said_unreachable = True

    def _on_disconnect(
        self, _client: Client, _data: Any, _flags: DisconnectFlags, reason: ReasonCode, _properties: Properties | None
    ) -> None:
        self._up.clear()
        log.info("broker disconnected: %s", reason)

    def _on_message(self, client: Client, _data: Any, message: MQTTMessage) -> None:
        connection, mid, qos = self._connection, message.mid, message.qos

        def acknowledge() -> None:
            # packet numbers belong to a connection: after a reconnect the broker sends the message again
            if connection == self._connection:
                client.ack(mid, qos)

        if message.retain and message.payload and topics.is_device_topic(message.topic):
            client.publish(message.topic, b"", QOS, retain=True)
        self._receive(Message(message.topic, bytes(message.payload), acknowledge, message.retain))


def _expiry(connection: Any) -> float | None:
    """Return when the certificate at the other end of a socket expires; None where there is none."""
    shown = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
    return ssl.cert_time_to_seconds(str(shown["notAfter"])) if shown else None


def _filters(federations: Iterable[str]) -> list[str]:
    return [topic for name in federations for topic in (topics.all_statuses(name), topics.all_updates(name))]
