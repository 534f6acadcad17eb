"""Home Assistant's entities: the payloads held against its documents, and over a real Mosquitto that dies."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from typer.testing import CliRunner

from edge_agent.__main__ import app
from edge_agent.config.brokers import HomeAssistantSection
from edge_agent.config.settings import load
from edge_agent.errors import ConfigError
from edge_agent.storage.consent import noted_topics, switch_home_assistant
from edge_agent.storage.state_store import StateStore
from edge_agent.transport import home_assistant
from edge_agent.transport.home_assistant import HomeAssistant, HomeState
from tests.edge_agent.transport.home_assistant.published_schema import Sensor, check
from tests.ports import free_port

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
LABELS = ("wlk", "sit", "stairs_up")
WALKING = HomeState("wlk", 0.934, "global model of round 7", "idle", ())


def test_the_configs_are_those_of_the_documents_and_of_one_device() -> None:
    node = home_assistant.node_of("kitchen.pi", "demo", "homeassistant")
    made = home_assistant.configs(node, LABELS, "0.3.0")
    entities = {topic: check(topic, json.dumps(each)) for topic, each in made.items()}
    assert len({each.unique_id for each in entities.values()}) == len(entities) == 5
    assert len({each.device.model_dump_json() for each in entities.values()}) == 1
    activity = next(each for each in entities.values() if each.name == "Activity")
    assert isinstance(activity, Sensor)
    assert activity.options == ["sitting", "stairs up", "walking"], "as people read them"
    state = json.loads(home_assistant.state_payload(WALKING))
    assert state["activity"] in activity.options
    assert state == {
        "activity": "walking",
        "probability": 93,
        "model": "global model of round 7",
        "doing": "idle",
        "problems": [],
    }
    assert (
        json.loads(home_assistant.state_payload(WALKING._replace(activity=None, probability=None)))["activity"] is None
    )
    assert home_assistant.node_of("kitchen_pi", "demo", "h").id != node.id, "two names, two devices"
    assert "options" not in next(iter(home_assistant.configs(node, (), "0").values())), "a number has none"


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no username"):
        HomeAssistantSection(host="h", password="secret")
    with pytest.raises(ConfigError, match=r"\[home_assistant\] ca_file"):
        HomeAssistant(HomeAssistantSection(host="h", tls=True, ca_file=tmp_path / "no.pem"), "d", "f")
    file = tmp_path / "agent.toml"
    file.write_text('[agent]\ndevice="d"\nfederation="f"\ndata_dir="data"\n[server]\nurl="http://127.0.0.1:9"\n')
    found = load(file, {"GAITWAY_EDGE_HOME_ASSISTANT_HOST": "hub", "GAITWAY_EDGE_HOME_ASSISTANT_TLS": "true"})
    assert found.home_assistant.place is not None
    assert found.home_assistant.place[:3] == ("hub", 8883, True)


def test_a_broker_that_is_not_there_holds_nothing_up(tmp_path: Path) -> None:
    with closing(StateStore(tmp_path)) as store:
        home = HomeAssistant(HomeAssistantSection(host="127.0.0.1", port=free_port()), "pi", "demo")
        began = time.monotonic()
        until(lambda: home.tick(store, WALKING, LABELS) or home.problem)
        home.stop(0.3)
        assert home.problem.startswith("no broker at 127.0.0.1:")
        assert time.monotonic() - began < 5
        assert len(noted_topics(store)) == 7, "before anything is told"


class Broker:
    """Mosquitto, and what Home Assistant would have of it: the newest message of each topic."""

    def __init__(self, folder: Path) -> None:
        self.port, self.config, self.kept = free_port(), folder / "mosquitto.conf", dict[str, bytes]()
        self.config.write_text(f"allow_anonymous true\nlistener {self.port} 127.0.0.1\n")
        self.start()

    def start(self) -> None:
        assert MOSQUITTO
        self.process = subprocess.Popen([MOSQUITTO, "-c", str(self.config)], stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def watched(self) -> paho.Client:
        """Connect as Home Assistant does."""
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.on_connect = lambda *_: client.subscribe([("homeassistant/#", 1), ("gaitway-home/#", 1)])
        client.on_message = self._take
        client.reconnect_delay_set(1, 1)
        client.connect_async("127.0.0.1", self.port)
        client.loop_start()
        return client

    def _take(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        self.kept[message.topic] = message.payload

    def cut_off(self, client_id: str) -> None:
        """End another's connection, as the broker does where a second one comes with its id: its last will follows."""
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        until(client.is_connected)
        client.disconnect()
        client.loop_stop()

    def state(self) -> dict[str, Any]:
        return json.loads(self.kept.get("gaitway-home/gaitway_demo_pi/state") or b"{}")

    def availability(self) -> bytes:
        return self.kept.get("gaitway-home/gaitway_demo_pi/availability", b"")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    found = Broker(tmp_path)
    watching = found.watched()
    yield found
    watching.disconnect()
    watching.loop_stop()
    found.kill()


@pytest.mark.service
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_entities_come_outlive_their_broker_and_are_removed(tmp_path: Path, broker: Broker) -> None:
    toml = tmp_path / "agent.toml"
    lines = ("[agent]", 'device = "pi"', 'federation = "demo"', 'data_dir = "data"', "[server]")
    section = f'url = "http://127.0.0.1:9"\n[home_assistant]\nhost = "127.0.0.1"\nport = {broker.port}\n'
    toml.write_text("\n".join([*lines, section]))
    settings = load(toml)
    with closing(StateStore(settings.agent.data_dir)) as store:
        home = HomeAssistant(settings.home_assistant, "pi", "demo")
        until(lambda: home.tick(store, WALKING, LABELS) or broker.state().get("activity") == "walking")
        configs = {topic: payload for topic, payload in broker.kept.items() if topic.endswith("/config")}
        assert len([check(topic, payload) for topic, payload in configs.items()]) == 5
        until(lambda: broker.availability() == b"online")

        own = WALKING._replace(activity="yoga")  # an activity of the person's own
        until(lambda: home.tick(store, own, LABELS) or broker.state().get("activity") == "yoga")
        topic = "homeassistant/sensor/gaitway_demo_pi/activity/config"
        assert "yoga" in json.loads(broker.kept[topic])["options"]
        broker.kill()
        broker.kept.clear()
        broker.start()  # with nothing retained
        until(lambda: home.tick(store, WALKING, LABELS) or broker.state().get("activity") == "walking")
        assert topic in broker.kept

        broker.cut_off("gaitway_demo_pi-home")
        until(lambda: broker.availability() == b"offline")
        until(lambda: home.tick(store, WALKING, LABELS) or broker.availability() == b"online")
        home.stop(2.0)
        until(lambda: broker.availability() == b"offline")

        assert CliRunner().invoke(app, ["home-assistant", "off", "--config", str(toml)]).exit_code == 0
        until(lambda: not any(broker.kept.values()))
        assert noted_topics(store) == ()

        switch_home_assistant(store, on=True)  # an agent that runs removes them itself, and comes back
        home = HomeAssistant(settings.home_assistant, "pi", "demo")
        until(lambda: home.tick(store, WALKING, LABELS) or broker.availability() == b"online")
        switch_home_assistant(store, on=False)
        until(lambda: home.tick(store, WALKING, LABELS) or not any(broker.kept.values()))
        until(lambda: home.tick(store, WALKING, LABELS) or not noted_topics(store))
        switch_home_assistant(store, on=True)
        until(lambda: home.tick(store, WALKING, LABELS) or broker.availability() == b"online")
        home.stop(2.0)


def until(happened: Callable[[], Any], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
