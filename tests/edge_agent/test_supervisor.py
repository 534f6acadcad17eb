"""The program: what it loads, how it ends, whose folder it takes, and its command line; one live run over a broker."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from typer.testing import CliRunner

from edge_agent.__main__ import app
from edge_agent.errors import ConfigError
from edge_agent.machine.events import Announced, Connected, WithdrawalReady
from edge_agent.machine.state import identity
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.drivers import Message, open_drivers
from edge_agent.supervisor.persistence import save_round
from edge_agent.supervisor.supervisor import Supervisor
from edge_agent.training.job import UPDATE
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, DeviceStatus, UpdateManifest, read, write
from tests.edge_agent.factories import DEVICE, OPTIONS, announcement, invitation, make_config
from tests.edge_agent.storage.locked import locked
from tests.edge_agent.storage.test_state_store import make_job
from tests.edge_agent.supervised import BUSY_S, SupervisedDevice, run, until
from tests.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[2]


def config_file(folder: Path, port: int) -> Path:
    options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in OPTIONS.items())
    path = folder / "agent.toml"
    path.write_text(
        f'[agent]\ndevice = "{DEVICE}"\nfederation = "demo"\ndata_dir = "data"\n'
        f'[server]\nurl = "http://127.0.0.1:9"\n'
        '[broker]\nhost = "127.0.0.1"\n'
        f"port = {port}\n[sensors]\noptions = {{ {options} }}\n"
    )
    return path


@pytest.mark.ci
def test_the_supervisor_is_light() -> None:
    modules = "sys, json, edge_agent.supervisor.supervisor, edge_agent.__main__"
    program = f"import {modules}; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    loaded = set(json.loads(run.stdout.splitlines()[-1]))
    assert "edge_agent.supervisor.supervisor" in loaded
    assert {"torch", "fastapi", "sqlalchemy", "aggregator_api", "sim", "export.onnx_export"} & loaded == set()


def test_it_ends_within_two_seconds_also_without_a_broker(tmp_path: Path) -> None:
    supervisor = Supervisor.open(make_config(tmp_path))
    threading.Timer(0.5, supervisor.stop).start()
    begun = time.monotonic()
    assert supervisor.run() == 0
    assert time.monotonic() - begun < 2.5 + BUSY_S
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == []


def test_it_waits_while_another_program_holds_its_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, mailbox = make_config(tmp_path), queue.SimpleQueue[Message]()
    drivers = open_drivers(config, mailbox.put)
    supervisor = Supervisor(config, drivers, mailbox)
    caplog.set_level("INFO")

    def doing() -> str:
        with closing(StateStore(tmp_path)) as store:
            return store.get("doing")

    def play() -> None:
        with locked(tmp_path / "agent.sqlite"):
            mailbox.put(Connected())
            until(lambda: "is locked by another program" in caplog.text)
            mailbox.put(Announced(announcement(1)))
            assert not doing()
        until(lambda: "database available again" in caplog.text)
        until(doing)

    run(supervisor, play)
    assert caplog.text.count("is locked by another program") == 1
    with closing(StateStore(tmp_path)) as store:
        assert store.get("identity"), "the announcement that came meanwhile was not lost"


def test_it_ends_while_another_program_holds_its_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, mailbox = make_config(tmp_path), queue.SimpleQueue[Message]()
    supervisor = Supervisor(config, open_drivers(config, mailbox.put), mailbox)
    with locked(tmp_path / "agent.sqlite"):
        mailbox.put(Connected())
        waiter = threading.Thread(
            target=lambda: (until(lambda: "is locked by another program" in caplog.text), supervisor.stop())
        )
        waiter.start()
        assert supervisor.run() == 0
        waiter.join()
    with closing(StateStore(tmp_path)) as store:
        assert not store.get("doing")


def test_a_folder_belongs_to_one_device_and_one_process(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    first = Supervisor.open(config)
    with pytest.raises(ConfigError, match="another agent is using"):
        Supervisor.open(config)
    first.stop()
    first.run()
    other = config.agent.model_copy(update={"device": "d2"})
    with pytest.raises(ConfigError, match="belongs to device"):
        Supervisor.open(config.model_copy(update={"agent": other}))


def test_the_command_line_refuses_in_words_and_shows_a_device(tmp_path: Path) -> None:
    runner = CliRunner()
    refused = runner.invoke(app, ["run", "--config", str(tmp_path / "none.toml")])
    assert (refused.exit_code, "example-config" in refused.stderr) == (2, True)
    path = config_file(tmp_path, 1)
    assert "no device yet" in runner.invoke(app, ["status", "--config", str(path)]).stderr.replace("\n", " ")
    store = StateStore(tmp_path / "data")
    save_round(store, make_job(make_config(tmp_path / "data")))
    store.close()
    shown = runner.invoke(app, ["status", "--config", str(path)])
    assert (shown.exit_code, "trained" in shown.stdout, "0.750" in shown.stdout) == (0, True, True)
    found = json.loads(runner.invoke(app, ["status", "--config", str(path), "--json"]).stdout)
    assert (found["outbox"], found["rounds"][0]["round"], found["model"]) == (1, 1, None)
    assert "[agent]" in runner.invoke(app, ["example-config"]).stdout


class Operator:
    """The other end of the broker: hears everything, and says what a server would."""

    def __init__(self, port: int) -> None:
        self.heard: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="operator")
        self._client.on_message = lambda _client, _data, message: self.heard.put((message.topic, message.payload))
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        for topic in (topics.all_statuses("demo"), topics.all_updates("demo")):
            self._client.subscribe(topic, 1)

    def say(self, topic: str, payload: bytes, retain: bool = False) -> None:
        self._client.publish(topic, payload, 1, retain).wait_for_publish(60.0)

    def wait(self, wanted: Callable[[topics.DeviceTopic, bytes], bool], timeout_s: float = 60.0) -> bytes:
        deadline = time.monotonic() + timeout_s
        while True:
            topic, payload = self.heard.get(timeout=max(0.01, deadline - time.monotonic()))
            if wanted(topics.parse(topic), payload):
                return payload

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def wait_for_port(port: int, program: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert program.poll() is None, f"it ended with {program.returncode} before it listened on port {port}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on port {port} after 120 s")


@pytest.fixture
def operator() -> Iterator[tuple[Operator, int]]:
    port = free_port()
    # a process of its own: the embedded broker does not close the connection of a device that was killed
    command = [sys.executable, "-m", "aggregator_api", "broker", "--port", str(port)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as broker:
        wait_for_port(port, broker)
        person = Operator(port)
        yield person, port
        person.stop()
        broker.terminate()


def started(path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "edge_agent", "run", "--config", str(path)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def is_state(state: str) -> Callable[[topics.DeviceTopic, bytes], bool]:
    return lambda topic, payload: topic.kind == "status" and read(DeviceStatus, payload).state == state


def is_kind(kind: str) -> Callable[[topics.DeviceTopic, bytes], bool]:
    return lambda topic, _payload: topic.kind == kind


@pytest.mark.ci
@pytest.mark.service
def test_a_killed_device_resends_its_outbox_and_says_offline(tmp_path: Path, operator: tuple[Operator, int]) -> None:
    person, port = operator
    path, folder = config_file(tmp_path, port), tmp_path / "data"
    store = StateStore(folder)
    store.reset(identity=identity(announcement(1), None))
    job = make_job(make_config(folder))
    payload = os.urandom(10_000)
    write_file(job.out / UPDATE, payload)
    kept = save_round(store, job)
    store.close()
    person.say(topics.invitation("demo", DEVICE), write(invitation(1)), retain=True)
    person.say(topics.announce("demo"), write(announcement(1)), retain=True)

    first = started(path)
    try:
        begin = read(UpdateManifest, person.wait(is_kind("begin")))
        first.kill()  # no word to anyone: the last will speaks
        first.wait(60)
        person.wait(is_state("offline"))

        second = started(path)
        try:
            again = read(UpdateManifest, person.wait(is_kind("begin")))
            assert (again.update_id, again.nonce) == (begin.update_id, begin.nonce) == (kept.update_id, begin.nonce)
            chunks = answer_with(person, again)
            assert b"".join(chunks[n] for n in sorted(chunks)) == payload
            status = read(DeviceStatus, person.wait(is_state("idle")))
            assert status.examples > 0
            begun = time.monotonic()
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
            assert time.monotonic() - begun < 2.5 + BUSY_S
            person.wait(is_state("offline"))
        finally:
            second.kill()
            second.wait()
    finally:
        first.kill()
        first.wait()
    store = StateStore(folder)
    assert store.outbox() == {}
    assert [(row.round, row.status) for row in store.rounds()] == [(1, "accepted")]
    store.close()


def answer_with(person: Operator, manifest: UpdateManifest) -> dict[int, bytes]:
    """Do the server's part of one upload; returns the chunks by number."""
    ack, chunks = topics.ack("demo", DEVICE), dict[int, bytes]()
    send = write(Acknowledgement(update_id=manifest.update_id, nonce=manifest.nonce, status="send"))
    person.say(ack, send)

    def collected(topic: topics.DeviceTopic, payload: bytes) -> bool:
        if topic.kind == "begin":  # an answer may be lost, and after `ack_timeout_s` it is asked for again
            person.say(ack, send)
        if topic.kind == "chunk":
            chunks[topic.chunk] = payload
        return topic.kind == "end"

    person.wait(collected, timeout_s=120.0)
    person.say(ack, write(Acknowledgement(update_id=manifest.update_id, nonce=manifest.nonce, status="accepted")))
    return chunks


@pytest.mark.parametrize("supervised_device", [1], indirect=True)
def test_a_withdrawal_that_another_one_has_replaced_is_not_sent(supervised_device: SupervisedDevice) -> None:
    """Writing one may take longer than the wait for it on a busy disk, and then a second one is written."""
    device = supervised_device
    device.post(WithdrawalReady("s1-first-out"))
    run(device.supervisor, lambda: None)
    assert device.supervisor.agent.outbox == ()
