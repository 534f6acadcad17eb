"""The link over MQTT: paho-mqtt with a persistent session and a last will.

Every connection is a client of its own, whose network thread alone writes its socket: paho lets whoever publishes write
it unless `loop_start` has made that thread, and two threads in one TLS socket break it, or crash OpenSSL.
Callbacks run on the network thread and only post events.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any, ClassVar

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from edge_agent.config.brokers import BrokerPlace
from edge_agent.machine.events import Disconnected
from edge_agent.storage.credentials import Login
from edge_agent.transport import server_connection
from edge_agent.transport.link import POLL_S, REFUSED_HINT, Link, LinkOptions, MessageDelivered
from federation.protocol import topics
from federation.protocol.messages import DeviceStatus, write
from federation.protocol.over_http import kinds_of
from gaitway.threads import ThreadFailure, guarded


def tls_context(place: BrokerPlace) -> ssl.SSLContext:
    """Return what believes only the configured authorities, and only a certificate for the broker's name.

    Raises:
        ConfigError: if the authorities' file cannot be read.
    """
    return server_connection.tls_context(place.ca_file, "broker")


class Broker(Link):
    """One device's connection to its broker."""

    peer: ClassVar[str] = "broker"
    address_setting: ClassVar[str] = "[broker] host"

    def __init__(self, place: BrokerPlace, options: LinkOptions) -> None:
        super().__init__(options)
        self.place, self._in_flight = place, options.in_flight
        self._kinds = kinds_of(options.federation, options.device)
        self._ended = threading.Event()
        self._last_status: paho.MQTTMessageInfo | None = None
        self._client: paho.Client | None = None  # while the broker has taken us
        self._who: Login | None = None  # as which we tried last
        if place.tls:
            tls_context(place)  # a file that cannot be read is said before anything starts

    @property
    def _status_topic(self) -> str:
        return topics.status(self.federation, self.device)

    def publish_update(self, update_id: str, payload: bytes, *step: str | int) -> int | None:
        """Publish one part of an upload; returns its message number, or None while it cannot be taken."""
        info = self._publish(topics.update(self.federation, self.device, update_id, *step), payload)
        return info.mid if info and info.rc == paho.MQTT_ERR_SUCCESS else None

    def _send_status(self, status: DeviceStatus) -> None:
        self._last_status = self._publish(self._status_topic, write(status))

    def _publish(self, topic: str, payload: bytes) -> paho.MQTTMessageInfo | None:
        client = self._client
        return client.publish(topic, payload, qos=1) if client else None

    def _disconnect(self) -> None:
        if client := self._client:
            client.disconnect()

    def _leave(self, *, say_offline: bool, timeout_s: float) -> None:
        if client := self._client:
            if say_offline:
                self.publish_status(DeviceStatus(state="offline"))
            if self._last_status and self._last_status.rc == paho.MQTT_ERR_SUCCESS:
                self._last_status.wait_for_publish(timeout_s)
            client.disconnect()

    def _has_others(self) -> bool:
        return self._who is not None and self._credentials.login_refused(self._who)

    def _why_refused(self) -> str:
        """Say what the broker has said and, where the server was asked why, its answer; empty if it refuses nothing."""
        return "; ".join(filter(None, (self._refusal, self._credentials.claim_problem))) if self._refusal else ""

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
        if self.place.tls:
            client.tls_set_context(tls_context(self.place))  # anew: the authority's file may have been replaced
        client.on_connect = guarded("mqtt", self._on_connect, self._callback_failed)
        client.on_disconnect = guarded("mqtt", self._on_disconnect, self._callback_failed)
        client.on_message = guarded("mqtt", self._on_message, self._callback_failed)
        client.on_publish = guarded("mqtt", self._on_publish, self._callback_failed)
        return client

    def _serve(self) -> None:
        """Connect, and serve the connection until it ends."""
        self._who = self._credentials.login()
        client = self._new_client(self._who)
        self._ended.clear()
        client.connect(self.place.host, self.place.port, self.place.keepalive_s)
        client.loop_start()
        while not self._ended.wait(POLL_S):
            if self._stopping.is_set():
                client.disconnect()
                break
        client.loop_stop()

    @property
    def _address(self) -> str:
        return f"{self.place.host}:{self.place.port}"

    def _callback_failed(self, failure: ThreadFailure) -> None:
        self._client = None
        self.post(Disconnected(f"the connection failed unexpectedly and is being reopened: {failure.error}"))
        self._ended.set()

    def _on_connect(self, client: paho.Client, _data: Any, _flags: Any, code: ReasonCode, _more: Any) -> None:
        if code.is_failure:
            self._refusal = f"the broker refuses this device: {code}; {REFUSED_HINT}"
            return
        self._client = client
        client.subscribe([(topic, 1) for topic in self._kinds])
        self._was_taken()

    def _on_disconnect(self, _client: paho.Client, _data: Any, _flags: Any, code: ReasonCode, _more: Any) -> None:
        self._client = None
        self.post(Disconnected(self._why_refused() or str(code)))
        self._ended.set()

    def _on_publish(self, _client: paho.Client, _data: Any, mid: int, _code: Any, _more: Any) -> None:
        self.post(MessageDelivered(mid))

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        if kind := self._kinds.get(message.topic):
            self._handle_message(kind, bytes(message.payload), message.topic)
