"""What devices say and hear over HTTP, by real sockets: whose word it is, what is retained, and who is cut off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import func, select

from aggregator_api.storage.db.models import AuditRow, DeviceRow, UpdateRow
from aggregator_api.transport.device_http import streams
from aggregator_api.transport.mqtt.inbox import Message
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, Announcement, DeviceStatus, Invitation, read, write
from federation.protocol.over_http import END, ServerEvent, stream_path
from federation.protocol.signing import Kind, to_sign, unwrap
from tests.aggregator_api.bench import wait_for
from tests.aggregator_api.device_http.enrolled_devices import GRACE_S, PATIENCE_S, Device, Server
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, generated, status

pytestmark = [pytest.mark.service, pytest.mark.ci]

READY = write(DeviceStatus(state="ready", examples=1))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path)
    yield found
    found.stop()


def announced(event: ServerEvent) -> Announcement:
    assert event.name == Kind.ANNOUNCEMENT
    return read(Announcement, unwrap(event.data).body)


def update_of(server: Server, device: Device, said: Announcement) -> Parcel:
    assert said.model is not None
    return generated(said, server.runtime.blobs.read(said.model.sha256), device.name)


def state_of(server: Server, name: str) -> str:
    with server.runtime.database.read() as session:
        return session.scalars(select(DeviceRow.state).where(DeviceRow.name == name)).one()


def test_a_round_over_http_from_the_announcement_to_the_next(server: Server) -> None:
    """Retained messages come first, signed as a broker's are; what is safe is acknowledged again, and counted once."""
    devices = [server.enrolled("a"), server.enrolled("b")]
    with devices[0].stream() as heard, devices[1].stream() as other:
        assert announced(next(heard)).state == announced(next(other)).state == "waiting"
        for device in devices:
            device.say("ready")
        event = next(heard)
        while event.name != Kind.INVITATION:
            event = next(heard)
        envelope, key = unwrap(event.data), Ed25519PublicKey.from_public_bytes(server.runtime.identity.public_key)
        assert envelope.signature is not None
        key.verify(envelope.signature, to_sign(Kind.INVITATION, FEDERATION, "a", envelope.body))
        assert read(Invitation, envelope.body).round == 1
        while (now := announced(next(heard))).state != "collecting":
            pass
        for device in devices:
            sent = update_of(server, device, now)
            begun = device.begin(sent)
            assert (begun.status, begun.next_chunk) == ("send", 0)
            numbered = list(enumerate(sent.chunks()))
            for n, chunk in [*reversed(numbered), *numbered]:  # in any order, and twice
                assert device.post(sent.topic("chunk", n), chunk).status_code == 204
            for answer in (device.step(sent, "end"), device.step(sent, "end"), device.begin(sent)):
                assert (answer.status, answer.nonce) == ("accepted", sent.manifest.nonce)
        assert any(event.name == Kind.ANNOUNCEMENT and announced(event).round == 2 for event in heard)
    with server.runtime.database.read() as session:
        assert session.scalar(select(func.count()).select_from(UpdateRow)) == 2
        spoken = select(func.count()).select_from(AuditRow).where(AuditRow.action.like("%begin%"))
        assert session.scalar(spoken) == 0  # the audit is of operators


def test_a_stream_goes_on_after_the_event_that_a_device_has_seen(server: Server) -> None:
    device = server.enrolled("a")
    with device.stream() as heard:
        seen = next(heard)
    server.runtime.coordinator.announce(FEDERATION)
    with device.stream(seen.id) as heard:
        assert next(heard).id > seen.id
    with device.stream(next_id := "00000000-1") as heard:  # of another run of the server: everything retained again
        assert next(heard).id != next_id


def test_a_device_speaks_and_listens_under_its_own_name_alone(server: Server) -> None:
    device, other = server.enrolled("a"), server.enrolled("b")
    stream = server.url + stream_path(FEDERATION, "b")
    for key, words in ((device.key, "only 'b' may send this"), (server.operator_key(), "this needs device")):
        for answer in (
            device.post(topics.status(FEDERATION, "b"), b"{}", key=key),
            device.post(topics.update(FEDERATION, "b", "u", "begin"), b"{}", key=key),
            httpx.get(stream, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S),
        ):
            assert (answer.status_code, words in answer.json()["detail"]) == (403, True), answer.text
    assert httpx.get(stream, timeout=PATIENCE_S).status_code == 401
    elsewhere = topics.status("nowhere", "a")
    assert device.post(elsewhere, b"{}").status_code == 403
    unsigned = other.post(topics.update(FEDERATION, "b", "u", "begin"), b'{"nonce": "somebody"}')
    begun = read(Acknowledgement, unwrap(unsigned.content).body)
    assert (begun.status, "must sign with its key" in begun.reason) == ("retry", True)


def test_bodies_are_bounded_and_a_busy_server_says_when_to_come_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = server.enrolled("a")
    for topic, size in (
        (topics.status(FEDERATION, "a"), 300_000),
        (topics.update(FEDERATION, "a", "u", "end"), 1),
        (topics.update(FEDERATION, "a", "u", "chunk", 0), (1 << 20) + 1),
    ):
        assert device.post(topic, bytes(size)).status_code == 413, topic
    ready = topics.status(FEDERATION, "a")
    with monkeypatch.context() as patch:
        patch.setattr(server.runtime.inbox, "offer", lambda work: False)
        busy = device.post(ready, READY)
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    with monkeypatch.context() as patch:
        patch.setattr(server.runtime.leadership, "leads", lambda name: False)
        elsewhere = device.post(ready, READY)
    assert (elsewhere.status_code, "another process leads" in elsewhere.text) == (503, True)
    assert "retry-after" in elsewhere.headers


def test_who_is_revoked_is_cut_off_and_who_is_gone_is_offline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RECONNECT_GRACE_S", 0.3)
    device, other = server.enrolled("a"), server.enrolled("b")
    with other.stream() as heard:
        next(heard)
        other.say("collecting")
        assert state_of(server, "b") == "collecting"
    wait_for(lambda: state_of(server, "b") == "offline")
    with device.stream() as heard:
        next(heard)
        server.runtime.devices.revoke(FEDERATION, "a")
        assert next(heard)[1:] == (END, b"refused")
    ready = topics.status(FEDERATION, "a")
    wait_for(lambda: device.post(ready, status("ready")).status_code == 401)  # within a second
    assert state_of(server, "a") == "offline"


def test_who_moves_to_the_broker_or_from_it_is_not_offline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RECONNECT_GRACE_S", 0.3)
    device, acknowledged = server.enrolled("a"), list[str]()

    def at_broker(state: str) -> None:
        topic = topics.status(FEDERATION, device.name)
        server.runtime.receive(Message(topic, status(state), lambda: acknowledged.append(state)))
        wait_for(lambda: state in acknowledged)

    at_broker("idle")
    with device.stream() as heard:
        next(heard)
        device.say("ready")
        at_broker("offline")  # the will of the connection before, late
        assert state_of(server, "a") == "ready"
        at_broker("collecting")  # before the server has noticed the stream's end
    wait_for(lambda: not server.runtime.streams.is_used)
    assert state_of(server, "a") == "collecting"
    at_broker("training")
    acknowledged.clear()
    at_broker("offline")
    assert state_of(server, "a") == "offline"


def test_a_second_stream_takes_the_place_of_the_first_and_streams_are_bounded(tmp_path: Path) -> None:
    server = Server(tmp_path, max_connections=16)  # of which three quarters may be streams
    devices = [server.enrolled(f"d{n}") for n in range(13)]
    try:
        with devices[0].stream() as first:
            next(first)
            with devices[0].stream() as second:
                assert next(first)[1:] == (END, b"replaced")
                next(second)
        opened = ExitStack()
        heard = [opened.enter_context(device.stream()) for device in devices[:12]]
        assert {announced(next(each)).state for each in heard} == {"waiting"}
        headers = {"Authorization": f"Bearer {devices[12].key}"}
        answer = httpx.get(server.url + stream_path(FEDERATION, "d12"), headers=headers, timeout=PATIENCE_S)
        assert (answer.status_code, "hold a stream already" in answer.text) == (503, True)
        began = time.monotonic()
    finally:
        server.stop()
    assert time.monotonic() - began < GRACE_S / 2  # no stream holds up its end
    opened.close()


def test_a_token_opens_what_the_devices_key_opens_and_a_request_makes_one_token(server: Server) -> None:
    device, other, now_ms = server.enrolled("a"), server.enrolled("b"), int(time.time() * 1000)
    answer = device.ask_token(now_ms)
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    token: str = answer.json()["token"]
    with device.stream(key=token) as heard:
        model = announced(next(heard)).model
    assert model is not None
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(server.url + model.url, headers=headers, timeout=PATIENCE_S).status_code == 200
    assert device.post(topics.status(FEDERATION, "b"), b"{}", key=token).status_code == 403

    refused: list[tuple[httpx.Response, int, str]] = [
        (device.ask_token(now_ms), 409, "was already sent"),
        (device.ask_token(now_ms - 301_000), 422, "behind this server's clock"),
        (
            device.ask_token(now_ms + 1, signature=other.signed(Kind.TOKEN, str(now_ms + 1))["signature"]),
            401,
            "not that",
        ),
        (
            device.ask_token(now_ms + 2, signature=device.signed(Kind.CLAIM, str(now_ms + 2))["signature"]),
            401,
            "not that",
        ),
    ]
    for found, code, words in refused:
        assert (found.status_code, words in found.json()["detail"]) == (code, True), found.text
    statuses = [device.ask_token(now_ms + 10 + n).status_code for n in range(40)]
    assert statuses.count(201) == 31
    assert statuses[-1] == 429
    assert device.post(topics.status(FEDERATION, "a"), READY).status_code == 204  # the key of its enrolment goes on
    server.runtime.devices.revoke(FEDERATION, "a")
    wait_for(lambda: device.post(topics.status(FEDERATION, "a"), READY, key=token).status_code == 401)
    assert device.ask_token(now_ms + 100).status_code == 403
