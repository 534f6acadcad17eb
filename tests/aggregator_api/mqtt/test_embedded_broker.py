"""The embedded broker: a client hears what it has subscribed to, now and retained, and nothing of others'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from aggregator_api.core.settings import Settings
from aggregator_api.transport.mqtt.client import MqttDriver
from aggregator_api.transport.mqtt.embedded_broker import BrokerThread
from federation.protocol import topics
from tests.aggregator_api.bench import wait_for
from tests.ports import free_port

ANNOUNCE = topics.announce("f")
LAST = "test/last"
"""What is said on it comes after whatever a client was to hear before."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A broker with an announcement and the invitations of two devices, and devices a and b that wait for theirs."""
    found = free_port()
    broker = BrokerThread("127.0.0.1", found)
    broker.start()
    with client(found, "server") as (server, _), client(found, "a", *of("a")), client(found, "b", *of("b")):
        for topic in (ANNOUNCE, topics.invitation("f", "a"), topics.invitation("f", "b"), LAST):
            server.publish(topic, topic.encode(), 1, retain=True).wait_for_publish(60)
        yield found
    wait_for(lambda: not connections(found))  # amqtt leaves sockets open that it is reading from when it is ended
    broker.stop()


def connections(port: int) -> list[object]:
    """Return this process's connections at the broker's port."""
    known = psutil.Process().net_connections("tcp")
    return [each for each in known if each.laddr.port == port and each.status != psutil.CONN_LISTEN]


def of(device: str) -> tuple[str, ...]:
    """Return what a device subscribes to."""
    return ANNOUNCE, topics.invitation("f", device), topics.ack("f", device)


@contextmanager
def client(port: int, name: str, *subscriptions: str, clean: bool = True) -> Iterator[tuple[Client, list[str]]]:
    """Connect a client; with it, the topics that it hears."""
    heard = list[str]()
    made = Client(CallbackAPIVersion.VERSION2, name, clean_session=clean)
    made.on_message = lambda _client, _data, message: heard.append(message.topic)
    made.on_connect = lambda found, *_: [found.subscribe(topic, 1) for topic in subscriptions]
    made.connect("127.0.0.1", port)
    made.loop_start()
    try:
        yield made, heard
    finally:
        made.disconnect()
        made.loop_stop()


def test_a_newcomer_without_subscriptions_hears_nothing(port: int) -> None:
    with client(port, "c") as (newcomer, heard):
        wait_for(newcomer.is_connected)
        newcomer.subscribe(LAST, 1)
        wait_for(lambda: LAST in heard)
    assert heard == [LAST]


@pytest.mark.parametrize("clean", [True, False])
def test_a_device_hears_its_own_invitation_and_no_other(port: int, clean: bool) -> None:
    with client(port, "a2", ANNOUNCE, topics.invitation("f", "a"), LAST, clean=clean) as (_, heard):
        wait_for(lambda: LAST in heard)
    assert set(heard) == {ANNOUNCE, topics.invitation("f", "a"), LAST}


def test_a_device_that_comes_back_hears_its_own_again(port: int) -> None:
    for _ in range(2):
        with client(port, "b2", *of("b"), LAST, clean=False) as (_, heard):
            wait_for(lambda heard=heard: LAST in heard)  # type: ignore[misc]
            assert set(heard) == {ANNOUNCE, topics.invitation("f", "b"), LAST}


def test_what_one_device_says_another_does_not_hear(port: int) -> None:
    with client(port, "d", ANNOUNCE, LAST) as (device, heard), client(port, "e", topics.status("f", "d")) as (_, other):
        wait_for(lambda: LAST in heard)
        device.publish(topics.status("f", "d"), b"ready", 1).wait_for_publish(60)
        wait_for(lambda: topics.status("f", "d") in other)
        assert set(heard) == {ANNOUNCE, LAST}


def test_a_broker_that_does_not_answer_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    driver = MqttDriver(Settings(data_dir=tmp_path, broker_port=port), lambda _: None, lambda: None)
    driver.start()
    try:
        wait_for(lambda: "broker unreachable" in caplog.text)
    finally:
        driver.stop()
    assert f"broker unreachable host=127.0.0.1 port={port}; trying again until it answers" in caplog.text
    assert not driver.is_up
