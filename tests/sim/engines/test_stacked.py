"""The stacked engine's chunks: found from memory, halved where it runs out; the numbers stay those of one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from federation.records.tree import flatten
from sim.data.federated_data import FederatedData
from sim.engines import ClientJob, stacked
from sim.engines.compiled import clients_that_fit, is_out_of_memory, meter_of
from sim.engines.serial import Serial
from sim.engines.stacked import Stacked
from sim.errors import EngineError
from sim.run import build_simulation, load_data, resolve
from tests.sim.small_runs import first, settings_for


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[ClientJob]:
    """Five clients of unlike length."""
    data: FederatedData = load_data(resolve(settings_for()), None, tmp_path_factory.mktemp("cache"), None)
    simulation = build_simulation(resolve(settings_for()), first(data, {"ada": 20, "bob": 12}))
    # Adam's first steps make a gradient's rounding as large as any other gradient
    setup = replace(simulation.setup, training=simulation.setup.training.model_copy(update={"optimizer": "sgd"}))
    initial, broadcast = simulation.initial, setup.method.broadcast(simulation.state, "")
    ada = simulation.data.clients["ada"].train
    return [
        ClientJob(f"client-{k}", setup, initial, broadcast, type(ada)(ada.x[: 4 + 3 * k], ada.y[: 4 + 3 * k]))
        for k in range(5)
    ]


class Room:
    """A device that has memory for so many clients, and a meter that says so or, `lying`, more."""

    def __init__(self, room: int, told: int) -> None:
        self.room, self.told, self.chunks = room, told, list[int]()

    def begin(self) -> None: ...

    def room_for(self, count: int) -> int:
        return self.told

    def trained(self, jobs: list[ClientJob], round_number: int, compiled: Any) -> Any:
        self.chunks.append(len(jobs))
        if len(jobs) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train(jobs, round_number)


train = stacked.trained


def engine_in(room: Room, monkeypatch: pytest.MonkeyPatch, chunk: int, said: list[str]) -> Stacked:
    monkeypatch.setattr(stacked, "trained", room.trained)
    engine = Stacked(chunk, say=said.append)
    engine.meter = room if room.told else None
    return engine


@pytest.mark.parametrize(
    ("room", "told", "chunk", "chunks", "notes"),
    [
        (9, 0, 2, [2, 2, 1], 0),  # as asked
        (9, 9, 2, [2, 3], 0),  # the first chunk is measured, then all the rest together
        (2, 0, 5, [5, 2, 2, 1], 1),  # memory runs out: half, and again from where it was
        (1, 9, 1, [1, 4, 2, 1, 1, 1, 1], 2),  # the meter was wrong
    ],
)
def test_chunks_fit_the_memory(
    jobs: list[ClientJob],
    monkeypatch: pytest.MonkeyPatch,
    room: int,
    told: int,
    chunk: int,
    chunks: list[int],
    notes: int,
) -> None:
    memory, said = Room(room, told), list[str]()
    found = dict(engine_in(memory, monkeypatch, chunk, said).run(jobs, 1))
    assert memory.chunks == chunks
    assert len(said) == notes
    assert all("continuing with" in each for each in said)
    for name, result in Serial().run(jobs, 1):
        mine = flatten(found[name].upload)
        assert all(torch.allclose(value, mine[key], atol=1e-5) for key, value in flatten(result.upload).items())
    assert len(found) == len(jobs)


def test_a_client_that_does_not_fit_alone_is_named(jobs: list[ClientJob], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_in(Room(0, 0), monkeypatch, 4, [])
    with pytest.raises(EngineError, match="client-4: its round alone needs more memory"):
        list(engine.run(jobs, 1))


def test_other_errors_pass(jobs: list[ClientJob], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_jobs: list[ClientJob], _round: int, _compiled: Any) -> Any:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(stacked, "trained", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        list(Stacked(4).run(jobs, 1))


def test_memory_in_words() -> None:
    assert clients_that_fit(1000.0, 100.0) == 8
    assert clients_that_fit(10.0, 100.0) == 1
    assert meter_of("cpu") is None
    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 60)
    assert is_out_of_memory(failed.value)
