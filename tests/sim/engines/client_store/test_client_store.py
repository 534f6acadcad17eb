"""Clients' models on the disk: the same numbers as in memory, places that are used again, errors where it is full."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from federation.methods import METHODS as EVERY_METHOD
from federation.records.tree import flatten
from sim.data.federated_data import FederatedData
from sim.engines import Processes, Stacked, client_store
from sim.engines.client_store import DiskStore, MemoryStore, StoreDemand, choose, client_bytes, remembered
from sim.engines.shared_memory import PAGE
from sim.errors import RunDirectoryError, SettingsError
from sim.rounds import checkpoint
from sim.rounds.checkpoint import Checkpoint
from sim.rounds.simulation import Simulation
from sim.run import Places, build_simulation, resolve, run
from tests.sim.small_runs import Reporter, needs_fork, settings_for

METHODS = [
    "moon",
    "scaffold",
    "ditto",
    "fedali",
    *(pytest.param(name, marks=pytest.mark.ci) for name in ("fedavg", "fedrep", "fedproto", "fesem")),
]
"""With the model before, variates, a second model, buffers; without memory, a private head, own uploads, centres."""


def on_disk(simulation: Simulation, folder: Path) -> Simulation:
    simulation.client_store = DiskStore(folder)
    return simulation


def played(simulation: Simulation) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in simulation.run_rounds()]


def bits(simulation: Simulation) -> dict[str, bytes]:
    """Everything that a simulation keeps, as bytes."""
    chosen = simulation.best_round.selections(simulation.clients)
    parts = {"clients": simulation.clients, **{n: c.clients for n, c in chosen.items() if c}}
    kept = {part: {name: client._asdict() for name, client in each.items()} for part, each in parts.items()}
    flat = flatten({"state": simulation.state, **kept})
    return {name: value.numpy().tobytes() for name, value in flat.items()}


# ---- numbers


@pytest.mark.parametrize("method", METHODS)
def test_a_run_has_the_same_bits_on_the_disk_as_in_memory(method: str, few: FederatedData, tmp_path: Path) -> None:
    settings = settings_for(method, batch=8, rounds=3, stragglers=0.5)
    memory, disk = build_simulation(resolve(settings), few), on_disk(build_simulation(resolve(settings), few), tmp_path)
    assert played(memory) == played(disk)
    assert bits(memory) == bits(disk)
    ours, theirs = memory.generalization(), disk.generalization()
    assert all(torch.equal(each["confusion"], theirs[name]["confusion"]) for name, each in ours.items())


@pytest.mark.ci
@pytest.mark.parametrize("engine", [Stacked(2), pytest.param(Processes(2), marks=needs_fork)])
def test_other_engines_train_clients_from_the_disk(engine: Any, few: FederatedData, tmp_path: Path) -> None:
    settings = settings_for("scaffold", batch=8, rounds=3)
    memory, disk = build_simulation(resolve(settings), few), on_disk(build_simulation(resolve(settings), few), tmp_path)
    memory.engine = disk.engine = engine
    assert played(memory) == played(disk)
    assert bits(memory) == bits(disk)


# ---- nowhere


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("fedavg", "har_cnn"),
        pytest.param("fedprox", "har_cnn", marks=pytest.mark.ci),
        pytest.param("fedadam", "har_cnn", marks=pytest.mark.ci),
        pytest.param("fedatt", "har_cnn", marks=pytest.mark.ci),
        ("fedproto_margin", "har_cnn"),
        ("fedali", "har_cnn_alp"),
    ],
)
def test_where_all_is_sent_forgotten_clients_change_nothing(
    method: str, model: str, few: FederatedData, tmp_path: Path
) -> None:
    settings = settings_for(method, model=model, batch=8, rounds=3)  # without ALP they leave nothing on the client
    states = []
    for where in ("memory", "none"):
        run(settings.model_copy(update={"client_store": where}), tmp_path / where, data=few)
        saved = checkpoint.load(tmp_path / where / "checkpoint.bin", "cpu")
        assert saved is not None
        assert list(saved.client_sets["clients"]) == ([] if where == "none" else ["ada", "bob"])
        states.append({name: value.numpy().tobytes() for name, value in flatten(saved.state).items()})
    assert states[0] == states[1]
    ours, theirs = (json.loads((tmp_path / where / "summary.json").read_text()) for where in ("none", "memory"))
    assert ours["last"]["global"] == theirs["last"]["global"]
    assert (ours["personalization"], ours["generalization"]) == (None, None)
    assert theirs["personalization"] is not None


def test_a_run_that_forgets_goes_on_to_the_same_numbers(few: FederatedData, tmp_path: Path) -> None:
    def stop(kind: str, what: Any) -> None:
        if (kind, what) == ("round", 2):
            raise KeyboardInterrupt

    settings = settings_for(model="har_cnn", batch=8, rounds=3, client_store="none")
    run(settings, tmp_path / "whole", data=few)
    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "stopped", [Reporter(stop)], data=few, places=Places(checkpoint_every_s=0.0))
    run(settings, tmp_path / "stopped", data=few)
    ours, theirs = (tmp_path / folder / "models" / "global.safetensors" for folder in ("stopped", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert len((tmp_path / "stopped" / "rounds.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("method", "options", "why"),
    [
        ("ditto", {}, r"its earlier state \(parameter personal:convolutions"),
        ("scaffold", {}, r"its earlier state \(memory variate/convolutions"),
        ("moon", {}, r"its earlier state \(memory trained"),
        ("fedavg", {"model": "har_cnn_alp"}, r"its earlier state \(buffer alp.local_prototypes"),
        ("fedavg", {"precision": "int8"}, r"its earlier state \(its residual"),
        ("local", {}, "local has no server model"),
        ("fesem", {}, "fesem has no server model"),
    ],
)
def test_clients_that_would_be_missed_are_not_forgotten(
    method: str, options: dict[str, Any], why: str, few: FederatedData, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=f"--client-store none: .*{why}.*; use --client-store auto, memory or disk"):
        run(settings_for(method, client_store="none", **{"model": "har_cnn", **options}), tmp_path / "run", data=few)
    assert list((tmp_path / "run").iterdir()) == []


def test_no_other_methods_clients_can_be_forgotten(few: FederatedData) -> None:
    forgets = set()
    for method in EVERY_METHOD:
        simulation = build_simulation(
            resolve(settings_for(method, model="har_cnn_alp" if method == "fedali" else "har_cnn")), few
        )
        setup, initial = simulation.setup, simulation.initial
        if remembered(setup, initial, setup.method.broadcast(simulation.state, "ada")) is None:
            forgets.add(method)
    server_side = {"fedavgm", "fedadam", "fedyogi", "fesem"}
    assert forgets == {"fedavg", "fedprox", "fedatt", "fedproto_margin", "fedali", "centralized", *server_side}


# ---- places


def test_rounds_take_no_more_disk_than_present_and_chosen_models(few: FederatedData, tmp_path: Path) -> None:
    simulation = on_disk(build_simulation(resolve(settings_for(rounds=6, batch=8)), few), tmp_path)
    taken = []
    for _ in simulation.run_rounds():
        taken.append(simulation.client_store.arena.bytes_taken)
    each = taken[0] // 2
    assert each % PAGE == 0
    # two clients now, two at each of the chosen rounds, one that has just come; and a block of the file system's
    assert max(taken) < 8 * each


# ---- kill and resume


@pytest.mark.ci
@needs_fork
def test_a_run_on_the_disk_that_was_killed_goes_on_to_the_same_numbers(few: FederatedData, tmp_path: Path) -> None:
    def lines(folder: str) -> list[dict[str, Any]]:
        records = [json.loads(line) for line in (tmp_path / folder / "rounds.jsonl").read_text().splitlines()]
        return [{key: value for key, value in record.items() if key != "seconds"} for record in records]

    def kill(kind: str, what: Any) -> None:
        if kind == "client" and (tmp_path / "killed" / "checkpoint.bin").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    run(settings_for("ditto", rounds=3, client_store="memory"), tmp_path / "whole", data=few)
    settings = settings_for("ditto", rounds=3, client_store="disk")
    if not (child := os.fork()):
        run(settings, tmp_path / "killed", [Reporter(kill)], data=few, places=Places(checkpoint_every_s=0.0))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {
        "checkpoint.bin", "clients.json", "config.json", "plan.json", "rounds.jsonl",
    }  # fmt: skip
    run(settings, tmp_path / "killed", data=few)
    assert lines("killed") == lines("whole")
    for name in ("ada", "bob", "global"):
        mine, theirs = (tmp_path / folder / "models" / f"{name}.safetensors" for folder in ("killed", "whole"))
        assert mine.read_bytes() == theirs.read_bytes()


def test_a_checkpoint_writes_a_model_once_that_is_best_and_present(few: FederatedData, tmp_path: Path) -> None:
    simulation = on_disk(build_simulation(resolve(settings_for("local", rounds=1)), few), tmp_path)
    played(simulation)
    checkpoint.save(tmp_path / "checkpoint.bin", simulation.checkpoint())
    saved = checkpoint.load(tmp_path / "checkpoint.bin", "cpu")
    assert saved is not None
    assert saved.same["best"] == {"ada": "clients", "bob": "clients"}
    again = on_disk(build_simulation(resolve(settings_for("local", rounds=1)), few), tmp_path)
    again.restore(saved)
    assert bits(again) == bits(simulation)
    assert all(again.best_round.best.clients.stored[name] is again.clients.stored[name] for name in ("ada", "bob"))


def test_a_client_that_is_damaged_is_found_when_it_is_read(tmp_path: Path) -> None:
    client = checkpoint.Client({"w": torch.zeros(3)}, {}, {})
    path = tmp_path / "checkpoint.bin"
    checkpoint.save(path, Checkpoint(1, {"params": {}}, {"clients": {"ada": client}}, {"clients": {}}, {}))
    data = bytearray(path.read_bytes())
    data[data.index(b"params/w")] ^= 1
    path.write_bytes(data)
    saved = checkpoint.load(path, "cpu")
    assert saved is not None
    with pytest.raises(RunDirectoryError, match=r"checkpoint.bin is damaged .*delete it"):
        saved.client_sets["clients"]["ada"]


def test_a_checkpoint_of_an_earlier_version_is_refused_in_words(tmp_path: Path) -> None:
    for earlier in (b"gaitway2" + bytes(40), b'{"round_number": 4}'):
        (tmp_path / "checkpoint.bin").write_bytes(earlier)
        with pytest.raises(RunDirectoryError, match=r"checkpoint.bin is damaged .*; delete it to begin the run again"):
            checkpoint.load(tmp_path / "checkpoint.bin", "cpu")


# ---- the choice


@pytest.mark.parametrize(
    ("where", "clients", "kind", "reason"),
    [
        ("memory", 10**6, MemoryStore, "as asked"),
        ("disk", 1, DiskStore, "as asked, in "),
        ("auto", 10, MemoryStore, "at most 1.5 GB of models, 8.0 GB of memory are free"),
        ("auto", 1000, DiskStore, "at most 150.0 GB of models, 8.0 GB of memory are free: in "),
    ],
)
def test_the_choice_says_why(
    where: Any, clients: int, kind: type, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_store, "free_memory", lambda _device: 8 * 10**9)
    federation = StoreDemand(clients, clients, rounds=9, client_bytes=50_000_000)
    chosen = choose(where, "cpu", federation, tmp_path)
    assert isinstance(chosen.store, kind)
    assert chosen.reason.removesuffix(str(tmp_path)) == reason


def test_only_clients_that_will_have_trained_are_counted() -> None:
    assert StoreDemand(clients=1000, cohort=10, rounds=1, client_bytes=7).peak_bytes == 7 * (10 + 10)
    assert StoreDemand(clients=1000, cohort=10, rounds=30, client_bytes=7).peak_bytes == 7 * (2 * 300 + 10)
    assert StoreDemand(clients=100, cohort=10, rounds=30, client_bytes=7).peak_bytes == 7 * (2 * 100 + 10)
    assert StoreDemand(clients=100, cohort=10, rounds=30, client_bytes=7, chosen=2).peak_bytes == 7 * (3 * 100 + 10)


@pytest.mark.parametrize(("precision", "times"), [("lossless", 1), ("float16", 1), ("int8", 2)])
def test_residuals_are_counted(
    precision: str, times: int, few: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[StoreDemand] = []

    def chosen(where: Any, device: str, federation: StoreDemand, folder: Path) -> Any:
        counted.append(federation)
        return choose(where, device, federation, folder)

    monkeypatch.setattr("sim.engines.client_store.choose", chosen)
    settings = settings_for(rounds=1, precision=precision)
    run(settings, tmp_path, data=few)
    assert counted[0].client_bytes == times * client_bytes(build_simulation(resolve(settings), few).initial)


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_store, "CGROUP", tmp_path)
    whole = client_store.free_memory("cpu")
    assert whole > 0
    (tmp_path / "memory.max").write_text("max\n")
    assert client_store.free_memory("cpu") > 5_000_000
    (tmp_path / "memory.max").write_text("7000000\n")
    (tmp_path / "memory.stat").write_text("anon 2000000\nfile 4000000\n")
    assert client_store.free_memory("cpu") == 5_000_000


def test_a_run_tells_where_its_models_are(few: FederatedData, tmp_path: Path) -> None:
    told: list[Any] = []

    def report(kind: str, what: Any) -> None:
        if kind == "client_store":
            told.append(what)

    (tmp_path / "store").mkdir()
    run(
        settings_for(rounds=1, client_store="disk"),
        tmp_path / "run",
        [Reporter(report)],
        data=few,
        places=Places(client_store=tmp_path / "store"),
    )
    assert told == [("disk", f"as asked, in {tmp_path / 'store'}")]


# ---- parts


@needs_fork
def test_clients_in_parts_have_the_same_bits(few: FederatedData, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for("scaffold", batch=8)
    whole, parts = (build_simulation(resolve(settings), few) for _ in range(2))
    records = played(whole)
    monkeypatch.setattr("sim.engines.fork_map.PART", 1)
    parts.evaluator = parts.evaluator._replace(workers=2)
    assert played(parts) == records
    assert bits(parts) == bits(whole)
