"""The app's MQTT publishing over a real Mosquitto: websockets for the phone, as the app has it, TCP for the device."""

from __future__ import annotations

import queue
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.config.sensors import PhoneSection, SensorsSection
from edge_agent.config.settings import BrokerSection, Config
from edge_agent.machine.events import DataReady, Event
from edge_agent.sensors import open_source
from edge_agent.sensors.sensor_logger.stream import PhoneStream
from edge_agent.storage.window_store import WindowStore
from har_pipeline import dataset_labels
from tests.edge_agent.factories import make_config, make_plan
from tests.edge_agent.sensors.sensor_logger.phone import BEGAN_S, annotation, bodies, entries, messages, walk
from tests.edge_agent.sensors.sensor_logger.test_http import wait_for
from tests.ports import free_port

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
]


class Broker:
    """Mosquitto with a listener for devices and one for phones; `restart` kills it."""

    def __init__(self, folder: Path) -> None:
        self.port, self.websockets = free_port(), free_port()
        self.config = folder / "mosquitto.conf"
        self.config.write_text(
            f"allow_anonymous true\nlistener {self.port} 127.0.0.1\n"
            f"listener {self.websockets} 127.0.0.1\nprotocol websockets\n"
        )
        self.start()

    def start(self) -> None:
        assert MOSQUITTO
        self.process = subprocess.Popen([MOSQUITTO, "-c", str(self.config)], stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    found = Broker(tmp_path)
    yield found
    found.kill()


def phone(broker: Broker) -> paho.Client:
    """Connect as the app does: over websockets."""
    client = paho.Client(CallbackAPIVersion.VERSION2, transport="websockets")
    for _ in range(100):
        try:
            client.connect("127.0.0.1", broker.websockets)
            break
        except OSError:
            time.sleep(0.05)
    client.loop_start()
    return client


def config(folder: Path, broker: Broker) -> Config:
    sections = {
        "sensors": SensorsSection(source="sensor_logger_mqtt"),
        "broker": BrokerSection(host="127.0.0.1", port=broker.port),
        "phone": PhoneSection(topic="gym/phone", max_body_kb=256),
    }
    return make_config(folder).model_copy(update=sections)


def test_a_recording_over_mqtt_becomes_windows_also_after_the_broker_was_killed(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()
    accept = PhoneStream.accept

    def listening(stream: PhoneStream, batch: object) -> None:
        accept(stream, batch)
        heard.put(batch.number)

    monkeypatch.setattr(PhoneStream, "accept", listening)
    source, labels = open_source(config(tmp_path / "data", broker), posted.put), dataset_labels("synthetic")
    source.start(make_plan())
    assert wait_for(posted, DataReady) == DataReady(0, measurable=False)

    times_s, sensors = walk(20.0)
    rows = [annotation(BEGAN_S, labels[0]), *entries(times_s, sensors)]
    sent = list(bodies(messages(rows, per_message=600)))
    client = phone(broker)
    greet(client, heard, sent, 0)
    client.publish("gym/phone", b"not JSON", 0)
    client.publish("gym/phone", b"x" * 300_000, 0)
    for body in sent[1:5]:
        client.publish("gym/phone", body, 0)
    take(heard, range(1, 5))

    broker.kill()
    broker.start()
    again = phone(broker)
    greet(again, heard, sent, 5)
    for body in sent[6:]:
        again.publish("gym/phone", body, 0)
    take(heard, range(6, len(sent)))
    source.stop(5.0)
    for each in (client, again):
        each.disconnect()
        each.loop_stop()
    with closing(WindowStore(tmp_path / "data")) as store:
        assert store.counts() == {labels[0]: 14}  # 20 s at 50 Hz in steps of 64


def greet(client: paho.Client, heard: queue.SimpleQueue[int], sent: list[bytes], number: int) -> None:
    """Publish a message until the device, which connects by itself, has heard it; it ignores the repetitions."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        client.publish("gym/phone", sent[number], 0)
        try:
            if heard.get(timeout=0.3) == number:
                return
        except queue.Empty:
            continue
    raise AssertionError("the device did not hear the phone within 60 s")


def take(heard: queue.SimpleQueue[int], numbers: Iterable[int]) -> None:
    missing = set(numbers)
    while missing:
        missing.discard(heard.get(timeout=60))
