"""Devices that refuse the plan: each in its own signed words, counted, and left out of rounds that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from aggregator_api.http.queries import listings
from aggregator_api.http.queries.devices import activity, waiting_for
from aggregator_api.notifications import attention
from aggregator_api.storage.db.models import DeviceRow, EventRow, FederationRow
from edge_agent.storage.credentials import status_signer
from federation.protocol import topics
from federation.protocol.messages import DeviceStatus, PlanRefusal, write
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan
from tests.live.summing_devices import SummingDevice

NEWS = ("device.refuses", "device.accepts")
REASON = "secure.min_devices is 3, and this device requires 50 or more"


def says(bench: Bench, folder: Path, name: str, reason: str = "", signer: str = "", **refusal: Any) -> None:
    """Publish a device's status, with a refusal that `signer` signs, by itself where nobody else is named."""
    status = DeviceStatus(state="ready", examples=10)
    if reason:
        about = {"instance": bench.now().instance, "serial": 1, **refusal}
        status = status.model_copy(update={"refusal": PlanRefusal(reason=reason, **about).model_dump_json()})
    signed = status_signer(folder / (signer or name), FEDERATION, name)(status)
    bench.send(topics.status(FEDERATION, name), write(signed))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A paused federation of three enrolled devices, whose rounds need two."""
    found = Bench(tmp_path / "server", tiny_plan(rounds=1, clients=None, minimum_clients=2, deadline_s=3600))
    found.runtime.federations.pause(FEDERATION)
    for name in ("ada", "bob", "cyd"):
        SummingDevice(tmp_path, name).enrol(found)
    return found


def reasons(bench: Bench) -> list[tuple[str, int]]:
    with bench.runtime.database.read() as session:
        row = session.scalars(select(FederationRow)).one()
        return [(each.reason, each.devices) for each in listings.federation(session, row).plan_refusals]


def words(bench: Bench) -> str:
    with bench.runtime.database.read() as session:
        row = session.scalars(select(FederationRow)).one()
        return " ".join(item.message for item in attention.of_federation(session, row))


def test_who_refuses_is_counted_before_a_round_begins_and_the_round_goes_on_without_it(
    bench: Bench, tmp_path: Path
) -> None:
    says(bench, tmp_path, "ada", REASON)
    says(bench, tmp_path, "bob")
    assert reasons(bench) == [(REASON, 1)]
    assert f"1 device refuses the plan: 1 because {REASON}" in words(bench)
    bench.runtime.federations.resume(FEDERATION)
    with bench.runtime.database.read() as session:
        row = session.scalars(select(FederationRow)).one()
        ada = session.scalars(select(DeviceRow).where(DeviceRow.name == "ada")).one()
        waiting = waiting_for(session, row)
        assert "1 of the 2 devices that a round needs are online; 1 device refuses the plan" in waiting
        assert activity(session, row, ada).reason == f"It refuses the plan: {REASON}."
        detail = listings.federation(session, row)
    assert (detail.devices, detail.devices_online) == (3, 1)
    says(bench, tmp_path, "cyd")
    wait_for(lambda: bench.collects(1))
    assert bench.invited() == ("bob", "cyd")
    bench.stop()


def test_a_device_that_takes_part_again_is_counted_no_more(bench: Bench, tmp_path: Path) -> None:
    says(bench, tmp_path, "ada", REASON)
    bench.say("ada", "offline")
    assert reasons(bench) == [(REASON, 1)], "a last will knows nothing of plans"
    says(bench, tmp_path, "ada")
    assert (reasons(bench), "refuse" in words(bench)) == ([], False)
    with bench.runtime.database.read() as session:
        kinds = list(session.scalars(select(EventRow.kind).where(EventRow.device == "ada")))
    assert [kind for kind in kinds if kind in NEWS] == list(NEWS)
    bench.stop()


@pytest.mark.parametrize("forged", ["key", "name", "plain", "instance", "epoch"])
def test_a_refusal_that_is_not_the_devices_word_about_this_plan_counts_nothing(
    forged: str, bench: Bench, tmp_path: Path
) -> None:
    other = {"instance": {"instance": "f" * 32}, "epoch": {"epoch": 9}}.get(forged, {})
    if forged == "key":
        says(bench, tmp_path, "ada", REASON, signer="mallory")
        SummingDevice(tmp_path, "mallory")
    elif forged == "name":
        signed = status_signer(tmp_path / "bob", FEDERATION, "bob")
        body = PlanRefusal(instance=bench.now().instance, serial=1, reason=REASON).model_dump_json()
        bench.send(topics.status(FEDERATION, "ada"), write(signed(DeviceStatus(state="collecting", refusal=body))))
    elif forged == "plain":
        body = PlanRefusal(instance=bench.now().instance, serial=1, reason=REASON).model_dump_json()
        bench.send(topics.status(FEDERATION, "ada"), write(DeviceStatus(state="collecting", refusal=body)))
    else:
        says(bench, tmp_path, "ada", REASON, **other)
    assert reasons(bench) == []
    bench.stop()
