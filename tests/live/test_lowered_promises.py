"""A server that takes back what it promised of privacy: real devices refuse it and say so, and others go on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from aggregator_api.http.queries import listings
from aggregator_api.storage.db.models import FederationRow, ParticipationRow
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import load_agent
from federation.plan import SecureSettings
from tests.live.enrolled_world import FEDERATION, Agent, World, agent, until

pytestmark = [pytest.mark.ci, pytest.mark.service]

PROMISED = {"mode": "masked", "min_devices": 5, "colluding_share": 0.3, "clip_norm": 100.0, "noise_multiplier": 1.1}
LOOSER: dict[str, dict[str, Any]] = {
    "secure.mode is not masked": {"mode": "off"},
    "secure.min_devices is 3": {"min_devices": 3},
    "secure.colluding_share is 0.1": {"colluding_share": 0.1},
    "secure.noise_multiplier is 0.5": {"noise_multiplier": 0.5},
}


def announce(world: World, minimum_clients: int = 100, **secure: Any) -> None:
    """Announce a plan, as whoever holds the server's database and key can."""
    with world.runtime.database.write() as session:
        row = session.scalars(select(FederationRow).where(FederationRow.name == FEDERATION)).one()
        plan = row.parsed_plan
        rounds = plan.rounds.model_copy(update={"minimum_clients": minimum_clients})
        parts = {"rounds": rounds, "secure": SecureSettings(**{**PROMISED, **secure})}
        row.plan, row.revision = plan.model_copy(update=parts).model_dump(mode="json"), row.revision + 1
    world.runtime.coordinator.announce(FEDERATION)


def refusals(world: World) -> dict[str, int]:
    """Return what the server answers over REST of those who refuse its plan."""
    with world.runtime.database.read() as session:
        row = session.scalars(select(FederationRow).where(FederationRow.name == FEDERATION)).one()
        return {each.reason: each.devices for each in listings.federation(session, row).plan_refusals}


def invited(world: World) -> set[str]:
    with world.runtime.database.read() as session:
        return {row.device.name for row in session.scalars(select(ParticipationRow))}


def in_outbox(device: Agent) -> dict[str, Path]:
    store = StateStore(device.config.agent.data_dir)
    try:
        return store.outbox()
    finally:
        store.close()


def test_a_device_is_enrolled_with_one_promise_and_announced_another(world: World, tmp_path: Path) -> None:
    announce(world)
    config = world.enrolled(tmp_path / "cheated", "cheated")
    announce(world, mode="off")
    with agent(config) as device:
        until(lambda: device.says("secure.mode is not masked"), "the first announcement is taken for the promise")
        assert device.supervisor.agent.announcement is None
        announce(world)
        until(lambda: not refusals(world), "the device doesn't take part once the promise is kept")


def test_devices_refuse_what_promises_less_and_others_go_on(world: World, tmp_path: Path) -> None:
    announce(world)
    with ExitStack() as running:
        first = running.enter_context(agent(world.enrolled(tmp_path / "first", "first")))
        until(lambda: first.supervisor.agent.pinned and first.supervisor.agent.announcement)
        for words, changes in LOOSER.items():
            announce(world, **changes)
            until(lambda words=words: any(words in reason for reason in refusals(world)), f"nobody refuses: {words}")
            until(lambda words=words: first.says(words))
        announce(world)
        until(lambda: not refusals(world), "the device doesn't take part again by itself")
        announce(world, minimum_clients=1, mode="off")
        until(lambda: sum(refusals(world).values()) == 1)
        second = running.enter_context(agent(world.enrolled(tmp_path / "second", "second")))
        until(lambda: invited(world) == {"second"}, "the round doesn't begin without the device that refuses")
        until(lambda: second.supervisor.agent.work is not None)
        assert not in_outbox(first)
        assert first.supervisor.agent.work is None
        announce(world)
    store = StateStore(tmp_path / "first")
    pinned = load_agent(store).pinned
    store.close()
    assert pinned is not None
    assert (pinned.mode, pinned.min_devices, pinned.min_noise) == ("masked", 5, 1.1)
