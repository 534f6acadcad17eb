"""Devices have the broker retain nothing; what a hostile one has it retain is removed, and nobody is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from sqlalchemy import select

from aggregator_api import runtime as server_runtime
from aggregator_api.core.settings import BrokerAccess
from aggregator_api.devices import presence
from aggregator_api.devices.service import username
from aggregator_api.storage.db.models import EventRow
from aggregator_api.storage.db.repositories import find_device, find_federation
from aggregator_api.transport.mqtt.client import secure
from federation.protocol import topics
from tests.live.enrolled_world import FEDERATION, World, agent, until
from tests.live.real_parts import Mosquitto

pytestmark = [pytest.mark.ci, pytest.mark.service]


@contextmanager
def client(broker: Mosquitto, who: BrokerAccess, client_id: str) -> Iterator[tuple[paho.Client, list[str]]]:
    """A plain client, and the topics of the retained messages that it was given."""
    made, retained, up = paho.Client(CallbackAPIVersion.VERSION2, client_id), list[str](), threading.Event()
    secure(made, who)
    made.on_connect = lambda *_: up.set()
    made.on_message = lambda _c, _d, message: retained.append(message.topic) if message.retain else None
    made.connect("127.0.0.1", broker.port)
    made.loop_start()
    try:
        assert up.wait(60)
        yield made, retained
    finally:
        made.disconnect()
        made.loop_stop()


def retained_by_devices(world: World) -> list[str]:
    """Subscribe anew, as a second server would, and return what the broker has kept of devices."""
    with client(world.broker, world.broker.settings().mqtt_login, "gaitway-look") as (looker, found):
        looker.subscribe([(topics.all_statuses(), 1), (topics.all_updates(), 1)])
        time.sleep(0.5)
        return found


def state(world: World, device: str) -> str:
    with world.runtime.database.read() as session:
        federation = find_federation(session, FEDERATION)
        assert federation is not None
        row = find_device(session, federation, device)
        return row.state if row else ""


def test_a_device_leaves_nothing_at_the_broker(world: World, tmp_path: Path) -> None:
    with agent(world.enrolled(tmp_path, "a")):
        until(lambda: state(world, "a") == "ready")
        assert retained_by_devices(world) == []
    until(lambda: state(world, "a") == "offline")
    assert retained_by_devices(world) == []


def test_what_a_hostile_device_has_retained_is_removed_and_noted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.runtime.accounts.grant(FEDERATION, "h", username(FEDERATION, "h"), "h")
    with world.runtime.database.write() as session:
        federation = find_federation(session, FEDERATION)
        assert federation is not None
        world.enrolled_row(session, federation, "h")
    who = BrokerAccess(username(FEDERATION, "h"), "h", world.broker.ca)
    junk = bytes(1000)
    with client(world.broker, who, username(FEDERATION, "h")) as (hostile, _):
        for number in range(200):
            topic = topics.update(FEDERATION, "h", f"u{number}", "chunk", 0)
            hostile.publish(topic, junk, 1, retain=True).wait_for_publish(10)
        hostile.publish(topics.status(FEDERATION, "h"), b"no status", 1, retain=True).wait_for_publish(10)
    assert len(retained_by_devices(world)) == 201
    monkeypatch.setattr(server_runtime, "RETAINED_S", 0.3)
    until(lambda: not retained_by_devices(world))
    with world.runtime.database.read() as session:
        noted = session.scalars(select(EventRow).where(EventRow.kind == "device.retained")).all()
        assert [row.device for row in noted] == ["h"]


def test_devices_are_found_again_when_a_server_comes_back(world: World, tmp_path: Path) -> None:
    """Whoever came back before the server is asked, and whoever is silent is offline, though no last will says so."""
    with agent(world.enrolled(tmp_path, "b")) as device:
        until(lambda: state(world, "b") == "ready")
        with world.runtime.database.write() as session:
            federation = find_federation(session, FEDERATION)
            assert federation is not None
            for name, said in (("b", "offline"), ("gone", "ready")):
                row = find_device(session, federation, name) or world.enrolled_row(session, federation, name)
                row.state = said
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(presence, "ANSWER_S", 6.0)
            world.runtime.coordinator.on_connected()  # as after each connection of the server
            until(lambda: state(world, "b") == "ready")
            until(lambda: state(world, "gone") == "offline")
            assert state(world, "b") == "ready"
        assert device.connected


def test_a_device_says_that_nobody_announces_its_federation(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.machine.agent.UNANNOUNCED_S", 1.0)
    world.runtime.accounts.grant("none", "d", username("none", "d"), "d")
    name = username("none", "d")
    with agent(world.config(tmp_path, "d", "none", username=name, password="d")) as device:
        until(lambda: device.says("this federation isn't announced: check [agent] federation"))
