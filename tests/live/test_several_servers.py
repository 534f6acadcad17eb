"""Two server processes on a real PostgreSQL and a Mosquitto with TLS and accounts; the one that leads is killed."""

from __future__ import annotations

import base64
import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from sqlalchemy import create_engine, text

from aggregator_api.core.settings import BrokerAccess
from aggregator_api.transport.mqtt.client import secure
from federation import wire
from federation.methods import method_from_json
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, Announcement, read, write
from federation.protocol.signing import Kind, unwrap, wrap
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, generated, status, tiny_plan
from tests.live.fleet import Program
from tests.live.real_parts import Mosquitto, bearer, mosquitto, postgres
from tests.ports import free_port

pytestmark = [pytest.mark.service, pytest.mark.slow]

LEASE_S = 20.0
"""So long that a leader on a busy machine renews it in time: only the one that is killed may lose it."""
ANSWER_S = 240.0
HERE = f"/v1/federations/{FEDERATION}"


def enrol(http: httpx.Client, name: str) -> tuple[dict[str, str], Ed25519PrivateKey]:
    """Bring a device in with a token and a key, and return its account at the broker."""
    made = http.post(f"{HERE}/enrolment-tokens", json={"auto_approve": True})
    assert made.status_code == 201, made.text
    token, key = made.json()["token"], Ed25519PrivateKey.generate()
    signature = key.sign(f"gaitway-signed/1\nenrol\n{FEDERATION}\n{name}\n{token}".encode())
    body = {
        "token": token,
        "federation": FEDERATION,
        "device": name,
        "public_key": base64.b64encode(key.public_key().public_bytes_raw()).decode(),
        "signature": base64.b64encode(signature).decode(),
    }
    answer = http.post("/v1/enrol", json=body)
    assert answer.status_code == 201, answer.text
    account: dict[str, str] = answer.json()["credentials"]["broker"]
    return account, key


class Device:
    """A thin device behind TLS, driven by the test step by step."""

    def __init__(self, name: str, broker: Mosquitto, http: httpx.Client) -> None:
        self.name = name
        account, self._key = enrol(http, name)
        self.answers: queue.Queue[Acknowledgement] = queue.Queue()
        self.announced: queue.Queue[Announcement] = queue.Queue()
        self.gone = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, account["username"], clean_session=False)
        secure(self._client, BrokerAccess(account["username"], account["password"], broker.ca))
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = lambda *_: self.gone.set()
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()

    def wait_until(self, state: str) -> Announcement:
        """Return the first announcement of a state."""
        while True:
            said = self.announced.get(timeout=ANSWER_S)
            if said.state == state:
                return said

    def publish(self, topic: str, payload: bytes) -> None:
        self._client.publish(topic, payload, 1).wait_for_publish(ANSWER_S)

    def begin(self, update: Parcel) -> Acknowledgement:
        signed = wrap(Kind.UPDATE, FEDERATION, self.name, write(update.manifest), self._key.sign)
        self.publish(update.topic("begin"), signed)
        return self.answers.get(timeout=ANSWER_S)

    def finish(self, update: Parcel, first: int) -> Acknowledgement:
        for n, chunk in list(enumerate(update.chunks()))[first:]:
            self.publish(update.topic("chunk", n), chunk)
        self.publish(update.topic("end"), b"")
        return self.answers.get(timeout=ANSWER_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: Client, *_: object) -> None:
        client.subscribe([(topics.announce(FEDERATION), 1), (topics.ack(FEDERATION, self.name), 1)])
        client.publish(topics.status(FEDERATION, self.name), status("ready"), 1, True)

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        if message.topic == topics.announce(FEDERATION):
            self.announced.put(read(Announcement, unwrap(message.payload).body))
        else:
            self.answers.put(read(Acknowledgement, unwrap(message.payload).body))


class Servers:
    """Two server processes that share a database, a folder and a broker."""

    def __init__(self, folder: Path, url: str, broker: Mosquitto) -> None:
        self.folder, self.url = folder, url
        config = folder / "server.toml"
        config.write_text(
            broker.server_toml.read_text()
            + f'data_dir = "{folder / "data"}"\ndatabase_url = "{url}"\nlease_s = {LEASE_S}\nchunk_bytes = 1024\n'
        )
        self.programs: list[Program] = []
        self.clients: list[httpx.Client] = []
        for name in ("one", "two"):
            port = free_port()
            words = ["serve", "--config", str(config), "--port", str(port)]
            self.programs.append(Program([sys.executable, "-m", "aggregator_api", *words], folder / f"{name}.log"))
            url, key = f"http://127.0.0.1:{port}", bearer(folder / "data" / "operator.key")
            self.clients.append(httpx.Client(base_url=url, timeout=ANSWER_S, trust_env=False, auth=key))

    def start(self, which: int) -> None:
        """Start one of them, and wait until it is ready."""
        self.programs[which].start()
        deadline = time.monotonic() + ANSWER_S
        while not self._is_ready(which):
            assert time.monotonic() < deadline, self.programs[which].said()
            time.sleep(0.1)

    def leader(self) -> str | None:
        """Return whose lease holds now."""
        engine = create_engine(self.url)
        with engine.connect() as connection:
            query = "SELECT holder FROM leases WHERE expires_at > extract(epoch FROM clock_timestamp())"
            found: str | None = connection.execute(text(query)).scalar()
        engine.dispose()
        return found

    def port(self, which: int) -> str:
        return str(self.clients[which].base_url.port)

    def stop(self) -> None:
        for program, client in zip(self.programs, self.clients, strict=True):
            program.stop()
            client.close()

    def _is_ready(self, which: int) -> bool:
        try:
            return self.clients[which].get("/readyz").status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def servers(tmp_path: Path, broker: Mosquitto) -> Iterator[Servers]:
    with postgres() as cluster:
        made = Servers(tmp_path, cluster.new_database(), broker)
        try:
            yield made
        finally:
            made.stop()


def test_killing_the_leader_in_the_middle_of_a_round_loses_nothing(servers: Servers, broker: Mosquitto) -> None:
    servers.start(0)
    body = {"name": FEDERATION, "plan": tiny_plan(rounds=1).model_dump(mode="json")}
    created = servers.clients[0].post("/v1/federations", json=body)
    assert created.status_code == 201, created.text
    servers.start(1)
    standby = servers.clients[1]
    a, b = (Device(name, broker, servers.clients[which]) for which, name in enumerate("ab"))
    announced = a.wait_until("collecting")
    assert announced.model is not None
    holder = servers.leader()
    assert holder is not None
    assert holder.endswith(servers.port(0))
    broadcast = standby.get(announced.model.url).content  # any process serves blobs
    updates = [generated(announced, broadcast, device.name, examples=n) for device, n in ((a, 20), (b, 10))]
    assert a.begin(updates[0]).status == "send"
    assert a.finish(updates[0], 0).status == "accepted"
    assert b.begin(updates[1]).status == "send"
    b.publish(updates[1].topic("chunk", 0), updates[1].chunks()[0])
    wait_for_first_chunk(servers.folder / "data" / "spool")

    servers.programs[0].kill()
    killed = time.monotonic()
    asked = b.answers.get(timeout=ANSWER_S)  # the other process asks for the rest, without a word from the device
    stalled_s = time.monotonic() - killed
    print(f"stalled for {stalled_s:.2f} s with a lease of {LEASE_S} s")
    assert (asked.status, asked.next_chunk) == ("send", 1)
    holder = servers.leader()
    assert holder is not None
    assert holder.endswith(servers.port(1))
    assert a.begin(updates[0]).status == "accepted"  # what was acknowledged is still known
    assert b.finish(updates[1], 1).status == "accepted"
    a.wait_until("finished")
    versions = standby.get(f"{HERE}/models").json()["items"]
    method = method_from_json({"name": "fedavg"})
    state = wire.decode(broadcast, limit_bytes=1 << 20)
    expected = method.aggregate(state, iter([update.update for update in updates]))
    assert standby.get(versions[-1]["url"]).content == wire.encode(method.broadcast(expected, ""))

    servers.start(0)  # it stands by now
    holder = servers.leader()
    assert holder is not None
    assert holder.endswith(servers.port(1))
    for device in (a, b):
        device.close()


def test_a_device_approved_on_one_process_is_heard_by_the_other(servers: Servers, broker: Mosquitto) -> None:
    for which in (0, 1):
        servers.start(which)
    body = {"name": FEDERATION, "plan": tiny_plan(rounds=1).model_dump(mode="json")}
    assert servers.clients[1].post("/v1/federations", json=body).status_code == 201
    devices = [Device(name, broker, servers.clients[which]) for which, name in enumerate("ab")]
    announced = devices[0].wait_until("collecting")
    for client in servers.clients:
        assert client.get(f"{HERE}/rounds/1").json()["invited"] == 2
        paused = client.post(f"{HERE}/pause")
        assert paused.status_code == 200, paused.text
        devices[0].wait_until("paused")
        assert client.post(f"{HERE}/resume").status_code == 200
        assert devices[0].wait_until("collecting").round == announced.round
    # approved by one process, revoked by the other: the broker cuts it off at once
    assert servers.clients[0].post(f"{HERE}/devices/b/revoke").status_code == 200
    assert devices[1].gone.wait(ANSWER_S)
    for device in devices:
        device.close()


def wait_for_first_chunk(spool: Path) -> None:
    """Wait until the server has written a chunk of the one upload that is on its way."""
    deadline = time.monotonic() + ANSWER_S
    while not any(path.stat().st_size >= 4 for path in spool.glob("*/*/*.have")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
