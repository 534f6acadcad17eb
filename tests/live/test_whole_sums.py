"""Secure rounds without end to which devices add their whole sums: the real server, and the agent's own half of it.

What is compared with is a federation in the open: the method's own state of the same devices' sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from aggregator_api.core.settings import Settings
from aggregator_api.maintenance import fsck
from aggregator_api.storage.db.models import DeviceRow, FederationRow, MaskedContributionRow, ModelVersionRow, RoundRow
from edge_agent.storage.data_folder import write_file
from edge_agent.supervisor import secure_sum
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


def whole_sums_plan() -> Plan:
    plan = continuous_plan()
    rounds = plan.rounds.model_copy(update={"max_weight_ratio": None, "norm_factor": None})
    return plan.model_copy(update={"rounds": rounds, "secure": SecureSettings(mode="masked")})


class SumsDevice(SummingDevice):
    """One device of a continuous federation, whose whole sums the test makes."""

    seed: int | None = None
    """Of its present sums, and their number; None: its person has withdrawn it."""

    added: int = 0
    """The number of the sums that it has added last."""

    def has(self, seed: int | None) -> None:
        """Have other windows from now on."""
        self.seed = seed

    def tell(self, server: Bench) -> None:
        """Publish its status."""
        state, number = "collecting" if self.seed is None else "idle", self.added if self.seed == self.added else 0
        message = status(state, examples=1).decode().replace("{", f'{{"sums":{number},' if number else "{", 1)
        server.send(topics.status(FEDERATION, self.name), message.encode())

    def begin_sums(self, server: Bench, number: int) -> None:
        """Put the keys for the round into the outbox."""
        wait_for(lambda: self.invitation(server).round == number)
        invitation, announced, layout = self.invitation(server), server.now(), layout_of(server)
        assert invitation.sum is not None
        assert self.seed is not None
        described = manifest_of(
            announced,
            self.name,
            10,
            size=0,
            sha256=hashlib.sha256().hexdigest(),
            base_version=invitation.model.sha256,
            sequence=self.seed,
        )
        path = self.folder / "numbers"
        write_file(path, whole_numbers(sums_of(self.seed)).astype("<i8").tobytes())
        with self.store() as store:
            told = {"bound": layout.bound, "layout": layout.digest.hex()}
            begun = secure_sum.begin(store, announced.plan, invitation.sum.body, described, path, told)
            store.keep_update(begun.manifest, begun.path, {"examples": 10}, **begun.pairs)
        self.added = self.seed
        self.tell(server)


def whole_numbers(sums: Tree) -> NDArray[np.int64]:
    parts = [np.asarray(sums[name].numpy(), np.int64).reshape(-1) for name in ("gram", "moment")]
    return np.concatenate([*parts, np.ones(1, np.int64)])


def in_the_open(server: Bench, initial: bytes, seeds: dict[str, int]) -> Tree:
    """The state that the method makes of these devices' sums without masks, all at once."""
    with server.runtime.database.read() as session:
        method = method_from_json(session.scalars(select(FederationRow)).one().plan["method"])
    updates = [Update(name, 10, 0, sums_of(seed)) for name, seed in sorted(seeds.items())]
    return method.aggregate(wire.decode(initial, limit_bytes=len(initial)), updates)


def say_all(server: Bench, devices: Collection[SumsDevice]) -> None:
    """Let all tell how they are before a round may open for the first of them."""
    server.as_inbox(lambda: server.runtime.federations.pause(FEDERATION))
    for device in devices:
        device.tell(server)
    server.as_inbox(lambda: server.runtime.federations.resume(FEDERATION))


def begin(server: Bench, devices: Collection[SumsDevice], number: int) -> None:
    """Let all whom a round invites send their keys."""
    wait_for(lambda: phase_of(server, number) == "collecting")
    for device in devices:
        device.begin_sums(server, number)
    for device in devices:
        device.send(server)


def phase_of(server: Bench, number: int) -> str:
    with server.runtime.database.read() as session:
        return session.scalar(select(RoundRow.phase).where(RoundRow.number == number)) or ""


def reason_of(server: Bench, number: int) -> str:
    with server.runtime.database.read() as session:
        return session.scalars(select(RoundRow.reason).where(RoundRow.number == number)).one()


def carry_out(server: Bench, devices: Collection[SumsDevice]) -> None:
    for _stage in STAGES:
        stage = stage_of(server)
        for device in devices:
            device.take_part(server)
        if stage_of(server) == stage:  # for one that is lost
            pass_stage(server)


def published(server: Bench, number: int) -> Tree:
    wait_for(lambda: phase_of(server, number) == "published")
    data = server.state()
    return wire.decode(data, limit_bytes=len(data))


def in_the_sum(server: Bench) -> dict[str, int]:
    """The numbers of the sums that the newest version has, by device."""
    row = MaskedContributionRow
    with server.runtime.database.read() as session:
        query = select(DeviceRow.name, row.sequence).join(row, row.device_id == DeviceRow.id)
        return dict(session.execute(query.where(row.version.is_not(None))).all())


@pytest.mark.ci
def test_each_version_is_the_sum_of_who_was_there_and_no_two_in_a_row_differ_by_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator_api.federations.exports.onnx", lambda made: b"onnx")
    server = Bench(tmp_path / "server", whole_sums_plan())
    devices = [SumsDevice(tmp_path, name) for name in NAMES]
    for number, device in enumerate(devices):
        device.enrol(server)
        device.has(number + 1)
    initial = server.state()
    ada, bob, cyd, dan, eve = devices
    for device in (ada, bob):
        device.tell(server)
    server.as_inbox(server.runtime.coordinator.tick)
    assert phase_of(server, 1) == ""  # no sum is of fewer than three

    say_all(server, devices)
    begin(server, devices, 1)
    eve.is_lost = True  # its keys are in the list
    carry_out(server, devices)
    seeds = {"ada": 1, "bob": 2, "cyd": 3, "dan": 4}
    assert_same(published(server, 1), in_the_open(server, initial, seeds), "after the first round")
    assert in_the_sum(server) == seeds

    ada.has(11)
    say_all(server, devices)
    server.as_inbox(server.runtime.coordinator.tick)
    assert phase_of(server, 2) == ""  # one has others and one would come: their difference would show too much

    # a third one leaves: that is its withdrawal, and the server is started again in every stage
    bob.has(None)
    eve.is_lost = False
    say_all(server, devices)
    present = [ada, cyd, dan, eve]
    begin(server, present, 2)
    for _stage in STAGES:
        server.stop()
        server = Bench(tmp_path / "server")
        for device in present:
            device.take_part(server)
    seeds = {"ada": 11, "cyd": 3, "dan": 4, "eve": 5}
    after = published(server, 2)
    assert_same(after, in_the_open(server, initial, seeds), "after one has left")
    assert int(after["sums"]["clients"]) == 4

    # three would change the sum, and one of them is lost after the keys: it is not opened, and the next one is
    before = server.state()
    bob.has(12)
    cyd.has(13)
    dan.has(14)
    say_all(server, devices)
    begin(server, devices, 3)
    bob.is_lost = True
    for device in devices:
        device.take_part(server)
    pass_stage(server)
    eve.repeats = False  # whose vector ends the round
    for device in devices:
        device.take_part(server)
    wait_for(lambda: phase_of(server, 3) == "failed")
    assert "it differs from the last one by 2 devices, and 3 (secure.min_devices) hide each other" in reason_of(
        server, 3
    )
    assert server.state() == before
    assert in_the_sum(server) == seeds
    bob.is_lost, eve.repeats = False, True
    begin(server, devices, 4)
    carry_out(server, devices)
    seeds = {"ada": 11, "bob": 12, "cyd": 13, "dan": 14, "eve": 5}
    assert_same(published(server, 4), in_the_open(server, initial, seeds), "after the round was tried again")
    assert in_the_sum(server) == seeds

    # what the server keeps of them is checked, although nobody's own sums are there
    words = "federation walk: the sums of version 3"
    assert f"{words} can be those of 5 devices" in findings(tmp_path / "server")
    tree = wire.decode(server.state(), limit_bytes=len(server.state()))
    tree["sums"]["gram"][0] += 1 << 50
    with server.runtime.database.write() as session:
        newest = session.scalars(select(ModelVersionRow).order_by(ModelVersionRow.id.desc())).first()
        assert newest is not None
        newest.state_sha256 = server.runtime.blobs.put(wire.encode(tree)).sha256
    assert any(found.startswith(f"{words} are not of 5 devices: gram") for found in findings(tmp_path / "server"))
    server.stop()


def findings(folder: Path) -> list[str]:
    return [finding.message for finding in fsck.check(Settings(data_dir=folder))]
