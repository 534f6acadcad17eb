"""A real Mosquitto with the generated configuration, and the embedded broker: who may connect, say and hear what."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion
from pydantic import SecretStr
from typer.testing import CliRunner

from aggregator_api.cli.app import app as cli
from aggregator_api.core.errors import BrokerError
from aggregator_api.core.settings import BrokerAccess, Settings, sqlite_url
from aggregator_api.devices.service import BrokerAccounts, username
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.audit import Filters
from aggregator_api.storage.db.database import Database
from aggregator_api.transport.mqtt.client import secure
from aggregator_api.transport.mqtt.embedded_broker import BrokerThread, LocalAccounts
from aggregator_api.transport.mqtt.mosquitto import dynamic_security, roles
from aggregator_api.transport.mqtt.mosquitto.dynamic_security import DynamicSecurity
from edge_agent.config.brokers import BrokerSection
from edge_agent.config.settings import ServerSection
from edge_agent.transport.enrolment import Applicant, enrol
from federation.protocol import topics
from tests.aggregator_api.bench import wait_for
from tests.edge_agent.factories import DEVICE, make_config, make_plan
from tests.live.enrolled_world import agent, until
from tests.live.fleet import Program
from tests.live.real_parts import Mosquitto, bearer, mosquitto, wait_for_port
from tests.ports import free_port

pytestmark = [pytest.mark.ci, pytest.mark.service]

ANNOUNCE = topics.announce("f")
PATIENCE_S = 60.0
"""For what should come; a machine that is very busy takes longer."""


class Embedded:
    """The embedded broker with accounts, used as `Mosquitto` is."""

    ca = None

    def __init__(self) -> None:
        self.port = free_port()
        self._accounts = LocalAccounts(roles.SERVER_ROLE)
        self.thread = BrokerThread("127.0.0.1", self.port, self._accounts)

    def settings(self) -> Settings:
        """Return the server's settings for this broker."""
        return Settings(mqtt_username=roles.SERVER_ROLE, mqtt_password=SecretStr(self._accounts.server_password))

    def accounts(self) -> BrokerAccounts:
        """Return who gives devices their accounts here."""
        return self._accounts


AnyBroker = Mosquitto | Embedded


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A Mosquitto with the devices a and b of federation f, whose passwords are their names."""
    with mosquitto(tmp_path_factory.mktemp("broker")) as running:
        _grant(running)
        yield running


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    """The embedded broker with the same devices."""
    running = Embedded()
    running.thread.start()
    _grant(running)
    yield running
    running.thread.stop()


@pytest.fixture(params=["broker", "embedded"])
def either(request: pytest.FixtureRequest) -> AnyBroker:
    """Both brokers, one after the other: a device's rights are the same."""
    found: AnyBroker = request.getfixturevalue(request.param)
    return found


def _grant(broker: AnyBroker) -> None:
    for device in ("a", "b"):
        broker.accounts().grant("f", device, username("f", device), device)


class Peer:
    """A client that remembers what it heard, and how its connection went."""

    def __init__(
        self, broker: AnyBroker, login: BrokerAccess, client_id: str, *, clean: bool = True, will: str = ""
    ) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.refusals: list[str] = []
        self.connected, self.gone = threading.Event(), threading.Event()
        self._answers: dict[int, threading.Event] = {}
        self._codes: dict[int, list[int]] = {}
        self._mutex = threading.Lock()
        self.client = Client(CallbackAPIVersion.VERSION2, client_id, clean_session=clean, reconnect_on_failure=False)
        secure(self.client, login)
        if will:
            self.client.will_set(will, b"I am gone", 1)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = lambda *_: self.gone.set()
        self.client.on_message = lambda _c, _d, message: self.heard.append((message.topic, bytes(message.payload)))
        self.client.on_subscribe = lambda _c, _d, mid, codes, _p: self._subscribed(mid, [code.value for code in codes])
        self.client.connect("127.0.0.1", broker.port)
        self.client.loop_start()

    def subscribe(self, topic: str) -> bool:
        """Ask for a topic; returns whether the broker grants it."""
        _, mid = self.client.subscribe(topic, 1)
        assert mid is not None
        assert self._answer(mid).wait(PATIENCE_S)
        return self._codes[mid][0] < 128

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish, and wait until the broker has taken it, which it also says of what it throws away."""
        said = self.client.publish(topic, payload, 1)
        said.wait_for_publish(PATIENCE_S)
        assert said.is_published(), topic

    def cut(self) -> None:
        """End the connection without a goodbye, if there is one."""
        self.client.loop_stop()
        if (connection := self.client.socket()) is not None:
            connection.close()

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _answer(self, mid: int) -> threading.Event:
        with self._mutex:
            return self._answers.setdefault(mid, threading.Event())

    def _subscribed(self, mid: int, codes: list[int]) -> None:
        self._codes[mid] = codes
        self._answer(mid).set()

    def _on_connect(self, _client: object, _data: object, _flags: object, reason: object, _more: object) -> None:
        if getattr(reason, "is_failure", True):
            self.refusals.append(str(reason))
            self.gone.set()
        else:
            self.connected.set()


@contextmanager
def peer(broker: AnyBroker, username: str, password: str, client_id: str | None = None) -> Iterator[Peer]:
    made = Peer(broker, BrokerAccess(username, password, broker.ca), client_id or username)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def server(broker: AnyBroker) -> Iterator[Peer]:
    made = Peer(broker, broker.settings().mqtt_login, "gaitway-server")
    try:
        assert made.connected.wait(PATIENCE_S), made.refusals
        yield made
    finally:
        made.close()


def wait_for_count(peer: Peer, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(peer.heard) < count:
        assert time.monotonic() < deadline, peer.heard
        time.sleep(0.01)


def test_a_device_says_and_hears_what_is_its_own(either: AnyBroker) -> None:
    status, begin = topics.status("f", "a"), topics.update("f", "a", "u", "begin")
    hears = [ANNOUNCE, topics.invitation("f", "a"), topics.ack("f", "a")]
    with server(either) as operator, peer(either, "f~a", "a") as device:
        assert device.connected.wait(PATIENCE_S), device.refusals
        assert operator.subscribe(topics.all_statuses())
        assert operator.subscribe(topics.all_updates())
        assert all(device.subscribe(topic) for topic in hears)
        device.publish(status, b"1")
        device.publish(begin, b"2")
        wait_for_count(operator, 2)
        assert operator.heard == [(status, b"1"), (begin, b"2")]
        for topic in hears:
            operator.publish(topic, b"hello")
        wait_for_count(device, 3)
        assert [topic for topic, _ in device.heard] == hears


@pytest.mark.parametrize(
    "topic",
    [
        topics.status("f", "b"),
        topics.update("f", "b", "u", "begin"),
        topics.status("g", "a"),
        topics.announce("f"),
        topics.invitation("f", "b"),
        topics.ack("f", "b"),
    ],
)
def test_a_device_is_not_heard_outside_its_topics(either: AnyBroker, topic: str) -> None:
    """The broker acknowledges such a message and throws it away: neither the server nor the other device hears it."""
    with server(either) as operator, peer(either, "f~b", "b") as victim, peer(either, "f~a", "a") as device:
        assert device.connected.wait(PATIENCE_S), device.refusals
        assert victim.connected.wait(PATIENCE_S), victim.refusals
        for filter_ in (topics.all_statuses(), topics.all_updates()):
            assert operator.subscribe(filter_)
        for filter_ in (topics.announce("f"), topics.invitation("f", "b"), topics.ack("f", "b")):
            assert victim.subscribe(filter_)
        device.publish(topic, b"I am somebody else")
        device.publish(topics.status("f", "a"), b"later")
        wait_for_count(operator, 1)
        operator.publish(topics.ack("f", "b"), b"later")
        wait_for_count(victim, 1)
        assert operator.heard == [(topics.status("f", "a"), b"later")]
        assert victim.heard == [(topics.ack("f", "b"), b"later")]


def test_a_device_cannot_manage_accounts(broker: Mosquitto) -> None:
    command = {"commands": [{"command": "deleteClient", "username": "f~b"}]}
    with server(broker) as operator, peer(broker, "f~a", "a") as device, peer(broker, "f~b", "b") as victim:
        for one in (device, victim):
            assert one.connected.wait(PATIENCE_S), one.refusals
        for one in (device, operator):
            one.publish("$CONTROL/dynamic-security/v1", json.dumps(command).encode())
        victim.publish(topics.status("f", "b"), b"still here")
        assert not victim.gone.is_set()


@pytest.mark.parametrize(
    "topic",
    [
        topics.invitation("f", "b"),
        topics.ack("f", "b"),
        topics.status("f", "b"),
        "gaitway/v1/f/devices/+/invitation",
        "gaitway/v1/#",
        "#",
        "$CONTROL/dynamic-security/v1/response",
        "$SYS/#",
        topics.announce("g"),
    ],
)
def test_a_device_hears_nothing_of_others(either: AnyBroker, topic: str) -> None:
    with peer(either, "f~a", "a") as device:
        assert device.connected.wait(PATIENCE_S), device.refusals
        assert not device.subscribe(topic)


def test_a_wrong_password_an_unknown_name_and_no_name_are_refused(either: AnyBroker) -> None:
    for name, password in (("f~a", "b"), ("f~a", ""), ("f~z", "a")):
        with peer(either, name, password) as stranger:
            assert stranger.gone.wait(PATIENCE_S)
            assert not stranger.connected.is_set()
    nameless = Peer(either, BrokerAccess(None, None, either.ca), "f~a")
    assert nameless.gone.wait(PATIENCE_S)
    assert not nameless.connected.is_set()
    nameless.close()


def test_a_device_cannot_come_in_under_another_id(either: AnyBroker) -> None:
    with peer(either, "f~a", "a", client_id="f~b") as thief:
        assert thief.gone.wait(PATIENCE_S)
        assert not thief.connected.is_set()


def test_plain_tcp_and_a_foreign_authority_are_refused(broker: Mosquitto, tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S) as plain:
        plain.sendall(bytes.fromhex("101000044d5154540402003c000461626364"))  # an MQTT CONNECT
        with contextlib.suppress(ConnectionError):
            assert plain.recv(4)[:1] != b"\x20"  # no CONNACK: a TLS alert, or the end
    with pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(
            socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S), server_hostname="127.0.0.1"
        )
    context = ssl.create_default_context(cafile=str(broker.ca))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        context.wrap_socket(
            socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S), server_hostname="other"
        )


def test_a_revoked_device_is_cut_off_at_once_and_stays_out(either: AnyBroker) -> None:
    accounts = either.accounts()
    accounts.grant("f", "c", "f~c", "first")
    with peer(either, "f~c", "first") as device:
        assert device.connected.wait(PATIENCE_S), device.refusals
        accounts.revoke("f~c")
        assert device.gone.wait(PATIENCE_S)
    with peer(either, "f~c", "first") as device:
        assert device.gone.wait(PATIENCE_S)
        assert not device.connected.is_set()
    accounts.revoke("f~c")  # revoking twice is no error
    accounts.grant("f", "c", "f~c", "second")
    with peer(either, "f~c", "second") as device:
        assert device.connected.wait(PATIENCE_S), device.refusals
        accounts.grant("f", "c", "f~c", "third")  # a new password, and the old session ends
        assert device.gone.wait(PATIENCE_S)


def test_accounts_survive_a_kill_of_the_broker(tmp_path: Path) -> None:
    with mosquitto(tmp_path) as broker:
        broker.accounts().grant("f", "a", "f~a", "a")
        broker.stop(kill=True)
        broker.start()
        with peer(broker, "f~a", "a") as device:
            assert device.connected.wait(PATIENCE_S), device.refusals


def test_new_passwords_for_the_server_replace_the_old_ones(tmp_path: Path) -> None:
    with mosquitto(tmp_path) as broker:
        before = (broker.settings().mqtt_login, broker.settings().broker_admin_login)
        dynamic_security.rotate(broker.server_toml.parent)
        for login in before:
            assert login is not None
            with peer(broker, str(login.username), str(login.password)) as stale:
                assert stale.gone.wait(PATIENCE_S)
                assert not stale.connected.is_set()
        assert not list(broker.server_toml.parent.glob("*.next"))
        with server(broker) as operator:
            assert operator.subscribe(topics.all_statuses())
        broker.accounts().grant("f", "a", "f~a", "a")


def test_new_passwords_are_in_the_audit_of_the_server(tmp_path: Path) -> None:
    with mosquitto(tmp_path) as broker:
        command = ["broker-passwords", "--out", str(broker.server_toml.parent.parent)]
        data = ["--data-dir", str(tmp_path / "data")]
        password = broker.server_toml.with_name("mqtt_password")
        before = password.read_text()
        missing = CliRunner().invoke(cli, [*command, *data])
        assert missing.exit_code == 2
        assert "there is no database" in missing.output
        assert password.read_text() == before  # refused before anything has changed
        database = Database(sqlite_url(tmp_path / "data" / "gaitway.sqlite3"))
        database.migrate()
        done = CliRunner().invoke(cli, [*command, *data])
        assert done.exit_code == 0, done.output
        assert password.read_text() != before
        with database.read() as session:
            (entry,) = session.scalars(audit.select_entries(Filters(action="broker-passwords")))
        assert entry.actor == audit.operating_user()
        database.close()


@pytest.mark.parametrize("topic", ["#", "gaitway/v1/#", topics.announce("f"), "gaitway/v1/+/devices/#", "$SYS/#"])
def test_the_server_has_no_more_rights_than_it_needs(either: AnyBroker, topic: str) -> None:
    with server(either) as operator:
        assert not operator.subscribe(topic)


def test_the_server_manages_no_accounts(broker: Mosquitto) -> None:
    with server(broker) as operator:
        assert not operator.subscribe("$CONTROL/dynamic-security/v1/response")
    with pytest.raises(BrokerError, match="may not hear"):
        DynamicSecurity("127.0.0.1", broker.port, broker.settings().mqtt_login).revoke("f~a")


def test_a_last_will_on_the_topic_of_another_is_not_said(either: AnyBroker) -> None:
    with server(either) as operator:
        assert operator.subscribe(topics.all_statuses())
        thief = Peer(either, BrokerAccess("f~a", "a", either.ca), "f~a", will=topics.status("f", "b"))
        wait_for(lambda: thief.connected.is_set() or thief.gone.is_set())
        thief.cut()
        with peer(either, "f~a", "a") as device:
            assert device.connected.wait(PATIENCE_S), device.refusals
            device.publish(topics.status("f", "a"), b"later")
        wait_for_count(operator, 1)
        assert operator.heard == [(topics.status("f", "a"), b"later")]


@pytest.mark.parametrize("clean", [True, False])
def test_a_stranger_does_not_end_the_session_of_a_device(either: AnyBroker, clean: bool) -> None:
    """Neither with another device's password nor with none, whatever it says of its session."""
    with server(either) as operator, peer(either, "f~b", "b") as device:
        assert device.connected.wait(PATIENCE_S), device.refusals
        assert device.subscribe(topics.ack("f", "b"))
        for login in (BrokerAccess("f~a", "a", either.ca), BrokerAccess(None, None, either.ca)):
            thief = Peer(either, login, "f~b", clean=clean)
            assert thief.gone.wait(PATIENCE_S)
            assert not thief.connected.is_set()
            thief.close()
        operator.publish(topics.ack("f", "b"), b"still here")
        wait_for_count(device, 1)
        assert not device.gone.is_set()


def test_a_device_comes_back_after_the_embedded_broker_and_is_out_once_a_command_revokes_it(
    tmp_path: Path,
) -> None:
    mqtt, port, data = free_port(), free_port(), tmp_path / "data"
    serve = ["serve", "--embedded-broker", "--broker-port", str(mqtt), "--port", str(port), "--data-dir", str(data)]
    command = ["env", "GAITWAY_ADMISSION=enrolled", sys.executable, "-m", "aggregator_api", *serve]
    server = Program(command, tmp_path / "log")
    server.start()
    try:
        wait_for_port(port, server.process, server.log)
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, auth=bearer(data / "operator.key")
        ) as http:
            plan = make_plan()
            waits = plan.model_copy(update={"rounds": plan.rounds.model_copy(update={"minimum_clients": 100})})
            body = {"name": "demo", "plan": waits.model_dump(mode="json")}
            assert http.post("/v1/federations", json=body).status_code == 201
            wanted = {"device": DEVICE, "auto_approve": True}
            token = http.post("/v1/federations/demo/enrolment-tokens", json=wanted).json()["token"]
        plain = make_config(tmp_path)
        places = {
            "server": ServerSection(url=f"http://127.0.0.1:{port}"),
            "broker": BrokerSection(host="127.0.0.1", port=mqtt),
        }
        config = plain.model_copy(update=places)
        enrol(Applicant.of(config), token)
        with agent(config) as device:
            until(lambda: device.connected, server.said())
            stranger = Client(CallbackAPIVersion.VERSION2, DEVICE, reconnect_on_failure=False)
            refusals = list[str]()
            stranger.on_connect = lambda _c, _d, _f, reason, _p: refusals.append(str(reason))
            stranger.connect("127.0.0.1", mqtt)
            stranger.loop_forever()
            assert refusals == ["Not authorized"]
            assert device.connected
            server.stop()
            until(lambda: not device.connected)
            server.start()
            until(lambda: device.connected, server.said())
            revoke = [sys.executable, "-m", "aggregator_api", "devices", "revoke", "--federation", "demo", DEVICE]
            subprocess.run([*revoke, "--data-dir", str(data)], check=True, capture_output=True)
            revoked_at = time.monotonic()
            until(lambda: not device.connected, server.said())
            assert time.monotonic() - revoked_at < PATIENCE_S
            time.sleep(2.0)  # it tries to come back, and to claim a new account
            assert not device.connected
    finally:
        server.stop()
