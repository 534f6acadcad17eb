"""Enrolment: a token and a key bring a device in, an operator approves it, a signature claims its credentials."""

from __future__ import annotations

import base64
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import FastAPI
from httpx import Response
from sqlalchemy import text

from aggregator_api.auth.signing import Identity, verify
from aggregator_api.core.errors import BrokerError, ConfigError
from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.runtime import Runtime
from federation.privacy.promises import promises_of
from federation.protocol import topics
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Wires, status, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, TestClient, problem

HERE = f"/v1/federations/{FEDERATION}"
TOKENS = f"{HERE}/enrolment-tokens"


class Broker:
    """A broker's accounts in memory; it can be away."""

    def __init__(self) -> None:
        self.passwords: dict[str, str] = {}
        self.away = False

    def grant(self, federation: str, device: str, username: str, password: str) -> None:
        self._answer()
        assert username == f"{federation}~{device}"
        self.passwords[username] = password

    def revoke(self, username: str) -> None:
        self._answer()
        self.passwords.pop(username, None)

    def _answer(self) -> None:
        if self.away:
            raise BrokerError("it does not answer")


class Phone:
    """The device's side of the protocol, written from docs/rest.md."""

    def __init__(self, client: TestClient, name: str) -> None:
        self._client = client
        self.name = name
        self.key = Ed25519PrivateKey.generate()
        self.clock = int(time.time()) - 100

    def enrol(self, shown: str, **changes: Any) -> Response:
        body = {
            "token": shown,
            "federation": FEDERATION,
            "device": self.name,
            "public_key": encoded(self.key.public_key().public_bytes_raw()),
            "signature": self.signed(f"gaitway-signed/1\nenrol\n{FEDERATION}\n{self.name}\n{shown}"),
            **changes,
        }
        return self._client.post("/v1/enrol", json=body)

    def claim(self, issued_at: int | None = None, **changes: Any) -> Response:
        self.clock += 1
        when = self.clock if issued_at is None else issued_at
        signature = self.signed(f"gaitway-signed/1\nclaim\n{FEDERATION}\n{self.name}\n{when}")
        body = {"federation": FEDERATION, "device": self.name, "issued_at": when, "signature": signature, **changes}
        return self._client.post("/v1/enrol/claim", json=body)

    def signed(self, message: str) -> str:
        return encoded(self.key.sign(message.encode()))


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def app(backend: None, tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """A server whose devices must be approved."""
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("enrol"), admission="enrolled"), Wires)


@pytest.fixture(scope="module")
def operator(app: FastAPI) -> Iterator[TestClient]:
    with OperatorClient(app) as client:
        for name in (FEDERATION, "other"):
            body = {"name": name, "plan": tiny_plan().model_dump(mode="json")}
            assert client.post("/v1/federations", json=body).status_code == 201
        yield client


@pytest.fixture
def broker(app: FastAPI, operator: TestClient, monkeypatch: pytest.MonkeyPatch) -> Broker:
    accounts = Broker()
    for name in ("grant", "revoke"):
        monkeypatch.setattr(app.state.runtime.accounts, name, getattr(accounts, name))
    return accounts


def token(operator: TestClient, **options: Any) -> str:
    answer = operator.post(TOKENS, json=options)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def enrolled(operator: TestClient, name: str) -> Phone:
    phone = Phone(operator, name)
    assert phone.enrol(token(operator)).status_code == 201
    return phone


def test_from_the_token_to_the_credentials(app: FastAPI, operator: TestClient, broker: Broker) -> None:
    phone = Phone(operator, "first")
    answer = phone.enrol(token(operator))
    promises = promises_of(tiny_plan()).model_dump()
    pending = {"state": "pending", "device": "first", "promises": promises, "credentials": None}
    assert (answer.status_code, answer.json()) == (201, pending)
    waiting = phone.claim()
    assert (waiting.status_code, waiting.json()["state"]) == (202, "pending")
    assert operator.post(f"{HERE}/devices/first/approve").json()["enrolment"] == "approved"
    claimed = phone.claim()
    assert claimed.status_code == 200
    assert claimed.headers["cache-control"] == "no-store"
    given = claimed.json()["credentials"]
    assert broker.passwords == {"walk~first": given["broker"]["password"]}
    assert given["broker"]["username"] == "walk~first"
    assert given["broker"]["address"] == {"host": "127.0.0.1", "port": 1883, "tls": False}
    message = b"a manifest"
    assert verify(base64.b64decode(given["server_key"]), app.state.runtime.identity.sign(message), message)
    model = operator.get(HERE).json()["model"]["url"]
    by_key = TestClient(app, key=given["api_key"])
    assert by_key.get(model).status_code == 200
    problem(by_key.get(HERE), 403)
    # the next claim voids what this one gave
    again = phone.claim().json()["credentials"]
    assert again["api_key"] != given["api_key"]
    assert broker.passwords == {"walk~first": again["broker"]["password"]}
    problem(by_key.get(model), 401)


def test_auto_approval_gives_credentials_at_once_and_only_once(operator: TestClient, broker: Broker) -> None:
    phone, good = Phone(operator, "auto"), token(operator, auto_approve=True)
    first = phone.enrol(good).json()
    assert first["state"] == "approved"
    assert broker.passwords["walk~auto"] == first["credentials"]["broker"]["password"]
    # the same message, sent again or replayed by somebody who saw it, gives nothing
    repeated = phone.enrol(good)
    assert (repeated.status_code, repeated.json()["credentials"]) == (201, None)
    assert phone.claim().status_code == 200


def test_tokens_are_for_one_device_once_and_in_time(app: FastAPI, operator: TestClient, broker: Broker) -> None:
    used = token(operator)
    assert Phone(operator, "u1").enrol(used).status_code == 201
    assert "has been used" in problem(Phone(operator, "u2").enrol(used), 401)["detail"]
    assert "has been used" in problem(Phone(operator, "u1").enrol(used), 401)["detail"]  # another key
    assert "is unknown" in problem(Phone(operator, "u3").enrol("gwe_nonsense"), 401)["detail"]
    other = operator.post("/v1/federations/other/enrolment-tokens", json={}).json()["token"]
    assert "is unknown" in problem(Phone(operator, "u3").enrol(other), 401)["detail"]
    bound = token(operator, device="u4")
    assert "for the device 'u4'" in problem(Phone(operator, "u3").enrol(bound), 401)["detail"]
    made = operator.post(TOKENS, json={}).json()
    assert operator.post(f"{TOKENS}/{made['id']}/revoke").json()["revoked_at"] is not None
    assert "revoked" in problem(Phone(operator, "u3").enrol(made["token"]), 401)["detail"]
    late = operator.post(TOKENS, json={"lifetime_s": 60}).json()
    with app.state.runtime.database.write() as session:
        session.execute(text("UPDATE enrolment_tokens SET expires_at = 1 WHERE id = :id"), {"id": late["id"]})
    assert "expired" in problem(Phone(operator, "u3").enrol(late["token"]), 401)["detail"]
    problem(operator.post(f"{TOKENS}/99999/revoke"), 404)
    problem(operator.post(f"/v1/federations/other/enrolment-tokens/{made['id']}/revoke"), 404)


def test_tokens_are_listed_without_their_secrets(app: FastAPI, operator: TestClient, broker: Broker) -> None:
    secret = token(operator, device="listed")
    Phone(operator, "listed").enrol(secret)
    listed = operator.get(TOKENS, params={"limit": 500}).json()["items"]
    assert (listed[-1]["device"], listed[-1]["used_by"]) == ("listed", "listed")
    with app.state.runtime.database.read() as session:
        rows = str(session.execute(text("SELECT * FROM enrolment_tokens")).all())
    assert secret.removeprefix("gwe_") not in rows + str(listed)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"signature": encoded(bytes(64))}, 401),
        ({"federation": "other"}, 401),
        ({"device": "somebody"}, 401),
        ({"public_key": encoded(bytes(32))}, 401),
        ({"public_key": encoded(bytes(31))}, 422),
        ({"public_key": "x" * 44}, 422),
        ({"signature": "x"}, 422),
        ({"token": ""}, 422),
        ({"token": "x" * 129}, 422),
        ({"device": "../up"}, 422),
        ({"surprise": 1}, 422),
    ],
)
def test_an_enrolment_that_is_not_signed_as_it_says_is_refused(
    operator: TestClient, broker: Broker, changes: dict[str, Any], code: int
) -> None:
    good = token(operator, device="bad")  # lets the name in again, whoever had it before
    phone = Phone(operator, "bad")
    problem(phone.enrol(good, **changes), code)
    assert phone.enrol(good).status_code == 201  # the token was not used up


def test_claims_are_signed_fresh_and_used_once(operator: TestClient, broker: Broker) -> None:
    phone = enrolled(operator, "claims")
    operator.post(f"{HERE}/devices/claims/approve")
    now = int(time.time())
    assert "behind this server's clock" in problem(phone.claim(now - 400), 422)["detail"]
    assert "ahead of this server's clock" in problem(phone.claim(now + 400), 422)["detail"]
    assert phone.claim(now - 10).status_code == 200
    for replayed in (now - 10, now - 11):
        assert "not greater" in problem(phone.claim(replayed), 409)["detail"]
    assert phone.claim(now - 9).status_code == 200
    problem(phone.claim(now - 8, signature=phone.signed("else")), 401)
    problem(phone.claim(now - 8, device="nobody"), 401)
    problem(phone.claim(now - 8, federation="nowhere"), 401)
    problem(phone.claim(now - 8, signature="x"), 422)
    problem(phone.claim(-1), 422)


@pytest.mark.parametrize("days", [1, 3653])
def test_a_claim_under_a_wrong_clock_locks_no_device_out(
    operator: TestClient, broker: Broker, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    phone, real = enrolled(operator, f"leapt{days}"), time.time
    operator.post(f"{HERE}/devices/leapt{days}/approve")
    with monkeypatch.context() as patch:  # the server's clock and the device's
        patch.setattr(time, "time", lambda: real() + days * 86_400)
        assert phone.claim(int(time.time())).status_code == 200
    now = int(time.time())
    assert phone.claim(now).status_code == 200
    problem(phone.claim(now), 409)


def test_a_pending_claim_cannot_be_replayed_after_the_approval(operator: TestClient, broker: Broker) -> None:
    phone = enrolled(operator, "pending")
    assert phone.claim(phone.clock).status_code == 202
    operator.post(f"{HERE}/devices/pending/approve")
    problem(phone.claim(phone.clock - 1), 409)


def test_a_name_belongs_to_the_key_that_enrolled_it(operator: TestClient, broker: Broker) -> None:
    phone = enrolled(operator, "taken")
    operator.post(f"{HERE}/devices/taken/approve")
    thief = Phone(operator, "taken")
    assert "another key" in problem(thief.enrol(token(operator, auto_approve=True)), 409)["detail"]
    assert phone.claim().status_code == 200
    problem(thief.claim(phone.clock + 50), 401)
    # the same key may come again, and stays approved; a token made for the name lets another key in
    assert phone.enrol(token(operator)).json()["state"] == "approved"
    assert thief.enrol(token(operator, device="taken")).json()["state"] == "pending"
    problem(phone.claim(phone.clock + 60), 401)


def test_a_revoked_device_loses_everything(app: FastAPI, operator: TestClient, broker: Broker) -> None:
    phone = Phone(operator, "gone")
    key = phone.enrol(token(operator, auto_approve=True)).json()["credentials"]["api_key"]
    spare = token(operator, device="gone")
    model = operator.get(HERE).json()["model"]["url"]
    by_key = TestClient(app, key=key)
    assert by_key.get(model).status_code == 200
    assert operator.post(f"{HERE}/devices/gone/revoke").json()["enrolment"] == "revoked"
    assert broker.passwords == {}
    problem(by_key.get(model), 401)
    assert "was revoked" in problem(phone.claim(), 403)["detail"]
    problem(phone.enrol(spare), 401)
    problem(phone.enrol(token(operator)), 403)
    problem(operator.post(f"{HERE}/devices/gone/approve"), 409)
    assert operator.post(f"{HERE}/devices/gone/revoke").status_code == 200
    app.state.runtime.ingest.handle(topics.status(FEDERATION, "gone"), status("ready"))
    assert operator.get(f"{HERE}/devices/gone").json()["state"] == "offline"
    # only a token made for it lets it back
    assert phone.enrol(token(operator, device="gone", auto_approve=True)).json()["state"] == "approved"


def test_a_broker_that_is_away_is_said_and_made_good_later(operator: TestClient, broker: Broker) -> None:
    phone = enrolled(operator, "patient")
    operator.post(f"{HERE}/devices/patient/approve")
    broker.away = True
    assert "does not answer" in problem(phone.claim(), 503)["detail"]
    assert "revoke it again" in problem(operator.post(f"{HERE}/devices/patient/revoke"), 503)["detail"]
    assert operator.get(f"{HERE}/devices/patient").json()["enrolment"] == "revoked"
    broker.away = False
    assert operator.post(f"{HERE}/devices/patient/revoke").status_code == 200


def test_unknown_devices_cannot_be_steered(operator: TestClient) -> None:
    for verb in ("approve", "revoke"):
        problem(operator.post(f"{HERE}/devices/none/{verb}"), 404)
        problem(operator.post(f"/v1/federations/none/devices/a/{verb}"), 404)


def test_without_approval_nothing_is_taken(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", tiny_plan())
    for device in ("a", "b"):
        bench.say(device, "ready")
    parcel = bench.update_of("a")
    bench.runtime.stop()
    # the same server, now behind a door: both came in while it was open
    closed = Bench(tmp_path / "data", admission="enrolled")
    assert "not enrolled" in closed.refused(parcel)
    closed.say("a", "ready")
    closed.say("stranger", "ready")
    assert states(closed.runtime) == {"a": "offline", "b": "offline"}
    set_enrolment(closed.runtime, "a", "pending")
    assert "awaits the operator's approval" in closed.refused(parcel)
    set_enrolment(closed.runtime, "a", "approved")
    closed.say("a", "ready")
    assert states(closed.runtime)["a"] == "ready"
    closed.runtime.stop()


def test_revoking_ends_the_wait_for_a_device(collecting: Bench) -> None:

    assert collecting.upload(collecting.update_of("a")).status == "accepted"
    half = collecting.update_of("b")
    collecting.begin(half)
    collecting.runtime.devices.revoke(FEDERATION, "b")
    # a alone is below the quorum of two: the round ends instead of waiting for ever
    assert collecting.now().state == "waiting"
    assert "was revoked" in collecting.refused(half)
    wait_for(lambda: not list((collecting.runtime.settings.data_dir / "spool").glob("*/*/*.part")))


def states(runtime: Runtime) -> dict[str, str]:
    with runtime.database.read() as session:
        return {row.name: row.state for row in session.execute(text("SELECT name, state FROM devices"))}


def set_enrolment(runtime: Runtime, device: str, state: str) -> None:
    with runtime.database.write() as session:
        values = {"state": state, "name": device}
        session.execute(text("UPDATE devices SET enrolment = :state WHERE name = :name"), values)


@pytest.mark.parametrize(
    ("given", "enrolled_only"),
    [
        ({}, False),
        ({"broker_host": "localhost"}, False),
        ({"broker_host": "broker"}, True),
        ({"mqtt_username": "server"}, True),
        ({"mqtt_username": "server", "admission": "open"}, False),
        ({"admission": "enrolled"}, True),
    ],
)
def test_when_devices_need_approval(given: dict[str, Any], enrolled_only: bool) -> None:
    assert Settings(**given).enrolled_only is enrolled_only


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, ("127.0.0.1", 1883, False)),  # for devices on this machine
        ({"broker_host": "mosquitto"}, None),  # what this server calls it says nothing to a device
        ({"broker_host": "mosquitto", "public_broker_url": "mqtts://b.example"}, ("b.example", 8883, True)),
        ({"public_broker_url": "mqtt://10.0.0.1"}, ("10.0.0.1", 1883, False)),
        ({"public_broker_url": "mqtts://[::1]:9883"}, ("::1", 9883, True)),
    ],
)
def test_where_devices_are_told_that_the_broker_is(
    given: dict[str, Any], address: tuple[str, int, bool] | None
) -> None:
    assert Settings(**given).device_broker == address


@pytest.mark.parametrize(
    "url", ["b.example:8883", "http://b", "mqtts://u:p@b", "mqtts://b/x", "mqtts://b:99999", "mqtt://"]
)
def test_what_is_no_address_of_a_broker_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="public_broker_url"):
        Settings(public_broker_url=url)


def test_the_servers_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "identity.pem"
    first = Identity(path)
    signature = first.sign(b"x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Identity(path)
    assert again.public_key == first.public_key
    assert verify(again.public_key, signature, b"x")
    assert not verify(again.public_key, signature, b"y")
    assert not verify(again.public_key, signature[:-1], b"x")
    assert list(path.parent.iterdir()) == [path]
    path.write_text("nonsense")
    with pytest.raises(ConfigError, match="restore it from a backup"):
        Identity(path).sign(b"x")
