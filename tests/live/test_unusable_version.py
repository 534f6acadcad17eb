"""Real devices that can't use a version refuse it, signed: it is withdrawn, and their federation goes on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import select

from aggregator_api.rounds import aggregation_executor
from aggregator_api.rounds.aggregation import Aggregate, aggregate
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db.models import EventRow, FederationRow, ModelVersionRow
from federation import wire
from federation.records import Tree
from tests.live.enrolled_world import FEDERATION, World, agent, until

pytestmark = [pytest.mark.ci, pytest.mark.service]

NAMES = ("ada", "bob", "cyd")
PATIENCE_S = 600.0
"""For three rounds of three devices, each of which starts a process to train in."""


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the server publish NaN in place of its first aggregate; with what it published since."""
    published = list[str]()

    def spoil_first(contract: Contract, blobs: BlobStore, *given: Any, **options: Any) -> Aggregate:
        made = aggregate(contract, blobs, *given, **options)
        if not published:
            data = blobs.read(made.broadcast.sha256)
            tree = wire.decode(data, limit_bytes=len(data))
            made = made._replace(broadcast=blobs.put(wire.encode(of_nan(tree))))
        published.append(made.broadcast.sha256)
        return made

    monkeypatch.setattr(aggregation_executor, "aggregate", spoil_first)
    return published


def of_nan(tree: Tree) -> Tree:
    return {
        name: of_nan(part) if isinstance(part, dict) else torch.full_like(part, torch.nan)
        for name, part in tree.items()
    }


def versions(world: World) -> list[tuple[int, bool]]:
    """Return each version's number, and whether it was withdrawn."""
    with world.runtime.database.read() as session:
        rows = session.scalars(select(ModelVersionRow).order_by(ModelVersionRow.version))
        return [(row.version, bool(row.withdrawn)) for row in rows]


def events(world: World, kind: str) -> list[EventRow]:
    with world.runtime.database.read() as session:
        return list(session.scalars(select(EventRow).where(EventRow.kind == kind)))


def test_a_version_that_no_device_can_use_is_withdrawn_and_the_next_round_publishes(
    world: World, spoiled: list[str], tmp_path: Path
) -> None:
    with world.runtime.database.write() as session:
        row = session.scalars(select(FederationRow)).one()
        plan = row.parsed_plan
        rounds = plan.rounds.model_copy(update={"minimum_clients": 3, "rounds": 2})
        training = plan.training.model_copy(update={"epochs": 1})
        changed = plan.model_copy(update={"rounds": rounds, "training": training})
        row.plan, row.revision = changed.model_dump(mode="json"), row.revision + 1
    world.runtime.coordinator.announce(FEDERATION)
    with ExitStack() as running:
        for name in NAMES:
            running.enter_context(agent(world.enrolled(tmp_path / name, name)))
        until(lambda: len(versions(world)) == 3, "no version follows the one that was withdrawn", PATIENCE_S)
    assert versions(world) == [(0, False), (1, True), (2, False)]
    assert {event.device for event in events(world, "device.refuses_model")} == set(NAMES)
    assert all("NaN" in event.detail for event in events(world, "device.refuses_model"))
    (withdrawn,) = events(world, "model.withdrawn")
    assert withdrawn.detail.startswith("3 of 3 devices can't use version 1")
    assert len(spoiled) == 2
