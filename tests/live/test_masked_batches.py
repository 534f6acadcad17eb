"""A continuous federation whose batches are added by secure sums: the real server, and the agent's own half of it.

What is compared with is a federation in the open: the method's own state of the same devices' sums.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sqlalchemy import select

from aggregator_api.db import epochs
from aggregator_api.db.models import FederationRow, RoundRow, SecureSumRow
from aggregator_api.storage import continuous_sums
from aggregator_api.storage.fsck_result import Severity
from edge_agent.machine.commands import BeginEpoch, BeginMaskedWithdrawal
from edge_agent.storage.files import write_file
from edge_agent.supervisor import masked_parts, secure_sum
from edge_agent.supervisor.persistence import begin_epoch
from federation import wire
from federation.methods import method_from_json
from federation.plan import Plan, SecureSettings
from federation.protocol import topics
from federation.records import Tree, Update
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import continuous_plan, sums_of
from tests.aggregator_api.generated_devices import FEDERATION, status
from tests.live.summing_devices import SummingDevice, layout_of, pass_stage, stage_of
from tests.live.walks import assert_same
from tests.manifests import manifest_of

NAMES = ("ada", "bob", "cyd", "dan", "eve")
STAGES = ("shares", "vectors", "lists", "opening")


def batch_plan() -> Plan:
    plan = continuous_plan()
    rounds = plan.rounds.model_copy(update={"max_weight_ratio": None, "norm_factor": None})
    return plan.model_copy(update={"rounds": rounds, "secure": SecureSettings(mode="masked")})


class BatchDevice(SummingDevice):
    """One device of a continuous federation, whose whole sums the test makes."""

    seed: int | None = None
    """Of its present sums; None: it has none, and takes out what it has in the sums."""

    def has(self, seed: int | None) -> None:
        """Have other windows from now on."""
        self.seed = seed

    def tell(self, server: Bench, *, changed: bool) -> None:
        """Publish its status."""
        said = status("idle", examples=1).decode().replace("{", f'{{"changed":{str(changed).lower()},', 1)
        server.send(topics.status(FEDERATION, self.name), said.encode())

    def hear_settled(self, server: Bench) -> str:
        """Take which batch has it; return what is wrong."""
        with self.store() as store:
            masked_parts.settle(store, self.invitation(server))
            return masked_parts.known(store)[1]

    def begin_batch(self, server: Bench) -> None:
        """Put the keys for the open batch into the outbox."""
        said, announced, layout = self.invitation(server), server.now(), layout_of(server)
        assert said.sum is not None
        assert self.hear_settled(server) == ""
        if self.seed is None:
            with self.store() as store:
                asked = BeginMaskedWithdrawal(said, announced.plan, announced.chunk_bytes)
                secure_sum.begin_withdrawal(store, asked)
            return
        described = manifest_of(announced, self.name, 10, size=0, sha256="0" * 64, base_version=said.model.sha256)
        path = self.folder / "numbers"
        write_file(path, whole_numbers(sums_of(self.seed)).astype("<i8").tobytes())
        with self.store() as store:
            told = {"bound": layout.bound, "layout": layout.digest.hex()}
            part = secure_sum.NewPart("sums", frozenset({self.seed}))
            begun = secure_sum.begin(store, announced.plan, said.sum.body, described, path, told, part)
            store.keep_update(begun.manifest, begun.path, {"examples": 10}, **begun.pairs)


def whole_numbers(sums: Tree) -> NDArray[np.int64]:
    parts = [np.asarray(sums[name].numpy(), np.int64).reshape(-1) for name in ("gram", "moment")]
    return np.concatenate([*parts, np.ones(1, np.int64)])


def in_the_open(server: Bench, initial: bytes, seeds: dict[str, int]) -> Tree:
    """The state that the method makes of these devices' sums without masks, all at once."""
    with server.runtime.database.read() as session:
        method = method_from_json(session.scalars(select(FederationRow)).one().plan["method"])
    updates = [Update(name, 10, 0, sums_of(seed)) for name, seed in sorted(seeds.items())]
    return method.aggregate(wire.decode(initial, limit_bytes=len(initial)), updates)


def federation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, list[BatchDevice]]:
    monkeypatch.setattr("aggregator_api.federations.exports.onnx", lambda made: b"onnx")
    server = Bench(folder / "server", batch_plan())
    devices = [BatchDevice(folder, name) for name in NAMES]
    for number, one in enumerate(devices):
        one.enrol(server)
        one.has(number + 1)
    return server, devices


def opens(server: Bench, devices: list[BatchDevice], number: int, restarted: Path | None = None) -> Bench:
    """Let these devices say that they have changes, and begin the batch that opens for them; the server may restart."""
    server.as_inbox(lambda: server.runtime.federations.pause(FEDERATION))  # else a batch opens for the first three
    for one in devices:
        one.tell(server, changed=True)
    server.as_inbox(lambda: server.runtime.federations.resume(FEDERATION))
    wait_for(lambda: phase_of(server, number) == "collecting")
    for one in devices:
        one.tell(server, changed=False)
        one.begin_batch(server)
    if restarted is not None:
        server.stop()
        server = Bench(restarted)
    for one in devices:
        one.send(server)
    return server


def phase_of(server: Bench, number: int) -> str:
    with server.runtime.database.read() as session:
        return session.scalar(select(RoundRow.phase).where(RoundRow.number == number)) or ""


def carry_out(server: Bench, devices: list[BatchDevice]) -> None:
    for _stage in STAGES:
        stage = stage_of(server)
        for one in devices:
            one.take_part(server)
        if stage_of(server) == stage:  # for one that is lost
            pass_stage(server)


def published(server: Bench, number: int, devices: list[BatchDevice]) -> Tree:
    wait_for(lambda: phase_of(server, number) == "published")
    wait_for(lambda: all(is_told(server, one, number) for one in devices))
    for one in devices:
        assert one.hear_settled(server) == ""
    data = server.state()
    return wire.decode(data, limit_bytes=len(data))


def is_told(server: Bench, device: BatchDevice, number: int) -> bool:
    said = device.invitation(server)
    return said.round == number and said.sum is not None and said.sum.kind == "settled"


def fsck(server: Bench) -> None:
    with server.runtime.database.read() as session:
        (found,) = continuous_sums.check(session, server.runtime.blobs)
    assert found.level is Severity.OK, found
    assert "bit for bit" in found.message


@pytest.mark.ci
def test_batches_add_up_to_the_sums_in_the_open_whatever_is_lost_killed_and_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, devices = federation(tmp_path, monkeypatch)
    initial = server.state()
    ada, bob, cyd, dan, eve = devices
    for one in (ada, bob):
        one.tell(server, changed=True)
    server.as_inbox(server.runtime.coordinator.tick)
    assert phase_of(server, 1) == ""  # two have changes, and no sum is of fewer than three

    opens(server, devices, 1)
    eve.is_lost = True  # its keys are in the list; it comes back for the next batch
    carry_out(server, devices)
    seeds = {"ada": 1, "bob": 2, "cyd": 3, "dan": 4}
    assert_same(published(server, 1, devices), in_the_open(server, initial, seeds), "after the first batch")
    fsck(server)

    # one has other windows, one leaves, one comes; the server is started anew in every stage
    ada.has(11)
    bob.has(None)
    eve.is_lost = False
    batch = [ada, bob, eve]
    server = opens(server, batch, 2, restarted=tmp_path / "server")
    for _stage in STAGES:
        server.stop()
        server = Bench(tmp_path / "server")
        for one in batch:
            one.take_part(server)
    seeds = {"ada": 11, "cyd": 3, "dan": 4, "eve": 5}
    after = published(server, 2, batch)
    assert_same(after, in_the_open(server, initial, seeds), "after one has left")
    assert int(after["sums"]["clients"]) == 4
    fsck(server)

    # too few are left: the batch fails in words, its changes wait, and the next one has them
    before = server.state()
    cyd.has(13)
    dan.has(14)
    bob.has(12)
    batch = [bob, cyd, dan]
    opens(server, batch, 3)
    bob.take_part(server)
    pass_stage(server)
    wait_for(lambda: phase_of(server, 3) == "failed")
    with server.runtime.database.read() as session:
        reason = session.scalars(select(RoundRow.reason).where(RoundRow.number == 3)).one()
    assert reason == "the secure sum failed: 1 of 3 members have dealt shares, 3 are needed"
    assert server.state() == before
    wait_for(lambda: all(is_told(server, one, 3) for one in batch))
    for one, kind in zip(batch, ("withdrawn", "sums", "sums"), strict=True):
        with one.store() as store:
            masked_parts.settle(store, one.invitation(server))
            left, _ = masked_parts.known(store)
        assert left is not None
        assert (left.kind, left.is_settled) == (kind, True)  # what the second and the first batch have
    opens(server, batch, 4)
    carry_out(server, batch)
    seeds = {"ada": 11, "bob": 12, "cyd": 13, "dan": 14, "eve": 5}
    assert_same(published(server, 4, batch), in_the_open(server, initial, seeds), "after the batch was tried again")
    fsck(server)
    with server.runtime.database.read() as session:
        kept = [len(row.added or b"") for row in session.scalars(select(SecureSumRow).order_by(SecureSumRow.round_id))]
    assert kept[:3] == [0, 0, 0]
    assert kept[3] > 0
    server.stop()


@pytest.mark.ci
def test_a_restored_server_says_which_batch_has_a_device_and_one_that_lost_its_sums_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, devices = federation(tmp_path, monkeypatch)
    initial = server.state()
    opens(server, devices, 1)
    carry_out(server, devices)
    published(server, 1, devices)
    with server.runtime.database.write() as session:
        epoch = epochs.begin(session)
    server.stop()
    server = Bench(tmp_path / "server")
    server.runtime.coordinator.on_connected()
    for one in devices:
        assert one.invitation(server).epoch == epoch
        with one.store() as store:
            begin_epoch(store, BeginEpoch(epoch, 1, None))
            assert masked_parts.load(store).contribution() is not None  # until the server has said so, nothing changes
        assert one.hear_settled(server) == ""
    eve = devices[4]
    with eve.store() as store:
        parts = masked_parts.load(store)
        assert parts.base
        store.put(**masked_parts.pairs_of(parts._replace(parts={})))
    assert "until the sums of all others are collected anew" in eve.hear_settled(server)
    for one, seed in zip(devices[:3], (21, 22, 23), strict=True):
        one.has(seed)
    opens(server, devices[:3], 2)
    carry_out(server, devices[:3])
    seeds = {"ada": 21, "bob": 22, "cyd": 23, "dan": 4, "eve": 5}
    after = published(server, 2, devices[:3])
    assert_same(after, in_the_open(server, initial, seeds), "after the restore")
    assert torch.equal(after["sums"]["clients"], torch.tensor(5))
    server.stop()
