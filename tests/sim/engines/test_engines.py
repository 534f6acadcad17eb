"""The engine of processes: the numbers of one process, whatever becomes of a worker; and which engine a run gets."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import get_args
from unittest.mock import Mock

import pytest
import torch

from federation.methods import METHODS
from federation.protocol.messages import Precision
from federation.records import Examples, Tree
from federation.records.tree import flatten, map_tree
from federation.wire import uploads
from sim.data.federated_data import FederatedData
from sim.engines import Engine, Processes, Serial, Stacked, choose, ray_cluster
from sim.engines.fork_map import ATTEMPTS, fork_map
from sim.engines.processes import MAX_STACKED, SMALL_STEP, work_of
from sim.engines.serial import operations_of_a_step
from sim.engines.shared_memory import ALIGNMENT, Packing, read
from sim.errors import EngineError, SettingsError
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, resolve
from tests.sim.engines.local_rounds import FAMILIES, ROUNDING_SWITCHES, all_rounds, first_round, some_rounds
from tests.sim.small_runs import needs_fork, settings_for

ALWAYS = ("fedavg", "fedali", "fedproto", "scaffold")
"""Weights, prototypes beside weights, prototypes alone, and a memory of its own; CI has the others."""


def state_of(simulation: Simulation) -> dict[str, torch.Tensor]:
    clients = {name: client._asdict() for name, client in simulation.clients.items()}
    return flatten({"state": simulation.state, "clients": dict(sorted(clients.items()))})


@needs_fork
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.ci) for name in METHODS]
)
def test_processes_give_the_numbers_of_one_process_bit_for_bit(method: str, few: FederatedData) -> None:
    settings = settings_for(method, batch=8, stragglers=0.5)
    serial, many = (build_simulation(resolve(settings), few) for _ in range(2))
    many.engine, many.evaluator = Processes(2), many.evaluator._replace(workers=2)
    for one, other in zip(serial.run_rounds(), many.run_rounds(), strict=True):
        del one["seconds"], other["seconds"]
        assert one == other
    mine, theirs = state_of(serial), state_of(many)
    assert sorted(mine) == sorted(theirs)
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    ours, others = serial.generalization(), many.generalization()
    assert ours.keys() == others.keys()
    assert all(torch.equal(each["confusion"], others[name]["confusion"]) for name, each in ours.items())


STACKED = {torch.float64: 1e-9, torch.float32: 0.1}
"""Shares of what a round moves. Measured: at most 6e-11 in float64; in float32 1e-4 as a rule and 0.02 where gradients
are rounding, as of moon's first contrast, which is zero. What `ROUNDING_SWITCHES` names is compared in float64 alone:
in float32 a server's Adam carries a switched ReLU to half of a step. An update on other elements is off by 0.9 to 1.4.
"""


LARGE = ("resnet18", "vit_tiny")


SOME_ROUNDS = frozenset(some_rounds())


def where_it_runs(method: str, model: str) -> list[pytest.MarkDecorator]:
    """Leave to CI what takes a large network or is like another, and all but some to the slow tests."""
    if (method, model) not in SOME_ROUNDS:
        return [pytest.mark.slow]
    return [] if method in ALWAYS and model not in LARGE else [pytest.mark.ci]


def test_some_rounds_have_each_method_and_each_family() -> None:
    methods, models = zip(*some_rounds(), strict=True)
    assert (set(methods), set(models)) == (set(METHODS), set(FAMILIES))


@needs_fork
@pytest.mark.parametrize(
    ("method", "model"),
    [pytest.param(*each, marks=where_it_runs(*each)) for each in all_rounds()],
)
def test_a_round_is_the_same_on_every_engine(method: str, model: str) -> None:
    """A first round, in which nobody knows anything, and one after it, from the same state."""
    for dtype, bound in STACKED.items():
        before = first_round(METHODS[method](), model, dtype)
        for _ in range(2):
            serial = before.play(Serial())
            stacked = before.gap(before.play(Stacked(3)), serial)
            print(method, model, dtype, stacked)
            assert stacked.share <= bound or (model in ROUNDING_SWITCHES and dtype == torch.float32), stacked
            before = before.next(serial)
    fork_map = before.gap(before.play(Processes(2)), before.play(Serial()))
    assert fork_map.share == 0.0, "forks compute as one process does, bit for bit"


@needs_fork
@pytest.mark.parametrize("engine", [Serial(), Processes(2), Stacked(3)], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(
    ("method", "model"),
    [
        pytest.param("scaffold", "mnist_cnn", marks=pytest.mark.ci),
        ("ditto", "har_cnn"),
        ("fedali", "har_cnn_alp"),
        pytest.param("fedpac", "vit_tiny", marks=pytest.mark.ci),
    ],
)
def test_a_round_is_the_same_whatever_the_strides(engine: Engine, method: str, model: str) -> None:
    """Nobody promises how a client's, a server's or the examples' tensors lie: from a file, a fork or a product."""
    before = first_round(METHODS[method](), model, torch.float64)
    before = before.next(before.play(Serial()))
    relaid = before.relaid()
    assert not all(value.is_contiguous() for value in flatten(relaid.state).values())
    assert before.gap(relaid.play(engine), before.play(engine)).share <= STACKED[torch.float64]


@pytest.mark.parametrize("precision", get_args(Precision))
def test_what_carries_tensors_keeps_their_order(precision: Precision) -> None:
    """The wire, shared memory and Ray's store, which all hand on bytes, of tensors that do not lie in their order."""
    square = torch.arange(4096.0).view(64, 64)
    tree: Tree = {
        "params": {
            "transposed": square.T,
            "expanded": square[:1].expand(64, 64),
            "part": square[8:, ::2],
            "kernel": torch.arange(6000.0).view(20, 10, 5, 6).contiguous(memory_format=torch.channels_last),
            "narrow": torch.arange(2048.0).as_strided((2048, 1), (1, 9)),
            "integers": square.long().T,
        }
    }
    plain = map_tree(lambda value: value.clone(memory_format=torch.contiguous_format), tree)
    sent, wanted = (uploads.encode(each, {}, {}, precision=precision) for each in (tree, plain))
    assert sent.data == wanted.data
    packing = Packing(tree)
    found = read(packing.layout, torch.frombuffer(bytearray(b"".join(packing.buffers())), dtype=torch.uint8))
    for other in (found, ray_cluster.to_tensors(ray_cluster.to_arrays(tree), "cpu")):
        assert all(torch.equal(value, flatten(other)[name]) for name, value in flatten(plain).items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what its compiler imports
@pytest.mark.parametrize(("method", "model"), [("fedrep", "har_cnn"), ("fedproto", "hart"), ("fedali", "har_cnn_alp")])
def test_a_round_is_the_same_compiled(method: str, model: str) -> None:
    said: list[str] = []
    before = first_round(METHODS[method](), model, torch.float32)
    found = before.gap(before.play(Stacked(3, compiled=True, say=said.append)), before.play(Serial()))
    print(method, model, found)
    assert found.share <= STACKED[torch.float32]
    assert not said, "it was not compiled, so the comparison says nothing"


@needs_fork
def test_processes_stack_clients_where_their_steps_are_small(
    few: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.engines.processes.WORTHWHILE", 1)  # for two
    serial, stacked = (
        build_simulation(resolve(settings_for("fedproto", batch=8, model="har_cnn", optimizer="sgd")), few)
        for _ in range(2)
    )
    said: list[str] = []
    engine = stacked.engine = Processes(1, None, say=said.append)
    for one, other in zip(serial.run_rounds(), stacked.run_rounds(), strict=True):
        assert one["steps"] == other["steps"]
    assert list(engine.together.values()) == [MAX_STACKED]
    assert {size for _, size in engine.warm} == {2}
    assert len(said) == 1
    assert "million operations" in said[0]
    mine, theirs = state_of(serial), state_of(stacked)
    assert sorted(mine) == sorted(theirs)
    assert all(torch.allclose(value, theirs[name], rtol=1e-3, atol=1e-4) for name, value in mine.items())


@needs_fork
def test_a_client_of_few_examples_does_not_make_steps_look_small(
    few: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = build_simulation(resolve(settings_for(batch=16)), few)
    broadcast = simulation.broadcasts_for(["ada"])["ada"]
    ada, bob = (simulation.job_of(name, broadcast, 2) for name in ("ada", "bob"))
    full, short = operations_of_a_step(ada, 1), operations_of_a_step(bob, 1)
    assert short < full
    monkeypatch.setattr("sim.engines.processes.SMALL_STEP", full)
    engine = simulation.engine = Processes(1, None)
    next(simulation.run_rounds())
    assert list(engine.together.values()) == [1]


def test_the_operations_of_a_step_are_those_of_its_products(few: FederatedData) -> None:
    settings = settings_for("fedproto", batch=8)  # which measures prototypes after its steps, too
    simulation = build_simulation(resolve(settings), few)
    job = simulation.job_of("ada", simulation.broadcasts_for(["ada"])["ada"], 2)
    products = sum(2 * 8 * value.numel() for value in simulation.initial.params.values() if value.dim() > 1)
    assert operations_of_a_step(job, 1) >= products


def test_a_method_without_steps_trains_nobody_to_count_them(
    few: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = build_simulation(resolve(settings_for("analytic", model="har_features")), few)
    job = simulation.job_of("ada", simulation.broadcasts_for(["ada"])["ada"], 2)
    monkeypatch.setattr("sim.engines.serial.trained", lambda *_: pytest.fail("a client is trained to be measured"))
    assert operations_of_a_step(job, 1) == 0


def test_chunks_are_alike_in_network_length_and_number(few: FederatedData) -> None:
    simulation = build_simulation(resolve(settings_for()), few)
    job = simulation.job_of("ada", {}, 4)
    engine = Processes(2, 3)
    engine.together = {job.setup: 3}
    jobs = [job._replace(client_id=str(k), max_steps=8 - k) for k in range(1, 8)]
    groups = engine.groups_of(jobs)
    assert [[one.client_id for one in group] for group in groups] == [["5", "6", "7"], ["1", "2"], ["3", "4"]]


def test_clients_are_stacked_where_none_waits_long_for_the_longest(few: FederatedData) -> None:
    simulation = build_simulation(resolve(settings_for(batch=1)), few)
    job = simulation.job_of("ada", {}, 4)
    alike = [job._replace(client_id=str(k), max_steps=8 + k % 2) for k in range(6)]
    one_is_long = [*alike[:5], alike[5]._replace(max_steps=40)]
    for chunk, jobs, sizes in ((None, alike, [6]), (None, one_is_long, [1] * 6), (6, one_is_long, [6])):
        engine = Processes(1, chunk)
        engine.together = {job.setup: MAX_STACKED}
        assert [len(group) for group in engine.groups_of(jobs)] == sizes


@needs_fork
def test_steps_of_few_examples_are_small_that_time_alone(few: FederatedData, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = build_simulation(resolve(settings_for(batch=16)), few)
    job = simulation.job_of("ada", simulation.broadcasts_for(["ada"])["ada"], None)
    one_window = job._replace(examples=Examples(*(part[:1] for part in job.examples)))
    assert operations_of_a_step(job, 1) == 16 * operations_of_a_step(one_window, 1)
    monkeypatch.setattr("sim.engines.processes.PARAMETER_OPERATIONS", 0)
    monkeypatch.setattr("sim.engines.processes.SMALL_STEP", operations_of_a_step(job, 1))
    engine = Processes(1, None)
    nothing = job._replace(examples=Examples(*(part[:0] for part in job.examples)))
    steps = ((nothing, MAX_STACKED), (one_window, MAX_STACKED), (job, 1), (one_window, MAX_STACKED))
    for one, together in steps:  # as new users are scored
        list(engine.run([one], 1))
        assert engine.together[job.setup] == together


@needs_fork
@pytest.mark.parametrize(
    ("bound", "value", "together"),
    [("SMALL_STEP", 1, 1), ("PARAMETER_OPERATIONS", 100, MAX_STACKED), ("PARAMETER_OPERATIONS", SMALL_STEP, 1)],
)
def test_processes_leave_clients_apart_where_a_step_is_large_or_moves_many_parameters(
    bound: str, value: int, together: int, few: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"sim.engines.processes.{bound}", value)
    simulation = build_simulation(resolve(settings_for(batch=8)), few)
    engine = simulation.engine = Processes(1, None)
    next(simulation.run_rounds())
    assert list(engine.together.values()) == [together]


def test_a_tree_is_packed_once_for_a_tensor_that_it_holds_twice() -> None:
    twice = torch.arange(5, dtype=torch.int32)
    tree: Tree = {"a": {"x": twice, "none": {}}, "b": twice, "t": torch.rand(3, 4).T, "flag": torch.tensor(True)}
    packing = Packing(tree)
    assert (len(packing.parts), packing.size) == (3, 3 * ALIGNMENT)
    written = b"".join(packing.buffers())
    assert len(written) == packing.size
    memory = torch.frombuffer(bytearray(written), dtype=torch.uint8)
    found = read(packing.layout, memory)
    assert list(found) == list(tree)
    assert found["a"]["none"] == {}
    assert all(torch.equal(value, flatten(found)[name]) for name, value in flatten(tree).items())
    with pytest.raises(TypeError, match="not float"):
        Packing({"a": 1.0})


@needs_fork
def test_results_outlive_their_worker_and_grow() -> None:
    def work(number: int) -> Tree:
        return {"x": torch.full((10 ** (1 + number % 4),), number), "threads": torch.tensor(torch.get_num_threads())}

    found = dict(fork_map(range(9), work, 2))
    assert sorted(found) == list(range(9))
    assert all(
        (tree["x"] == number).all() and len(tree["x"]) == 10 ** (1 + number % 4) for number, tree in found.items()
    )
    assert {int(tree["threads"]) for tree in found.values()} == {1}


@needs_fork
def test_a_killed_worker_is_replaced_and_its_work_repeated(tmp_path: Path) -> None:
    def work(number: int) -> Tree:
        before = tmp_path / f"{number}"
        if number == 1 and not before.exists():
            before.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"pid": torch.tensor(os.getpid())}

    found = dict(fork_map(range(4), work, 2))
    assert sorted(found) == [0, 1, 2, 3]
    assert os.getpid() not in {int(tree["pid"]) for tree in found.values()}


@needs_fork
def test_work_that_always_kills_its_process_is_given_up_by_name(tmp_path: Path) -> None:
    def work(number: int) -> Tree:
        with (tmp_path / "tries").open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    with pytest.raises(EngineError, match=r"client ada: its process was ended by SIGKILL, 3 times; .* fewer --workers"):
        list(fork_map([0], work, 2, lambda _number: "client ada"))
    assert len((tmp_path / "tries").read_text()) == ATTEMPTS


@needs_fork
@pytest.mark.parametrize("error", [ValueError("no 3"), EOFError("half a file")])  # not the processes' own
def test_an_error_of_the_work_is_told_with_its_name(error: Exception) -> None:
    with pytest.raises(EngineError, match=f"client 3: {type(error).__name__}: {error}"):
        list(fork_map([3], Mock(side_effect=error), 1, lambda number: f"client {number}"))


@needs_fork
def test_full_memory_in_a_fork_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(
        EngineError, match=r"client ada: memory: no room for 4,096 more .* train fewer clients per round"
    ):
        list(fork_map([0], lambda _number: {"x": torch.ones(3)}, 1, lambda _number: "client ada"))


@needs_fork
def test_leaving_early_ends_the_workers() -> None:
    def work(number: int) -> Tree:
        return {"pid": torch.tensor(os.getpid())}

    results = fork_map(range(100), work, 2)
    _, tree = next(results)
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(tree["pid"]), 0)


def test_the_longest_client_comes_first(few: FederatedData) -> None:
    simulation = build_simulation(resolve(settings_for("fedrep", epochs=2)), few)
    ada, bob = (simulation.job_of(name, {}, steps) for name, steps in (("ada", 100), ("bob", 1)))
    assert (work_of(ada), work_of(bob)) == (20 * 3, 12 * 3)  # FedRep trains its head an epoch more
    assert work_of(ada._replace(max_steps=0)) == 0


@needs_fork
@pytest.mark.parametrize(
    ("options", "clients", "name", "reason"),
    [
        ({"engine": "auto", "workers": 4}, 3, "processes", "4 cores, 3 clients per round"),
        ({"engine": "auto", "workers": 1}, 3, "serial", "one core or one client per round"),
        ({"engine": "auto", "workers": 4}, 1, "serial", "one core or one client per round"),
        ({"engine": "auto", "device": "cuda"}, 3, "stacked", "on cuda, as many clients at a time as fit"),
        ({"engine": "processes", "workers": 4}, 9, "processes", "as asked, 4 of them"),
        ({"engine": "stacked", "chunk": 5}, 9, "stacked", "as asked, 5 clients at a time"),
        ({"engine": "serial"}, 9, "serial", "as asked"),
    ],
)
def test_the_choice_says_why(options: dict[str, object], clients: int, name: str, reason: str) -> None:
    choice = choose(settings_for(**options), clients)
    assert (choice.name, choice.reason) == (name, reason)


def test_forks_on_a_gpu_are_refused() -> None:
    with pytest.raises(SettingsError, match="forks cannot share a GPU; use stacked"):
        choose(settings_for(engine="processes", device="cuda"), 3)
