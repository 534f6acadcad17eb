"""The server's signature over what devices are to load: which version, which founding, and until when."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from aggregator_api.sealing import Sealer
from federation.protocol.messages import BlobPointer
from federation.protocol.signing import ModelManifest, read_seal

from .bench import Bench, wait_for
from .devices import FEDERATION, tiny_plan

DAY_S = 86_400


def verified(bench: Bench, pointer: BlobPointer) -> ModelManifest:
    """Check a pointer as a device does that has the server's key."""
    manifest, signature = read_seal(pointer, federation=FEDERATION, instance=bench.now().instance)
    Ed25519PublicKey.from_public_bytes(bench.runtime.identity.public_key).verify(signature, manifest.to_bytes())
    return manifest


def test_announcements_and_invitations_are_sealed_and_their_version_rises_with_every_model(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=2))
    versions = []
    for number in (1, 2):
        for device in ("a", "b"):
            bench.say(device, "ready")
        wait_for(partial(bench.collects, number))
        announced = bench.now()
        assert announced.model is not None
        invited = bench.wires.invitations("a")[-1].model
        assert verified(bench, announced.model) == verified(bench, invited)
        versions.append(verified(bench, invited).version)
        for device in ("a", "b"):
            assert bench.upload(bench.update_of(device)).status == "accepted"
    wait_for(lambda: bench.now().state == "finished")
    final = bench.now().model
    assert final is not None
    versions.append(verified(bench, final).version)
    assert versions == sorted(set(versions))
    bench.runtime.stop()


class Clock:
    """Stands where it is put."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_seal_holds_for_its_lifetime_and_is_renewed_after_half_of_it() -> None:
    clock, key = Clock(), Ed25519PrivateKey.generate()
    sealer = Sealer(key.sign, 30 * DAY_S, clock)
    pointer = BlobPointer(sha256="a" * 64, size=1, url="/x")
    first = sealer.seal(pointer, "f", "0" * 32, 1)
    assert first.seal is not None
    assert 30 * DAY_S <= first.seal.expires - clock.now <= 30.3 * DAY_S
    clock.now += 60
    assert sealer.seal(pointer, "f", "0" * 32, 1) == first
    assert not sealer.renewal_is_due()
    clock.now += 15 * DAY_S
    assert sealer.renewal_is_due()
    assert not sealer.renewal_is_due()
    assert sealer.seal(pointer, "f", "0" * 32, 1) != first


def test_what_is_announced_is_said_again_before_its_seal_expires(tmp_path: Path) -> None:
    bench, clock = Bench(tmp_path, tiny_plan()), Clock()
    bench.runtime.coordinator.sealer = Sealer(bench.runtime.identity.sign, DAY_S, clock)
    said = len(bench.wires.sent)
    bench.runtime.coordinator.renew()
    assert len(bench.wires.sent) == said
    clock.now += DAY_S
    bench.runtime.coordinator.renew()
    announced = bench.now().model
    assert len(bench.wires.sent) == said + 1
    assert announced is not None
    assert verified(bench, announced).expires > clock.now
    bench.runtime.stop()
