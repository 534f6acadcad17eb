"""A live round of devices in groups: the server learns the sum of each, and the median of their means is the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from aggregator_api.storage.db.models import FederationRow, RoundRow
from federation import wire
from federation.errors import SettingsError
from federation.methods import method_from_json
from federation.plan import Plan, SecureSettings
from federation.secure_sums.live import check_live
from federation.secure_sums.membership import groups_of
from federation.secure_sums.summation import next_state
from tests.aggregator_api.bench import Bench, wait_for
from tests.live.summing_devices import SummingDevice, layout_of, pass_stage, stage_of
from tests.live.test_noisy_rounds import carry_out
from tests.live.test_secure_sums import begun, ended, expected_gains, numbers_for, secure_plan, version_gains

NAMES = tuple(f"device{number:02d}" for number in range(11))
GROUPS = 3


def group_plan(**settings: object) -> Plan:
    plan = secure_plan(groups=GROUPS, **settings)
    rounds = plan.rounds.model_copy(update={"minimum_clients": len(NAMES)})
    return plan.model_copy(update={"method": {**plan.method, "aggregation": "median"}, "rounds": rounds})


def federation(folder: Path, plan: Plan) -> tuple[Bench, list[SummingDevice]]:
    server, devices = Bench(folder / "server", plan), [SummingDevice(folder, name) for name in NAMES]
    for one in devices:
        one.enrol(server)
    for one in devices:
        server.say(one.name, "ready")
    return server, devices


@pytest.mark.ci
def test_the_model_is_the_median_of_the_groups_means(tmp_path: Path) -> None:
    server, devices = federation(tmp_path, group_plan())
    before, layout = server.state(), layout_of(server)
    begun(server, devices)
    for one in devices:
        one.take_part(server)
    groups = groups_of(NAMES, GROUPS, 1)
    lost = next(one for one, group in zip(devices, groups, strict=True) if groups.count(group) == 4)
    lost.is_lost = True  # its numbers are in no sum, and its group goes on without it
    for _stage in range(6):
        if (stage := stage_of(server)) in ("done", "failed"):
            break
        for one in devices:
            one.take_part(server)
        if stage_of(server) == stage:
            pass_stage(server)
    wait_for(ended(server, "published"))
    totals = np.zeros((GROUPS, layout.length), np.int64)
    for name, group in zip(NAMES, groups, strict=True):
        if name != lost.name:
            totals[group] += numbers_for(server, name)
    method = method_from_json(group_plan().method)
    state = wire.decode(before, limit_bytes=len(before))
    assert server.state() == wire.encode(next_state(method, state, layout, totals.ravel(), (), GROUPS))
    assert version_gains(server) == expected_gains([name for name in NAMES if name != lost.name])
    server.stop()


@pytest.mark.ci
def test_a_group_of_which_too_few_are_left_ends_the_round_in_words(tmp_path: Path) -> None:
    server, devices = federation(tmp_path, group_plan())
    before = server.state()
    begun(server, devices)
    for one in devices:
        one.take_part(server)
    of_one = [device for device, group in zip(devices, groups_of(NAMES, GROUPS, 1), strict=True) if group == 0]
    for one in of_one[: len(of_one) - 2]:
        one.is_lost = True
    carry_out(server, devices)
    pass_stage(server)
    wait_for(ended(server, "failed"))
    with server.runtime.database.read() as session:
        reason = session.scalars(select(RoundRow.reason).where(RoundRow.number == 1)).one()
    assert reason == "the secure sum failed: a group's sum would have 2 devices; 3 are needed"
    assert server.state() == before
    server.stop()


def test_a_device_insists_on_the_groups_of_its_plan(tmp_path: Path) -> None:
    """Else a server could deal it into a group of as few as it likes."""
    server, devices = federation(tmp_path, secure_plan())
    begun(server, devices[:0])
    with server.runtime.database.write() as session:
        row = session.scalars(select(FederationRow)).one()
        row.plan = {**row.plan, "secure": SecureSettings(mode="masked", groups=3).model_dump(mode="json")}
    said = devices[0].invitation(server)
    assert said.sum is not None
    with pytest.raises(ValueError, match="this device insists on 3, as the plan has them"):
        devices[0].begin(server, numbers_for(server, "device00"))
    server.stop()


def test_groups_that_nothing_combines_are_refused_in_words() -> None:
    plan = group_plan()
    check_live(plan, method_from_json(plan.method))
    few = plan.model_copy(update={"rounds": plan.rounds.model_copy(update={"clients_per_round": 8})})
    for refused, method, words in (
        (plan, {"name": "fedavg"}, "the mean of the groups is the mean of all"),
        (plan, {"name": "scaffold", "aggregation": "median"}, "sends or combines more than a mean"),
        (few, plan.method, r"in each of 3 groups \(secure\.groups\)"),
    ):
        with pytest.raises(SettingsError, match=words):
            check_live(refused, method_from_json(method))
