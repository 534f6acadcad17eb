"""A real Mosquitto with the generated configuration: who may come in, and what each may say and hear."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion
from typer.testing import CliRunner

from aggregator_api.cli.app import app as cli
from aggregator_api.db import audit
from aggregator_api.db.audit import Filters
from aggregator_api.db.database import Database
from aggregator_api.devices.accounts import username
from aggregator_api.errors import BrokerError
from aggregator_api.mqtt.client import secure
from aggregator_api.mqtt.mosquitto import rotation
from aggregator_api.mqtt.mosquitto.dynamic_security import DynamicSecurity
from aggregator_api.settings import BrokerAccess, sqlite_url
from federation.protocol import topics
from tests.live.real_parts import Mosquitto, mosquitto

pytestmark = [pytest.mark.ci, pytest.mark.service]

ANNOUNCE = topics.announce("f")
PATIENCE_S = 60.0
"""For what should come; a machine that is very busy takes longer."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A broker with the devices a and b of federation f, whose passwords are their names."""
    with mosquitto(tmp_path_factory.mktemp("broker")) as running:
        accounts = running.accounts()
        for device in ("a", "b"):
            accounts.grant("f", device, username("f", device), device)
        yield running


class Peer:
    """A client that remembers what it heard, and how its connection went."""

    def __init__(self, broker: Mosquitto, login: BrokerAccess, client_id: str) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.refusals: list[str] = []
        self.connected, self.gone = threading.Event(), threading.Event()
        self._answers: dict[int, threading.Event] = {}
        self._codes: dict[int, list[int]] = {}
        self._mutex = threading.Lock()
        self.client = Client(CallbackAPIVersion.VERSION2, client_id, reconnect_on_failure=False)
        secure(self.client, login)
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
def peer(broker: Mosquitto, username: str, password: str, client_id: str | None = None) -> Iterator[Peer]:
    made = Peer(broker, BrokerAccess(username, password, broker.ca), client_id or username)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def server(broker: Mosquitto) -> Iterator[Peer]:
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


def test_a_device_says_and_hears_what_is_its_own(broker: Mosquitto) -> None:
    status, begin = topics.status("f", "a"), topics.update("f", "a", "u", "begin")
    hears = [ANNOUNCE, topics.invitation("f", "a"), topics.ack("f", "a")]
    with server(broker) as operator, peer(broker, "f~a", "a") as device:
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
def test_a_device_is_not_heard_outside_its_topics(broker: Mosquitto, topic: str) -> None:
    """Mosquitto acknowledges such a message and throws it away: neither the server nor the other device hears it."""
    with server(broker) as operator, peer(broker, "f~b", "b") as victim, peer(broker, "f~a", "a") as device:
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
def test_a_device_hears_nothing_of_others(broker: Mosquitto, topic: str) -> None:
    with peer(broker, "f~a", "a") as device:
        assert device.connected.wait(PATIENCE_S), device.refusals
        assert not device.subscribe(topic)


def test_a_wrong_password_an_unknown_name_and_no_name_are_refused(broker: Mosquitto) -> None:
    for name, password in (("f~a", "b"), ("f~a", ""), ("f~z", "a")):
        with peer(broker, name, password) as stranger:
            assert stranger.gone.wait(PATIENCE_S)
            assert not stranger.connected.is_set()
    nameless = Peer(broker, BrokerAccess(None, None, broker.ca), "f~a")
    assert nameless.gone.wait(PATIENCE_S)
    assert not nameless.connected.is_set()
    nameless.close()


def test_a_device_cannot_come_in_under_another_id(broker: Mosquitto) -> None:
    with peer(broker, "f~a", "a", client_id="f~b") as thief:
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


def test_a_revoked_device_is_cut_off_at_once_and_stays_out(broker: Mosquitto) -> None:
    accounts = broker.accounts()
    accounts.grant("f", "c", "f~c", "first")
    with peer(broker, "f~c", "first") as device:
        assert device.connected.wait(PATIENCE_S), device.refusals
        accounts.revoke("f~c")
        assert device.gone.wait(PATIENCE_S)
    with peer(broker, "f~c", "first") as device:
        assert device.gone.wait(PATIENCE_S)
        assert not device.connected.is_set()
    accounts.revoke("f~c")  # revoking twice is no error
    accounts.grant("f", "c", "f~c", "second")
    with peer(broker, "f~c", "second") as device:
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
        rotation.rotate(broker.server_toml.parent)
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


def test_the_server_has_no_more_rights_than_it_needs(broker: Mosquitto) -> None:
    with server(broker) as operator:
        for topic in ("#", "gaitway/v1/#", topics.announce("f"), "$CONTROL/dynamic-security/v1/response"):
            assert not operator.subscribe(topic)
    login = broker.settings().mqtt_login
    with pytest.raises(BrokerError, match="may not hear"):
        DynamicSecurity("127.0.0.1", broker.port, login).revoke("f~a")
