"""A device that enrols with a real server and a real broker under TLS: credentials, sealed models, a broker restart."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
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
from edge_agent.storage.state_store import StateStore
from edge_agent.transport.link import LinkEvent, LinkOptions, MessageDelivered
from edge_agent.transport.mqtt import Broker
from edge_agent.transport.trust import Trust, newest_of
from federation.protocol.messages import DeviceStatus
from tests.edge_agent.factories import DEVICE, OPTIONS, make_plan
from tests.live.fleet import PATIENCE_S, Program
from tests.live.real_parts import Given, Mosquitto, mosquitto
from tests.ports import free_port

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


class Server:
    """A server process over that broker, asked by an operator on its machine."""

    def __init__(self, broker: Mosquitto, folder: Path) -> None:
        port = free_port()
        self.url, self.folder = f"http://127.0.0.1:{port}", folder
        words = [
            "serve",
            "--config",
            str(broker.server_toml),
            "--port",
            str(port),
            "--data-dir",
            str(folder / "server"),
        ]
        self.program = Program([sys.executable, "-m", "aggregator_api", *words], folder / "server.log")
        self.program.start()
        until(self.is_ready, self.program)

    def is_ready(self) -> bool:
        try:
            self.ask("/readyz")
        except OSError:
            return False
        return True

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        key = self.folder / "server" / "operator.key"
        shown = {"Authorization": f"Bearer {key.read_text().strip()}"} if key.is_file() else {}
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **shown})
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.loads(answer.read())


def until(true: Callable[[], Any], *programs: Program) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "\n".join(program.said() for program in programs)
        time.sleep(0.2)


def agent_toml(folder: Path, broker: Mosquitto, url: str) -> Path:
    options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in OPTIONS.items())
    path = folder / "agent.toml"
    path.write_text(
        f'[agent]\ndevice = "{DEVICE}"\nfederation = "live"\ndata_dir = "device"\n[server]\nurl = "{url}"\n'
        '[broker]\nhost = "127.0.0.1"\n'
        f'port = {broker.port}\ntls = true\nca_file = "{broker.ca}"\n[sensors]\noptions = {{ {options} }}\n'
    )
    return path


@pytest.mark.slow
def test_a_device_enrols_is_approved_trains_from_a_sealed_model_and_is_revoked(
    broker: Mosquitto, tmp_path: Path
) -> None:
    server = Server(broker, tmp_path)
    config, path = agent_toml(tmp_path, broker, server.url), "/v1/federations/live"
    command = [sys.executable, "-m", "edge_agent"]
    device = Program([*command, "run", "--config", str(config)], tmp_path / "device.log")
    try:
        plan = make_plan()
        once = plan.model_copy(update={"rounds": plan.rounds.model_copy(update={"rounds": 1})})
        server.ask("/v1/federations", {"name": "live", "plan": once.model_dump(mode="json")})
        token = server.ask(f"{path}/enrolment-tokens", {"device": DEVICE})["token"]
        enrol = [*command, "enrol", "--config", str(config)]
        first = subprocess.run([*enrol, "--token-file", "-"], input=token, capture_output=True, text=True, check=False)
        assert (first.returncode, "waits for the operator" in first.stdout) == (3, True), first
        again = subprocess.run(enrol, capture_output=True, text=True, check=False)
        assert again.returncode == 3, again
        server.ask(f"{path}/devices/{DEVICE}/approve", {})
        device.start()  # claims its credentials by itself
        until(lambda: (tmp_path / "device" / "agent.sqlite").exists(), device)
        store = StateStore(tmp_path / "device")
        until(lambda: [(row.round, row.status) for row in store.rounds()] == [(1, "accepted")], device, server.program)
        assert newest_of(store).serial > 0
        store.close()
        assert read_credentials(tmp_path / "device") is not None
        server.ask(f"{path}/devices/{DEVICE}/revoke", {})
        out = subprocess.run(enrol, capture_output=True, text=True, check=False)
        assert (out.returncode, "was revoked" in " ".join(out.stderr.split())) == (1, True), out
    finally:
        device.stop()
        server.program.stop()
