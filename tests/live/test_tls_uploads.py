"""Uploads under TLS, whose chunks are published by one thread while another reads: the connection must last."""

from __future__ import annotations

import queue
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from aggregator_api.devices.service import username
from edge_agent.config.brokers import BrokerPlace
from edge_agent.machine.events import Connected, Disconnected
from edge_agent.storage.credentials import Login
from edge_agent.transport.link import LinkEvent, LinkOptions, MessageDelivered
from edge_agent.transport.mqtt import Broker
from edge_agent.transport.trust import Trust
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, write
from tests.live.real_parts import Given, Mosquitto, mosquitto

pytestmark = pytest.mark.service

CHUNK_BYTES = 128 * 1024
IN_FLIGHT = 8
ANSWER_S = 120.0
EVERY_S = 0.002
"""Between two messages to the device: each makes its network thread write an acknowledgement."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A broker with the device a of federation f."""
    with mosquitto(tmp_path_factory.mktemp("broker")) as running:
        running.accounts().grant("f", "a", username("f", "a"), "secret")
        yield running


@contextmanager
def talking_server(broker: Mosquitto) -> Iterator[None]:
    """A server that answers the device all the time."""
    who, stopping = broker.settings().mqtt_login, threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, "gaitway-server")
    client.username_pw_set(who.username or "", who.password)
    client.tls_set(str(broker.ca), cert_reqs=ssl.CERT_REQUIRED)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    answer = write(Acknowledgement(update_id="u", status="send"))

    def talk() -> None:
        while not stopping.wait(EVERY_S):
            client.publish(topics.ack("f", "a"), answer, 1)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        client.disconnect()
        client.loop_stop()


class Sender:
    """The supervisor's part: it publishes a bounded number of chunks at a time, and counts what becomes of them."""

    def __init__(self, broker: Mosquitto) -> None:
        self.posted = queue.SimpleQueue[LinkEvent]()
        section = BrokerPlace(host="127.0.0.1", port=broker.port, tls=True, ca_file=broker.ca)
        name = username("f", "a")
        who = Login(name, name, "secret")
        options = LinkOptions("f", "a", IN_FLIGHT, self.posted.put, Given(who), Trust("f", "a", None).open)
        self.broker = Broker(section, options)
        self.lost: list[str] = []

    def take(self) -> LinkEvent:
        """Return the next event; notes each loss of the connection."""
        event = self.posted.get(timeout=ANSWER_S)
        if isinstance(event, Disconnected):
            self.lost.append(event.reason)
        return event

    def upload(self, number: int, chunks: int) -> None:
        """Publish one update, from its start again where the connection was lost."""
        waiting, sent = set[int](), 0
        payload = bytes(CHUNK_BYTES)
        while sent < chunks or waiting:
            while sent < chunks and len(waiting) < IN_FLIGHT:
                mid = self.broker.publish_update(f"u{number}", payload, "chunk", sent)
                if mid is None:
                    break
                waiting.add(mid)
                sent += 1
            match self.take():
                case MessageDelivered(mid):
                    waiting.discard(mid)
                case Disconnected():
                    waiting, sent = set(), 0
                    while not isinstance(self.take(), Connected):
                        pass


def send(broker: Mosquitto, updates: int, megabytes: int) -> tuple[list[str], float]:
    """Send that many updates; returns why the connection was lost, each time, and the rate in bytes a second."""
    sender = Sender(broker)
    sender.broker.start()
    try:
        assert isinstance(sender.take(), Connected)
        with talking_server(broker):
            begun = time.monotonic()
            for number in range(updates):
                sender.upload(number, megabytes * (1 << 20) // CHUNK_BYTES)
            seconds = time.monotonic() - begun
    finally:
        sender.broker.stop()
    return sender.lost, updates * megabytes * (1 << 20) / seconds


def test_the_connection_lasts_over_uploads_under_tls(broker: Mosquitto) -> None:
    """Two threads that write one TLS socket break it: `bad record mac` at the broker, and a reconnect."""
    lost, _ = send(broker, 12, 4)
    assert lost == [], broker.log.read_text()[-2000:]
