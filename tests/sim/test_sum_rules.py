"""Rules over sums in the simulation: every attack passes the bounds, and a robust rule uses nobody who is hostile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from federation.aggregation import ridge
from federation.aggregation.ridge import implausibility
from federation.records import Update
from federation.tasks.task import LabelledFeatures
from sim.attacks import REPEATED, Attack
from sim.data.federated_data import FederatedData
from sim.experiment.options import AttackKind
from sim.presets.preset import UNSCREENED
from sim.rounds import checkpoint
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, load_data, resolve
from tests.sim.small_runs import first, settings_for

ON_SUMS: tuple[AttackKind, ...] = ("noise", "sign_flip", "scaling", "label_flip", "class_swap", "collusion")
CLASSES, D = 3, 20


def updates() -> list[Update]:
    found = []
    for k in range(6):
        draw = torch.Generator().manual_seed(k)
        classes = torch.arange(90) % CLASSES
        centres = torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(99))
        features = torch.randn(90, D, generator=draw) + 2 * centres[classes]
        rows = LabelledFeatures(features, classes, torch.ones(90))
        sums = ridge.travelling(ridge.added(ridge.empty_ridge_sums(CLASSES, D, torch.zeros(())), rows, 4.0))
        found.append(Update(f"c{k}", 90, 0, sums))
    return found


@pytest.mark.parametrize("kind", ON_SUMS)
def test_an_attack_is_within_the_bounds_and_changes_the_hostile_alone(kind: AttackKind) -> None:
    """Else the table of docs/robustness.md would say what the bounds do, and not what the rules do."""
    honest = updates()
    sent = Attack(kind, frozenset({"c1", "c4"})).on_updates(honest, {}, 0, 1)
    for mine, theirs in zip(honest, sent, strict=True):
        is_same = all(torch.equal(mine.tensors[name], theirs.tensors[name]) for name in mine.tensors)
        assert is_same == (mine.client_id not in ("c1", "c4"))
        claimed = 90 * (REPEATED if kind == "scaling" else 1)
        assert implausibility(theirs.tensors, claimed, 4.0) == ""


def test_other_attacks_are_refused() -> None:
    with pytest.raises(ValueError, match="'examples': expected noise, collusion, label_flip"):
        Attack("examples", frozenset({"c1"})).on_updates(updates(), {}, 0, 1)


@pytest.fixture(scope="module")
def five() -> FederatedData:
    options = {"model": "har_features", "method": "analytic", "normalization": "none"}
    read = load_data(resolve(settings_for(**options)), None, None, None)
    cut = first(read, dict.fromkeys(read.clients, 30))
    one, statistics = next(iter(cut.clients.values())), next(iter(cut.statistics.values()))
    clients = dict.fromkeys("abcde", one)
    return FederatedData(cut.labels, clients, dict.fromkeys(clients, statistics), cut.split_leaks)


def simulated(data: FederatedData, *options: str) -> Simulation:
    given = [*UNSCREENED, "model.cosines=8", *options]
    settings = settings_for(model="har_features", method="analytic", normalization="none", rounds=2, set=given)
    return build_simulation(resolve(settings), data)


def test_a_robust_rule_uses_the_honest_and_a_resumed_run_goes_on_with_them(five: FederatedData, tmp_path: Path) -> None:
    simulation = simulated(five, "aggregation=median", "rounds.clients_per_round=3")
    simulation.attack = Attack("label_flip", frozenset("b"))
    records = simulation.run_rounds()
    next(records)
    checkpoint.save(tmp_path / "saved", simulation.checkpoint())
    list(records)
    honest = [tree for name, tree in simulation.contributions.trees.items() if name != "b"]
    assert all(torch.equal(simulation.state["sums"][name], value) for name, value in ridge.total_of(honest).items())
    again = simulated(five, "aggregation=median", "rounds.clients_per_round=3")
    again.attack = simulation.attack
    saved = checkpoint.load(tmp_path / "saved", "cpu")
    assert saved is not None
    again.restore(saved)
    list(again.run_rounds())
    assert all(torch.equal(again.state["sums"][name], simulation.state["sums"][name]) for name in ("gram", "moment"))
