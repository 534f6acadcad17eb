"""The app's MQTT publishing: the same messages, QoS 0, from a topic of the broker that the phone talks to."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.config.settings import Config
from edge_agent.sensors.sensor_logger.inbox import Outcome, PhoneInbox
from edge_agent.storage.broker_address import require_place
from edge_agent.storage.credentials import login, read_credentials
from gaitway.secret_fields import revealed

log = logging.getLogger(__name__)

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
        place = _own_broker(config) if phone.mqtt_host else _main_broker(config)
        if place.username:
            self._client.username_pw_set(place.username, place.password)
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


class _BrokerAddress(NamedTuple):
    host: str
    port: int
    username: str | None
    password: str | None
    tls: bool
    ca_file: Path | None


def _own_broker(config: Config) -> _BrokerAddress:
    phone = config.phone
    return _BrokerAddress(
        phone.mqtt_host or "",
        phone.mqtt_port,
        phone.mqtt_username,
        revealed(phone.mqtt_password),
        phone.mqtt_ca is not None,
        phone.mqtt_ca,
    )


def _main_broker(config: Config) -> _BrokerAddress:
    place = require_place(config)
    who = login(config.broker, read_credentials(config.agent.data_dir), config.agent.device)
    return _BrokerAddress(place.host, place.port, who.username, who.password, place.tls, place.ca_file)
