"""The real program: a broker process, a server process, and two thin MQTT clients that upload generated tensors."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from federation import wire
from federation.methods import method_from_json
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, Announcement, read, write
from federation.protocol.signing import unwrap
from federation.records import Update
from tests.aggregator_api.bench import wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, generated, status, tiny_plan
from tests.live.real_parts import bearer
from tests.ports import free_port

pytestmark = [pytest.mark.ci, pytest.mark.service]

MOSQUITTO = shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
START_S = 120.0
ANSWER_S = 120.0


def listens(port: int) -> bool:
    """Whether somebody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program whose output goes into a file."""
    with log.open("wb") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)


def end(process: subprocess.Popen[bytes]) -> int:
    """Ask a program to end and return its exit code."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(ANSWER_S)
    finally:
        process.kill()
        process.wait()  # or the next test is blamed for what still runs


@pytest.fixture(params=["embedded", pytest.param("mosquitto", marks=pytest.mark.ci)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """A broker's port."""
    port = free_port()
    if request.param == "embedded":
        command = [sys.executable, "-m", "aggregator_api", "broker", "--port", str(port)]
    else:
        if MOSQUITTO is None:
            pytest.skip("mosquitto is not installed")
        config = tmp_path / "mosquitto.conf"
        config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
        command = [MOSQUITTO, "-c", str(config)]
    process = start(command, tmp_path / "broker.log")
    wait_for(lambda: listens(port), seconds=START_S)
    yield port
    assert end(process) == 0, (tmp_path / "broker.log").read_text()


class Server:
    """A server process over a folder; it can be killed and started again."""

    def __init__(self, folder: Path, broker_port: int) -> None:
        self.port = free_port()
        self._folder = folder
        self._broker_port = broker_port
        key = bearer(folder / "data" / "operator.key")
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=ANSWER_S, trust_env=False, auth=key)

    def start(self, *flags: str) -> None:
        """Start and wait until it is ready."""
        options = {"port": self.port, "broker-port": self._broker_port, "data-dir": self._folder / "data"}
        command = [sys.executable, "-m", "aggregator_api", "serve", *flags]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        self.process = start(command, self._folder / "server.log")
        wait_for(lambda: listens(self.port) and self.http.get("/readyz").status_code == 200, seconds=START_S)

    def get(self, path: str = "") -> Any:
        """Read something about the federation."""
        response = self.http.get(f"/v1/federations/{FEDERATION}{path}")
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture
def server(tmp_path: Path, broker: int) -> Iterator[Server]:
    found = Server(tmp_path, broker)
    found.start()
    yield found
    found.http.close()
    log = (tmp_path / "server.log").read_text()
    assert end(found.process) == 0, log
    assert "Traceback" not in log, log


class Device(threading.Thread):
    """Takes part in every round with generated tensors, until the federation has finished."""

    def __init__(self, name: str, broker_port: int, http: httpx.Client) -> None:
        super().__init__(name=name, daemon=True)
        self.sent: dict[int, Parcel] = {}
        self._presence_check = ""
        self._http = http
        self._announced: queue.Queue[Announcement] = queue.Queue()
        self._answers: queue.Queue[Acknowledgement] = queue.Queue()
        self._mqtt = Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
        self._mqtt.will_set(topics.status(FEDERATION, name), status("offline"), 1)
        self._mqtt.on_connect = self._on_connect
        self._mqtt.on_message = self._on_message
        self._mqtt.connect("127.0.0.1", broker_port)
        self._mqtt.loop_start()

    def run(self) -> None:
        """Answer announcements."""
        while (announced := self._announced.get(timeout=ANSWER_S)).state != "finished":
            if announced.state == "collecting" and announced.round not in self.sent:
                self._take_part(announced)
        self._mqtt.disconnect()
        self._mqtt.loop_stop()

    def _take_part(self, announced: Announcement) -> None:
        assert announced.model is not None
        broadcast = self._http.get(announced.model.url).content
        assert wire.digest(broadcast) == announced.model.sha256
        update = generated(announced, broadcast, self.name, examples=10 + len(self.sent) + ord(self.name))
        self._publish(update.topic("begin"), write(update.manifest))
        answer = self._answers.get(timeout=ANSWER_S)
        while answer.status == "send":
            for n, chunk in list(enumerate(update.chunks()))[answer.next_chunk :]:
                self._publish(update.topic("chunk", n), chunk)
            self._publish(update.topic("end"), b"")
            answer = self._answers.get(timeout=ANSWER_S)
        assert answer.status == "accepted", answer
        self.sent[announced.round] = update

    def _publish(self, topic: str, payload: bytes) -> None:
        self._mqtt.publish(topic, payload, 1).wait_for_publish(ANSWER_S)

    def _on_connect(self, client: Client, *_: object) -> None:
        client.subscribe([(topics.announce(FEDERATION), 1), (topics.ack(FEDERATION, self.name), 1)])
        self._say_ready(client)

    def _say_ready(self, client: Client) -> None:
        client.publish(topics.status(FEDERATION, self.name), status("ready", examples=110), 1)

    def _on_message(self, client: Client, _data: object, message: MQTTMessage) -> None:
        if message.topic == topics.announce(FEDERATION):
            announced = read(Announcement, unwrap(message.payload).body)
            if announced.presence_check != self._presence_check:
                self._presence_check = announced.presence_check
                self._say_ready(client)
            self._announced.put(announced)
        else:
            assert message.topic == topics.ack(FEDERATION, self.name), message.topic
            self._answers.put(read(Acknowledgement, unwrap(message.payload).body))


def events(server: Server, after: int, until: str) -> list[dict[str, Any]]:
    """Follow the events up to one of a kind."""
    seen = []
    headers = {"Last-Event-ID": str(after)}
    with server.http.stream("GET", f"/v1/federations/{FEDERATION}/events", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                if seen[-1]["kind"] == until:
                    break
    return seen


def test_two_rounds_of_two_devices(server: Server, broker: int) -> None:
    # the devices are there before their federation
    devices = [Device(name, broker, server.http) for name in ("a", "b")]
    body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
    assert server.http.post("/v1/federations", json=body).status_code == 201
    for device in devices:
        device.start()
    seen = events(server, 0, "federation.finished")
    for device in devices:
        device.join(ANSWER_S)
        assert sorted(device.sent) == [1, 2]
    assert_models_are_the_methods(server, devices)
    assert [event["kind"] for event in seen].count("update.accepted") == 4
    ids = [event["id"] for event in seen]
    assert events(server, ids[-3], "federation.finished") == seen[-2:]
    parts = server.get("/rounds/2/participants")["items"]
    assert {part["device"]: part["sha256"] for part in parts} == {d.name: d.sent[2].manifest.sha256 for d in devices}
    assert len(server.get("/metrics?round=1")["items"]) == 2


def assert_models_are_the_methods(server: Server, devices: list[Device]) -> None:
    """Aggregate here too, and compare every published model bit for bit."""
    method = method_from_json({"name": "fedavg"})
    versions = server.get("/models")["items"]
    data = [server.http.get(version["url"]).content for version in versions]
    assert [version["round_number"] for version in versions] == [0, 1, 2]
    for number in (1, 2):
        state = wire.decode(data[number - 1], limit_bytes=1 << 20)
        updates: list[Update] = [device.sent[number].update for device in devices]
        assert data[number] == wire.encode(method.broadcast(method.aggregate(state, iter(updates)), ""))
    assert server.get()["model"]["sha256"] == versions[-1]["sha256"]


# the embedded broker ran through `test_two_rounds_of_two_devices`; what is killed here is the server
@pytest.mark.parametrize("broker", [pytest.param("embedded", marks=pytest.mark.slow), "mosquitto"], indirect=True)
def test_a_killed_server_goes_on(server: Server, broker: int) -> None:
    body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
    assert server.http.post("/v1/federations", json=body).status_code == 201
    first, second = (Device(name, broker, server.http) for name in ("a", "b"))
    wait_for(lambda: server.get()["round"] == 1)
    first.start()
    wait_for(lambda: server.get("/rounds/1")["received"] == 1)
    server.process.kill()
    server.process.wait()
    server.start()
    second.start()
    wait_for(lambda: bool(server.get()["status"] == "finished"), seconds=ANSWER_S)
    for device in (first, second):
        device.join(ANSWER_S)
    assert_models_are_the_methods(server, [first, second])


def test_sigterm_ends_a_server_with_its_own_broker_and_an_open_stream(tmp_path: Path) -> None:
    server = Server(tmp_path, free_port())
    server.start("--embedded-broker")
    body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
    assert server.http.post("/v1/federations", json=body).status_code == 201
    with server.http.stream("GET", f"/v1/federations/{FEDERATION}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("id: ")
        server.process.send_signal(signal.SIGTERM)
        assert list(lines)[-1] == ""  # whole to its end
    log = (tmp_path / "server.log").read_text()
    assert server.process.wait(ANSWER_S) == 0, log
    assert "Traceback" not in log, log
    server.http.close()
