"""What the server says is signed as a whole, holds for a time, and rises; and it takes only what devices sign."""

from __future__ import annotations

import base64
from functools import partial
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import select

from aggregator_api.auth.signing import Signer
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import EventRow, UpdateRow
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, Announcement, Invitation, read, write
from federation.protocol.signing import Kind, to_sign, unwrap, wrap
from tests.aggregator_api.bench import Bench, coordinator_beside, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, tiny_plan

DAY_S = 86_400
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def verified(bench: Bench, kind: Kind, device: str, payload: bytes) -> bytes:
    """Return a message's body as a device does that has the server's key."""
    body, signature = unwrap(payload)
    assert signature is not None
    key = Ed25519PublicKey.from_public_bytes(bench.runtime.identity.public_key)
    key.verify(signature, to_sign(kind, FEDERATION, device, body))
    return body


def said(bench: Bench, topic: str) -> list[bytes]:
    """Return what was published on a topic."""
    return [payload for where, payload, _ in bench.wires.sent if where == topic]


def test_every_message_is_signed_for_its_kind_and_device_and_serials_never_fall(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=2))
    sent = set()
    for number in (1, 2):
        for device in ("a", "b"):
            bench.say(device, "ready")
        wait_for(partial(bench.collects, number))
        for device in ("a", "b"):
            update = bench.update_of(device)
            assert bench.upload(update).status == "accepted"
            sent |= {update.manifest.nonce} if device == "a" else set()
    wait_for(lambda: bench.now().state == "finished")
    announced = said(bench, topics.announce(FEDERATION))
    heard = [read(Announcement, verified(bench, Kind.ANNOUNCEMENT, "", payload)) for payload in announced]
    order = [(one.epoch, one.serial) for one in heard]
    assert order == sorted(order)
    assert len(set(order)) > 4
    assert all(one.expires and one.expires > one.created for one in heard)
    invited = said(bench, topics.invitation(FEDERATION, "a"))
    assert [read(Invitation, verified(bench, Kind.INVITATION, "a", one)).round for one in invited] == [1, 2]
    answers = said(bench, topics.ack(FEDERATION, "a"))
    nonces = {read(Acknowledgement, verified(bench, Kind.ACKNOWLEDGEMENT, "a", one)).nonce for one in answers}
    assert nonces == sent
    for kind, device in ((Kind.ACKNOWLEDGEMENT, "b"), (Kind.INVITATION, "a"), (Kind.ANNOUNCEMENT, "")):
        with pytest.raises(InvalidSignature):
            verified(bench, kind, device, answers[0])
    bench.runtime.stop()


class Clock:
    """Stands where it is put."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def test_an_announcement_holds_for_its_lifetime_and_is_said_again_after_half_of_it(tmp_path: Path) -> None:
    bench, clock = Bench(tmp_path, tiny_plan()), Clock()
    coordinator = coordinator_beside(bench.runtime, Signer(bench.runtime.identity.sign, 30 * DAY_S, clock))
    before = len(bench.wires.sent)
    coordinator.renew_announcements()
    assert len(bench.wires.sent) == before
    clock.now += 15 * DAY_S
    coordinator.renew_announcements()
    coordinator.renew_announcements()
    assert len(bench.wires.sent) == before + 1
    assert bench.wires.announcements()[-1].expires == clock.now + 30 * DAY_S + 1
    bench.runtime.stop()


def enrolled(bench: Bench, device: str) -> None:
    """Let a device be one that has enrolled with KEY."""
    with bench.runtime.database.write() as session:
        federation = repositories.find_federation(session, FEDERATION)
        assert federation is not None
        row = repositories.find_device(session, federation, device)
        assert row is not None
        row.enrolment, row.public_key = "approved", base64.b64encode(KEY.public_key().public_bytes_raw()).decode()


def begin(bench: Bench, parcel: Parcel, payload: bytes) -> Acknowledgement:
    bench.send(parcel.topic("begin"), payload)
    return bench.last(parcel.manifest.client)


def test_a_manifest_that_an_enrolled_device_has_not_signed_is_not_taken_and_harms_nothing(collecting: Bench) -> None:
    enrolled(collecting, "a")
    parcel = collecting.update_of("a")
    body = write(parcel.manifest)
    signed = wrap(Kind.UPDATE, FEDERATION, "a", body, KEY.sign)
    assert begin(collecting, parcel, signed).status == "send"  # the device's own, under way
    greedy = write(parcel.manifest.model_copy(update={"examples": 20}))
    forgeries = {
        "unsigned": body,
        "another key": wrap(Kind.UPDATE, FEDERATION, "a", body, Ed25519PrivateKey.generate().sign),
        "another manifest": signed.replace(body, greedy),
        "another device's": wrap(Kind.UPDATE, FEDERATION, "b", body, KEY.sign),
        "another kind": wrap(Kind.ENROL, FEDERATION, "a", body, KEY.sign),
        "no manifest": b"{}",
    }
    for name, payload in forgeries.items():
        answer = begin(collecting, parcel, payload)
        # not refused: this id is the device's own, which would give it up
        assert (answer.status, "not signed" in answer.reason) == ("retry", True), name
    with collecting.runtime.database.read() as session:
        assert not session.scalars(select(UpdateRow)).all()
        kinds = session.scalars(select(EventRow.kind).where(EventRow.kind == "update.quarantined")).all()
    assert len(kinds) == 1  # counted, but whoever forges does not fill the disk
    for n, chunk in enumerate(parcel.chunks()):
        collecting.send(parcel.topic("chunk", n), chunk)
    collecting.send(parcel.topic("end"))
    assert collecting.last("a").status == "accepted"
    assert collecting.upload(collecting.update_of("b")).status == "accepted"  # it has no key, and signs nothing


def test_an_enrolled_devices_answer_to_what_cannot_be_read_has_its_nonce(collecting: Bench) -> None:
    enrolled(collecting, "a")
    parcel = collecting.update_of("a")
    unread = b'{"nonce": "0123456789", "from": "another version"}'
    answer = begin(collecting, parcel, wrap(Kind.UPDATE, FEDERATION, "a", unread, KEY.sign))
    assert (answer.status, answer.nonce) == ("refused", "0123456789")


def test_an_update_of_an_earlier_federation_of_the_name_is_refused(collecting: Bench) -> None:
    parcel = collecting.update_of("a", instance="1" * 32)
    assert "of an earlier federation" in collecting.refused(parcel)
