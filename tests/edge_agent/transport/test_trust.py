"""What a device believes: its server's own words, as they were said, to it, in time, and nothing older."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.errors import TrustError
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import reset_agent
from edge_agent.transport.trust import Trust, newest_of
from federation.errors import WireError
from federation.protocol.messages import Acknowledgement, Announcement, write
from federation.protocol.signing import MARK, Kind, fingerprint, pinned_key, to_sign, unwrap, wrap
from tests.edge_agent.factories import INSTANCE, announcement, pointer

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
NOW = 1_800_000_000
OTHER = "1" * 32


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    found = StateStore(tmp_path)
    found.put(identity=f"{INSTANCE}/har_cnn")
    yield found
    found.close()


def trust(key: bytes | None = PUBLIC, now: float = NOW) -> Trust:
    return Trust("demo", "d1", key, lambda: now)


def said(epoch: int = 1, serial: int = 5, expires: int | None = NOW + 60, **fields: Any) -> Announcement:
    return announcement(epoch=epoch, serial=serial, expires=expires, **fields)


def signed(message: Any, kind: Kind = Kind.ANNOUNCEMENT, device: str = "", federation: str = "demo") -> bytes:
    return wrap(kind, federation, device, write(message), KEY.sign)


def test_a_signed_message_is_a_line_and_the_bytes_that_were_signed() -> None:
    body = b'{"a": "\n"}'
    payload = wrap(Kind.UPDATE, "demo", "d1", body, KEY.sign)
    head, _, rest = payload.partition(b"\n")
    assert (head[:17], len(head), rest) == (b"gaitway-signed/1 ", 105, body)
    found, signature = unwrap(payload)
    assert (found, unwrap(body)) == (body, (body, None))
    assert signature is not None
    KEY.public_key().verify(signature, b'gaitway-signed/1\nupdate\ndemo\nd1\n{"a": "\n"}')
    assert to_sign(Kind.UPDATE, "demo", "d1", body) == b'gaitway-signed/1\nupdate\ndemo\nd1\n{"a": "\n"}'


@pytest.mark.parametrize(
    "payload",
    [b"gaitway-signed/1", b"gaitway-signed/1 AAAA\n{}", b"gaitway-signed/2" + b"A" * 90 + b"\n{}", b"gaitway-signed/1 "
     + b"A" * 88 + b"{}", b"gaitway-signed/1 " + b"!" * 88 + b"\n{}", b"gaitway-signed/1\n{}"],
)  # fmt: skip
def test_half_a_signature_is_an_error_and_no_unsigned_message(payload: bytes) -> None:
    if payload.startswith(b"gaitway-signed/2"):
        assert unwrap(payload).signature is None
        return
    with pytest.raises(WireError, match="a signed message begins with"):
        unwrap(payload)


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": said().plan.model_copy(update={"labels": tuple(reversed(said().plan.labels))})},
        {"deadline": 9e9},
        {"epoch": 2},
        {"state": "stopped"},
        {"model": pointer("b")},
        {"chunk_bytes": 2048},
        {"expires": NOW + 10_000},
        {"instance": OTHER},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_no_part_of_an_announcement_can_be_changed_on_its_way(changes: dict[str, Any]) -> None:
    whole, body = signed(said()), write(said())
    assert trust().open(Kind.ANNOUNCEMENT, whole) == body
    forged = whole.replace(body, write(said().model_copy(update=changes)))
    assert forged != whole
    with pytest.raises(TrustError, match="not signed by this device's server for federation 'demo'"):
        trust().open(Kind.ANNOUNCEMENT, forged)


def test_a_signature_is_for_one_kind_one_federation_and_one_device() -> None:
    ack = Acknowledgement(update_id="u1", status="accepted")
    assert trust().open(Kind.ACKNOWLEDGEMENT, signed(ack, Kind.ACKNOWLEDGEMENT, "d1")) == write(ack)
    for forged in (
        signed(ack, Kind.ACKNOWLEDGEMENT, "d2"),
        signed(ack, Kind.INVITATION, "d1"),
        signed(ack, Kind.ACKNOWLEDGEMENT, "d1", "other"),
    ):
        with pytest.raises(TrustError, match="the acknowledgement is not signed by this device's server"):
            trust().open(Kind.ACKNOWLEDGEMENT, forged)
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    with pytest.raises(TrustError, match="enrol this device anew"):
        trust(other).open(Kind.ACKNOWLEDGEMENT, signed(ack, Kind.ACKNOWLEDGEMENT, "d1"))


def test_unsigned_messages_are_for_devices_that_have_not_enrolled() -> None:
    body = write(said())
    assert trust(None).open(Kind.ANNOUNCEMENT, body) == body
    assert trust(None).open(Kind.ANNOUNCEMENT, signed(said())) == body
    with pytest.raises(TrustError, match="the announcement is not signed, but this device has enrolled"):
        trust().open(Kind.ANNOUNCEMENT, body)


def test_an_announcement_holds_until_it_expires(store: StateStore) -> None:
    trust(now=NOW + 60).check(said(), store)
    with pytest.raises(TrustError, match=r"expired 1 s ago by this device's clock; check the clock"):
        trust(now=NOW + 61).check(said(), store)
    with pytest.raises(TrustError, match="has no expiry"):
        trust().check(said(expires=None), store)
    trust(None).check(said(expires=None), store)


def test_a_repeated_old_announcement_is_refused_also_after_a_restart_and_a_new_founding(store: StateStore) -> None:
    trust().check(said(serial=5), store)
    trust().check(said(serial=5), store)
    with pytest.raises(TrustError, match="is number 4, and this device has seen 5: somebody repeats an old one"):
        trust().check(said(serial=4), store)
    reset_agent(store, f"{OTHER}/har_cnn", 1)
    with pytest.raises(TrustError, match="this device has seen 5"):
        trust().check(said(serial=4, instance=OTHER), store)
    trust().check(said(serial=6), store)
    assert newest_of(store) == (1, 6)


def test_a_higher_epoch_begins_anew_and_a_lower_one_is_refused(store: StateStore) -> None:
    trust().check(said(epoch=1, serial=500), store)
    trust().check(said(epoch=1_800_000_000, serial=7), store)
    assert newest_of(store) == (1_800_000_000, 7)
    for instance in (INSTANCE, OTHER):
        with pytest.raises(TrustError, match=r"epoch 1, and this device has seen 1800000000.*begins an epoch above"):
            trust().check(said(epoch=1, serial=900, instance=instance), store)


def test_a_device_without_a_key_orders_epochs_of_one_founding_alone(store: StateStore) -> None:
    trust(None).check(said(epoch=9, serial=9), store)
    trust(None).check(said(epoch=9, serial=3), store)  # it believes its broker
    with pytest.raises(TrustError, match="goes back to no older one"):
        trust(None).check(said(epoch=8), store)
    trust(None).check(said(epoch=1, serial=1, instance=OTHER), store)  # another server, which counts from 1


def test_a_token_names_the_servers_key() -> None:
    token = f"gwe_a_b-c_{fingerprint(PUBLIC)}"
    assert pinned_key(token) == fingerprint(PUBLIC) == "56475aa75463474c0285df5dbf2bcab7"
    for wrong in ("", "T", "gwt_a_" + "0" * 32, "gwe_" + "0" * 32 + "x", "gwe_a_" + "G" * 32, "gwe_a_" + "0" * 31):
        assert pinned_key(wrong) == ""


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 64))
def test_whatever_bytes_come_a_device_with_a_key_believes_what_was_signed_or_says_why_not(
    noise: bytes, at: int, cut: int
) -> None:
    body = b'{"epoch": 1}\n{}'
    whole = wrap(Kind.ANNOUNCEMENT, "demo", "", body, KEY.sign)
    for payload in (noise, MARK + noise, whole[:at] + noise + whole[at + cut :]):
        try:
            believed = trust().open(Kind.ANNOUNCEMENT, payload)
        except (TrustError, WireError):
            continue
        assert believed == body
