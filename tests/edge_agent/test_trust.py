"""What a device believes about a model: the right server's seal, for its federation, in time, and nothing older."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.errands import Errands
from edge_agent.errors import TrustError
from edge_agent.events import BlobFailed
from edge_agent.memory import start_over
from edge_agent.store import Store
from edge_agent.trust import Trust
from federation.errors import WireError
from federation.protocol.messages import BlobPointer, Release, ReleaseOrder, read, write
from federation.protocol.signing import ModelManifest, read_seal, sealed, signed_order
from tests.edge_agent.scene import INSTANCE, make_config, pointer

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
NOW = 1_800_000_000


def seal(model: BlobPointer | None = None, *, version: int = 5, expires: int = NOW + 60, **names: str) -> BlobPointer:
    where = {"federation": "demo", "instance": INSTANCE, **names}
    return sealed(model or pointer(), version=version, expires=expires, sign=KEY.sign, **where)


def trust(folder: Path, key: bytes | None = PUBLIC, now: float = NOW) -> Trust:
    return Trust(folder, "demo", key, lambda: now)


def test_what_is_signed_is_canonical_and_names_its_purpose() -> None:
    manifest = ModelManifest(federation="demo", instance=INSTANCE, version=5, sha256="a" * 64, size=10, expires=NOW)
    purpose, _, text = manifest.to_bytes().partition(b"\n")
    assert purpose == b"gaitway-model/v1"
    assert text == (
        b'{"expires":1800000000,"federation":"demo","instance":"' + b"0" * 32 + b'","score":null,"sha256":"'
        + b"a" * 64
        + b'","size":10,"version":5}'
    )  # fmt: skip
    found, signature = read_seal(read(BlobPointer, write(seal(expires=NOW))), federation="demo", instance=INSTANCE)
    assert found == manifest
    KEY.public_key().verify(signature, purpose + b"\n" + text)


def test_a_sealed_model_is_believed_until_it_expires(tmp_path: Path) -> None:
    trust(tmp_path).check(seal(), INSTANCE)
    trust(tmp_path, now=NOW + 60).check(seal(), INSTANCE)
    with pytest.raises(TrustError, match=r"expired 1 s ago by this device's clock; check the clock"):
        trust(tmp_path, now=NOW + 61).check(seal(), INSTANCE)


@pytest.mark.parametrize(
    "forged",
    [
        seal(federation="other"),
        seal(instance="1" * 32),
        seal().model_copy(update={"sha256": "b" * 64}),
        seal().model_copy(update={"size": 11}),
        pointer().model_copy(update={"seal": seal(version=5).seal.model_copy(update={"version": 6})}),
        pointer().model_copy(update={"seal": seal().seal.model_copy(update={"expires": NOW + 10_000})}),
    ],
    ids=["another federation", "another founding", "another blob", "another size", "newer", "longer"],
)
def test_a_seal_is_for_one_model_of_one_federation(forged: BlobPointer, tmp_path: Path) -> None:
    with pytest.raises(TrustError, match="not signed by this device's server for federation 'demo'"):
        trust(tmp_path).check(forged, INSTANCE)
    trust(tmp_path).check(seal(version=0), INSTANCE)  # what was not believed has moved nothing


def test_another_servers_seal_is_refused(tmp_path: Path) -> None:
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    with pytest.raises(TrustError, match="enrol this device anew"):
        trust(tmp_path, other).check(seal(), INSTANCE)


def test_unsigned_models_are_for_devices_that_have_not_enrolled(tmp_path: Path) -> None:
    trust(tmp_path, None).check(pointer(), INSTANCE)
    with pytest.raises(TrustError, match="is not signed, but this device has enrolled"):
        trust(tmp_path).check(pointer(), INSTANCE)
    with pytest.raises(WireError, match="not signed"):
        read_seal(pointer(), federation="demo", instance=INSTANCE)


def test_no_older_version_is_taken_also_after_a_restart_and_a_new_founding(tmp_path: Path) -> None:
    trust(tmp_path).check(seal(version=5), INSTANCE)
    trust(tmp_path).check(seal(pointer("b"), version=5), INSTANCE)  # another device's share of the same version
    with pytest.raises(TrustError, match="is version 4, and this device has seen 5"):
        trust(tmp_path).check(seal(version=4), INSTANCE)
    store = Store(tmp_path)
    start_over(store, "another founding")
    store.close()
    with pytest.raises(TrustError, match="this device has seen 5"):
        trust(tmp_path).check(seal(version=4, instance="1" * 32), "1" * 32)
    trust(tmp_path).check(seal(version=6), INSTANCE)


def test_an_order_may_name_an_older_model_but_is_never_older_than_the_last(tmp_path: Path) -> None:
    def order(serial: int, released: int, expires: int | None = NOW + 60, instance: str = INSTANCE) -> ReleaseOrder:
        release = Release(rollout=released, version=released, round=1, model=pointer())
        said = ReleaseOrder(serial=serial, released=release, expires=expires)
        return signed_order(said, federation="demo", instance=instance, sign=KEY.sign)

    trust(tmp_path).check(seal(version=9), INSTANCE)  # what a round has made says nothing about what is released
    trust(tmp_path).check_order(order(5, released=2), INSTANCE)
    trust(tmp_path).check_order(order(6, released=1), INSTANCE)
    trust(tmp_path).check_order(order(6, released=1), INSTANCE)
    start_over(store := Store(tmp_path), "another founding")
    store.close()
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    refused = {
        "releases is number 5, and this device has seen 6": (trust(tmp_path), order(5, released=2)),
        "is not signed by this device's server": (trust(tmp_path), order(7, 2).model_copy(update={"serial": 8})),
        "enrol this device anew": (trust(tmp_path, other), order(7, 2)),
        "for federation 'demo'": (trust(tmp_path), order(7, 2, instance="1" * 32)),
        "releases expired 1 s ago": (trust(tmp_path, now=NOW + 61), order(7, 2)),
        "is not signed, but this device has enrolled": (trust(tmp_path), order(7, 2, expires=None)),
    }
    for words, (who, said) in refused.items():
        with pytest.raises(TrustError, match=words):
            who.check_order(said, INSTANCE)
    trust(tmp_path, None).check_order(ReleaseOrder(serial=0), INSTANCE)  # it has not enrolled: it believes its broker
    trust(tmp_path).check_order(order(7, released=1), INSTANCE)


def test_nothing_is_asked_of_a_server_for_a_model_that_is_not_believed(tmp_path: Path) -> None:
    posted = list[object]()
    errands = Errands(make_config(tmp_path), trust(tmp_path), None, posted.append)
    evil = pointer().model_copy(update={"url": "http://127.0.0.1:9/evil"})
    errands._fetch(evil, INSTANCE)
    (failed,) = posted
    assert isinstance(failed, BlobFailed)
    assert "is not signed" in failed.reason
    errands._fetch(seal(evil), INSTANCE)
    assert "cannot download" in posted[1].reason
    store = Store(tmp_path)
    assert store.get("newest_version") == "5"
    store.close()
