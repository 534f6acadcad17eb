"""The app's MQTT publishing: the same messages, QoS 0, from a topic of the broker that the phone talks to."""

from __future__ import annotations

import logging
import ssl
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.config import Config
from edge_agent.sources.phone.inbox import Inbox, Verdict

log = logging.getLogger("edge_agent")

LONGEST_WAIT_S = 60


class Subscription:
    """Connects again by itself until `close`; refused messages are logged, each reason once in a row."""

    def __init__(self, config: Config, inbox: Inbox) -> None:
        phone, broker = config.phone, config.broker
        self._inbox, self._topic, self._most_bytes = inbox, phone.topic, phone.max_body_kb * 1024
        self._said = ""
        own = phone.mqtt_host is not None
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{config.agent.device}-phone"[:64])
        self._client.reconnect_delay_set(1, LONGEST_WAIT_S)
        username, password = (phone.mqtt_username, phone.mqtt_password) if own else (broker.username, broker.password)
        if username:
            self._client.username_pw_set(username, password)
        if own and phone.mqtt_ca:
            self._client.tls_set_context(ssl.create_default_context(cafile=str(phone.mqtt_ca)))
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message
        host, port = (phone.mqtt_host or "", phone.mqtt_port) if own else (broker.host, broker.port)
        self._client.connect_async(host, port, broker.keepalive_s)
        self._client.loop_start()

    def close(self) -> None:
        """Leave the broker."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: paho.Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            log.warning("the phone's broker refuses this device: %s", reason)
        else:
            client.subscribe(self._topic, qos=0)

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        if len(message.payload) > self._most_bytes:
            words = f"a message of {len(message.payload):,} bytes; [phone] max_body_kb allows {self._most_bytes:,}"
        else:
            answer = self._inbox.take(bytes(message.payload))
            words = "" if answer.verdict is Verdict.TAKEN else answer.words
        if words and words != self._said:
            log.warning("the phone's message was not used: %s", words)
        self._said = words
