"""A device's connection to a real broker under TLS: a restart, a wrong password, and an unknown authority."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aggregator_api.devices.service import username
from aggregator_api.transport.mqtt.mosquitto.certificates import make_authority
from edge_agent.config.brokers import BrokerPlace
from edge_agent.errors import ConfigError
from edge_agent.machine.events import Connected, Disconnected
from edge_agent.storage.credentials import Login, read_credentials
from edge_agent.transport.link import LinkEvent, LinkOptions, MessageDelivered
from edge_agent.transport.mqtt import Broker
from edge_agent.transport.trust import Trust
from federation.protocol.messages import DeviceStatus
from tests.live.real_parts import Given, Mosquitto, mosquitto

pytestmark = pytest.mark.service

ANSWER_S = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A broker with the device a of federation f."""
    with mosquitto(tmp_path_factory.mktemp("broker")) as running:
        running.accounts().grant("f", "a", username("f", "a"), "secret")
        yield running


class Device:
    """The agent's side of the connection, and what came of it."""

    def __init__(self, broker: Mosquitto, password: str = "secret", **settings: Any) -> None:
        given = {"host": "127.0.0.1", "port": broker.port, "tls": True, "ca_file": broker.ca, **settings}
        place = BrokerPlace(**given)
        name, self.posted = username("f", "a"), queue.SimpleQueue[LinkEvent]()
        source, verify = Given(Login(name, name, password)), Trust("f", "a", None).open
        self.broker = Broker(place, LinkOptions("f", "a", 4, self.posted.put, source, verify))

    def wait(self, kind: type[LinkEvent], seconds: float = ANSWER_S) -> Any:
        deadline = time.monotonic() + seconds
        while not isinstance(event := self.posted.get(timeout=max(0.01, deadline - time.monotonic())), kind):
            pass
        return event


@contextmanager
def running(device: Device) -> Iterator[Device]:
    device.broker.start()
    try:
        yield device
    finally:
        device.broker.stop()


def test_a_device_rejoins_under_tls_after_its_broker_was_killed(broker: Mosquitto) -> None:
    with running(Device(broker)) as device:
        device.wait(Connected)
        device.broker.publish_status(DeviceStatus(state="ready"))
        device.wait(MessageDelivered)
        broker.stop(kill=True)
        device.wait(Disconnected)
        broker.start()
        device.wait(Connected)
        device.broker.publish_status(DeviceStatus(state="idle"))
        device.wait(MessageDelivered)


# paho lets go of a socket whose handshake failed without closing it; it is closed as garbage
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_wrong_password_and_an_unknown_authority_are_said_in_words(broker: Mosquitto, tmp_path: Path) -> None:
    with running(Device(broker, "wrong")) as device:
        assert "the broker refuses this device: Not authorized; if it was revoked" in device.wait(Disconnected).reason
    other = tmp_path / "other.pem"
    other.write_bytes(make_authority("another").certificate)
    with running(Device(broker, ca_file=other)) as device:
        assert "can't be verified: self-signed certificate in certificate chain" in device.wait(Disconnected).reason
    with running(Device(broker, host="127.1")) as device:
        assert "can't be verified: Hostname mismatch" in device.wait(Disconnected).reason
    with pytest.raises(ConfigError, match=r"ca_file .* cannot be read as PEM"):
        Device(broker, ca_file=tmp_path / "none.pem")
    assert read_credentials(tmp_path) is None
