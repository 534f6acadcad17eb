"""The server's rules in the simulation: off unless they are asked for, and then against each attack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from federation.records import Update
from federation.records.tree import map_tree
from sim.attacks import CLAIMED, Attack
from sim.data.federated_data import FederatedData
from sim.experiment.options import AttackKind
from sim.presets import PRESETS
from sim.presets.preset import UNSCREENED
from sim.rounds import checkpoint
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, load_data, resolve
from sim.scores.records import RoundRecord
from tests.sim.small_runs import first, settings_for

ON = ["rounds.max_weight_ratio=2", "rounds.norm_factor=10"]
HOSTILE = "c"


@pytest.fixture(scope="module")
def three() -> FederatedData:
    read = load_data(resolve(settings_for()), None, None, None)
    cut = first(read, dict.fromkeys(read.clients, 12))
    one = next(iter(cut.clients.values()))
    statistics = next(iter(cut.statistics.values()))
    clients = dict.fromkeys(("a", "b", HOSTILE), one)
    return FederatedData(cut.labels, clients, dict.fromkeys(clients, statistics), cut.split_leaks)


def attacked(kind: AttackKind, data: FederatedData, *more: str) -> Simulation:
    attack = Attack(kind, frozenset([HOSTILE]))
    simulation = build_simulation(
        resolve(settings_for(model="har_cnn", batch=4, set=[*UNSCREENED, *more])), attack.on_data(data)
    )
    simulation.attack = attack
    return simulation


def distance(simulation: Simulation, honest: Simulation) -> float:
    """How far one server's parameters are from another's."""
    pairs = zip(simulation.state["params"].values(), honest.state["params"].values(), strict=True)
    return float(sum(((mine - theirs) ** 2).sum() for mine, theirs in pairs)) ** 0.5


def test_noise_is_left_out_and_written_down_where_the_rule_is_asked_for(three: FederatedData) -> None:
    honest, off, on = (attacked("label_flip", three), attacked("noise", three), attacked("noise", three, *ON))
    honest.attack = None
    list(honest.run_rounds())
    assert all("excluded" not in record for record in off.run_rounds())
    for record in on.run_rounds():
        said = RoundRecord.model_validate(record)
        assert list(said.excluded) == [HOSTILE]
        assert "over 10 times the median" in said.excluded[HOSTILE]
        assert said.capped == {}
    assert distance(off, honest) > 50
    assert distance(on, honest) < 2


def test_a_claim_of_examples_is_capped_where_the_rule_is_asked_for(three: FederatedData) -> None:
    on = attacked("examples", three, *ON)
    assert [record["capped"] for record in on.run_rounds()] == [{HOSTILE: 24}] * 2


def test_a_run_starts_with_the_rules_of_a_server_and_every_preset_without() -> None:
    rounds = settings_for().rounds
    assert (rounds.max_weight_ratio, rounds.norm_factor) == (2.0, 10.0)
    for name, preset in PRESETS.items():
        assert list(preset.own_options["set"][:2]) == list(UNSCREENED), name


@pytest.mark.parametrize("kind", ["sign_flip", "scaling", "examples"])
def test_changes_of_hostile_clients_by_hand(kind: AttackKind) -> None:
    start = {"w": torch.tensor([1.0, 1.0])}
    update = Update("z", 7, 1, {"params": {"w": torch.tensor([2.0, 0.0])}, "counts": torch.ones(2)})
    (sent,) = Attack(kind, frozenset("z")).on_updates([update], {"z": {"params": start}}, 0, 1)
    factor = 10.0 if kind == "scaling" else -1.0
    assert sent.tensors["params"]["w"].tolist() == [1.0 + factor, 1.0 - factor]
    assert sent.examples == (CLAIMED if kind == "examples" else 7)
    assert sent.tensors["counts"] is update.tensors["counts"]


def test_noise_has_a_thousand_times_the_norm() -> None:
    start = {"w": torch.zeros(1000), "v": torch.zeros(3)}
    update = Update("z", 7, 1, {"params": map_tree(lambda value: value + 0.1, start)})
    attack = Attack("noise", frozenset("z"))
    one, again, later = (
        attack.on_updates([update], {"z": {"params": start}}, 0, number)[0].tensors["params"] for number in (1, 1, 2)
    )
    norm = float(sum((value.double() ** 2).sum() for value in one.values())) ** 0.5
    assert norm == pytest.approx(1000 * 0.1 * 1003**0.5, rel=1e-5)
    assert torch.equal(one["w"], again["w"])
    assert not torch.equal(one["w"], later["w"])


def test_a_little_is_enough_in_numpy() -> None:
    """n = 10, m = 3: s = 3 supporters, z = Φ⁻¹(4/7)."""
    values = np.linspace(-1.0, 1.0, 10)
    updates = [Update(str(n), 1, 1, {"params": {"w": torch.tensor([v])}}) for n, v in enumerate(values)]
    sent = Attack("little_is_enough", frozenset("012")).on_updates(updates, {}, 0, 1)
    expected = values[3:].mean() - 0.18001237 * values[3:].std(ddof=1)
    assert [float(one.tensors["params"]["w"]) for one in sent[:3]] == pytest.approx([expected] * 3)
    assert sent[3:] == updates[3:]


def test_classes_are_flipped_for_the_hostile_alone(three: FederatedData) -> None:
    flipped = Attack("label_flip", frozenset([HOSTILE])).on_data(three)
    assert torch.equal(flipped.clients[HOSTILE].train.y, len(three.labels) - 1 - three.clients[HOSTILE].train.y)
    assert flipped.clients["a"] is three.clients["a"]
    assert torch.equal(flipped.clients[HOSTILE].test.y, three.clients[HOSTILE].test.y)


def test_a_client_left_out_again_and_again_is_not_invited_any_more_as_on_a_server(
    three: FederatedData, tmp_path: Path
) -> None:
    def begun() -> Simulation:
        return attacked("noise", three, *ON, "rounds.rounds=4", "rounds.max_refused_updates=2")

    whole, half, resumed = begun(), begun(), begun()
    records = list(whole.run_rounds())
    assert [HOSTILE in record["cohort"] for record in records] == [True, True, False, False]
    playing = half.run_rounds()
    next(playing), next(playing)
    checkpoint.save(tmp_path / "checkpoint.bin", half.checkpoint())
    resumed.restore(checkpoint.load(tmp_path / "checkpoint.bin", "cpu"))
    assert [record["cohort"] for record in resumed.run_rounds()] == [record["cohort"] for record in records[2:]]
    assert distance(whole, resumed) == 0.0


def test_failed_rounds_do_not_count_and_a_run_that_only_fails_ends(three: FederatedData) -> None:
    def strict(*more: str) -> Simulation:
        return attacked("noise", three, *ON, "rounds.minimum_clients=3", *more)

    records = list(strict("rounds.max_failed_rounds=3", "rounds.max_refused_updates=null").run_rounds())
    assert [record["round"] for record in records] == [1, 2, 3]
    assert records[-1]["paused"] == "3 rounds in a row have failed"
    assert all(RoundRecord.model_validate(record).excluded for record in records)
    # once the culprit is out, all who are left are two: fewer than the three that a round needs
    records = list(strict("rounds.max_failed_rounds=4", "rounds.max_refused_updates=2").run_rounds())
    assert [len(record["cohort"]) for record in records] == [3, 3, 2, 2]
    whole = attacked("noise", three, *ON, "rounds.minimum_clients=2", "rounds.max_refused_updates=2")
    assert [len(record["cohort"]) for record in whole.run_rounds()] == [3, 3]
