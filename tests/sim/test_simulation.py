"""The rounds of a run: engines agree, a resumed run goes on to the same numbers, scores are what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from federation.errors import SettingsError as MethodError
from federation.method import trains
from federation.methods import METHODS
from federation.plan import TrainingConfig
from federation.records import Client, Examples
from federation.records.tree import flatten
from federation.tasks.classification import Classification
from federation.tasks.task import Statistics
from federation.training import client_round
from federation.training.client_round import steps_of
from federation.training.schedule import Schedule, schedule
from gaitway.tasks.classification import confusion
from sim.data.federated_data import FederatedData
from sim.engines import Stacked
from sim.errors import RunDirectoryError, SettingsError
from sim.presets.preset import UNSCREENED
from sim.rounds import checkpoint
from sim.rounds.collection import steps_done, stragglers
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, load_data, resolve, run
from sim.scores.evaluation import ClientModel, spread, total
from tests.sim.small_runs import first, in_double, settings_for

MIXED = {"model": "har_cnn+hart", "set": ["model.blocks=1", "model.mlp=16", "model.head_width=8"]}
FEDERATED = [name for name, method in METHODS.items() if not method.traits.pools_data]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FederatedData:
    return load_data(resolve(settings_for()), None, tmp_path_factory.mktemp("cache"), None)


@pytest.fixture(scope="module")
def few(data: FederatedData) -> FederatedData:
    """Two clients with few examples, unlike in number."""
    return first(data, {"ada": 20, "bob": 12})


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def played(simulation: Simulation) -> list[dict[str, Any]]:
    records = list(simulation.run_rounds())
    for record in records:
        del record["seconds"]
    return records


def same(one: Simulation, other: Simulation, **tolerance: float) -> None:
    """Compare the server's state, and every client's own model and memory."""
    trees = [{"state": each.state, **{n: c._asdict() for n, c in each.clients.items()}} for each in (one, other)]
    mine, theirs = (flatten(tree) for tree in trees)
    assert sorted(mine) == sorted(theirs)
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")


# In float64, so that what is left of rounding is far below any real difference: FedPR's distance to a prototype has a
# gradient of length 1 however near it is, and turns float32's rounding round by round into digits that are seen.
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in ("fedavg", "fedali") else pytest.mark.ci) for name in METHODS]
)
def test_engines_give_the_same_numbers(method: str, few: FederatedData) -> None:
    # SGD: Adam would blow the rounding of gradients that are truly zero up to whole steps
    settings = settings_for(method, optimizer="sgd", lr=0.05, batch=8, stragglers=0.5)
    serial, stacked = (build_simulation(resolve(settings), in_double(few)) for _ in range(2))
    stacked.engine = Stacked(chunk=2)
    for one, other in zip(played(serial), played(stacked), strict=True):
        loss = one.pop("train_loss")  # None where nobody trains
        assert other.pop("train_loss") == (loss if loss is None else pytest.approx(loss, rel=1e-10))
        assert one.pop("diagnostics", None) == other.pop("diagnostics", None)  # five figures
        assert one == other
    same(serial, stacked, atol=1e-10, rtol=1e-10)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("method", ["fedproto", "local"])
def test_engines_agree_on_mixed_networks(method: str, data: FederatedData) -> None:
    settings = settings_for(method, optimizer="sgd", lr=0.05, batch=8, **MIXED)
    four = in_double(first(data, {"ada": 20, "bob": 12}))
    serial, stacked = (build_simulation(resolve(settings), four) for _ in range(2))
    stacked.engine = Stacked(chunk=2)
    assert [serial.network_of[name].model.name for name in ("ada", "bob")] == ["har_cnn", "hart"]
    played(serial), played(stacked)
    same(serial, stacked, atol=1e-10, rtol=1e-10)
    assert serial.clients["ada"].params.keys() != serial.clients["bob"].params.keys()


@pytest.mark.ci
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_goes_on_to_the_same_numbers(method: str, few: FederatedData, tmp_path: Path) -> None:
    settings = settings_for(method, batch=8)
    whole, begun, resumed = (build_simulation(resolve(settings), few) for _ in range(3))
    records = played(whole)
    next(begun.run_rounds())
    checkpoint.save(tmp_path / "checkpoint.bin", begun.checkpoint())
    resumed.restore(checkpoint.load(tmp_path / "checkpoint.bin", "cpu"))
    assert played(resumed) == records[1:]
    same(whole, resumed, atol=0, rtol=0)
    for mine, theirs in zip(
        *(each.best_round.selections(each.clients).values() for each in (whole, resumed)), strict=True
    ):
        assert mine is not None
        assert theirs is not None
        assert mine.to_json() == theirs.to_json()
        ours, others = (flatten({n: c._asdict() for n, c in chosen.clients.items()}) for chosen in (mine, theirs))
        assert all(torch.equal(value, others[name]) for name, value in ours.items())


@pytest.mark.parametrize("classes", ["all", "own"])
@pytest.mark.parametrize("method", ["fedproto", "fedpr", "fedpac"])
def test_clients_are_scored_by_the_prototypes_that_the_round_made(
    method: str, classes: str, few: FederatedData, tmp_path: Path
) -> None:
    """From the first round on, and those too that were not in the round's cohort; as numpy finds the nearest."""
    options = ["predict_by=prototype", f"predict_classes={classes}"]
    settings = settings_for(method, rounds=4, batch=8, clients_per_round=1, set=options)
    simulation, resting, made = build_simulation(resolve(settings), few), 0, dict[int, torch.Tensor]()
    for record in simulation.run_rounds():
        made[record["round"]] = simulation.state["prototypes"]
        assert set(simulation.best_round.statistics) == set(simulation.clients)
        for name, client in simulation.clients.items():
            wanted = _nearest(simulation, name, client, classes)
            assert np.array_equal(simulation.best_round.statistics[name]["confusion"], wanted), (record["round"], name)
            resting += name not in record["cohort"]
    assert resting
    again = build_simulation(resolve(settings), few)
    checkpoint.save(tmp_path / "checkpoint.bin", simulation.checkpoint())
    again.restore(checkpoint.load(tmp_path / "checkpoint.bin", "cpu"))
    for each in (simulation, again):
        kept = [client.memory["prototypes"] for client in each.best_round.best.clients.values()]
        assert kept
        assert all(torch.equal(one, made[each.best_round.best.round]) for one in kept)


def _nearest(simulation: Simulation, name: str, client: Client, classes: str) -> np.ndarray:
    test, state = simulation.data.clients[name].test, simulation.state
    with torch.no_grad():
        features = simulation.setup.network.evaluate(client.params, client.buffers, test.x).features.numpy()
    distances = ((features[:, None] - state["prototypes"].numpy()) ** 2).sum(-1)
    distances[:, state["known"].numpy() == 0] = np.inf
    if classes == "own":
        distances[:, ~np.isin(np.arange(distances.shape[1]), simulation.data.clients[name].train.y)] = np.inf
    return confusion(test.y.numpy(), distances.argmin(1), distances.shape[1])


def test_a_run_with_mixed_networks_keeps_each_clients_own(few: FederatedData, tmp_path: Path) -> None:
    from models.checkpoint import load_checkpoint

    settings = settings_for("fedproto", **MIXED)
    run(settings, tmp_path, data=few)
    again = build_simulation(resolve(settings), few)
    again.restore(checkpoint.load(tmp_path / "checkpoint.bin", "cpu"))
    for name, kind in (("ada", "har_cnn"), ("bob", "hart")):
        module, info = load_checkpoint(tmp_path / "models" / f"{name}.safetensors")
        assert info.model == kind
        best = again.best_round.best.clients[name]
        assert all(torch.equal(value, best.params[key]) for key, value in module.named_parameters())


@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if not each().mixes_architectures])
def test_networks_are_mixed_only_where_no_parameter_is_averaged(method: str, few: FederatedData) -> None:
    with pytest.raises(SettingsError, match=r"needs one model for all clients, har_cnn \+ hart came; mix them with"):
        build_simulation(resolve(settings_for(method, **MIXED)), few)


def test_mixed_networks_agree_in_the_length_of_features() -> None:
    with pytest.raises(
        SettingsError, match=r"features of one length, these have: har_cnn 16, hart 32; set model.N.KEY"
    ):
        settings_for("fedproto", model="har_cnn+hart", set=["model.2.feature_dim=32"])


def test_scaffold_wants_sgd(few: FederatedData) -> None:
    with pytest.raises(MethodError, match="not off adam's: choose sgd"):
        build_simulation(resolve(settings_for("scaffold", optimizer="adam")), few)


# ---- who trains, in which order, and how much


def test_cohorts_and_orders_are_the_same_for_every_method(few: FederatedData, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[tuple[str, int], np.ndarray] = {}

    def drawing(*arguments: Any, **names: Any) -> Schedule:
        made = schedule(*arguments, **names)
        drawn[arguments[3].client_id, arguments[3].round_number] = made.rows[
            :1
        ]  # FedPAC has one epoch more, for the head
        return made

    monkeypatch.setattr(client_round, "schedule", drawing)
    seen = {}
    for method in FEDERATED:
        drawn.clear()
        settings = settings_for(method, clients_per_round=1, sampling="examples", stragglers=1.0, batch=8)
        cohorts = [record["cohort"] for record in played(build_simulation(resolve(settings), few))]
        seen[method] = cohorts, {key: rows.tolist() for key, rows in drawn.items() if key[1]}
    lost = {name for name in FEDERATED if not METHODS[name].traits.uses_partial_work}
    for method, (cohorts, orders) in seen.items():
        # where partial work is dropped every round fails, and so does not count
        assert cohorts == seen["fedavg"][0][: len(cohorts)], method
        if trains(METHODS[method](), TrainingConfig(classes=2)):  # else there is no order, and no straggler
            assert orders == ({} if method in lost else seen["fedprox"][1]), method


@pytest.mark.parametrize(
    ("every", "last", "expected"), [(10, 1, [5]), (10, 3, [3, 4, 5]), (2, 2, [2, 4, 5]), (1, 1, [1, 2, 3, 4, 5])]
)
def test_the_last_rounds_are_evaluated_too(every: int, last: int, expected: list[int], few: FederatedData) -> None:
    settings = settings_for("fedavg", rounds=5, eval_every=every, eval_last=last)
    lines = played(build_simulation(resolve(settings), few))
    assert [line["round"] for line in lines if line["evaluated"]] == expected


def test_clients_are_sampled_by_their_examples(data: FederatedData) -> None:
    sizes = {"ada": 90, "bob": 2}
    settings = settings_for(
        "local", rounds=40, clients_per_round=1, sampling="examples", eval_every=40, set=[*UNSCREENED]
    )
    simulation = build_simulation(resolve(settings), first(data, sizes))
    cohorts = [simulation_cohort(simulation, number) for number in range(1, 41)]
    assert cohorts.count(("ada",)) > 35


def simulation_cohort(simulation: Simulation, number: int) -> tuple[str, ...]:
    from sim.rounds.collection import draw_cohort

    return draw_cohort(simulation.setup, simulation.rounds, 0.0, simulation.data.train_sizes, number).clients


def test_stragglers_are_so_many_and_do_a_part_of_their_steps() -> None:
    cohort = [f"c{k}" for k in range(10)]
    rounds = [stragglers(0.8, cohort, seed=1, round_number=number) for number in range(200)]
    assert {len(drawn) for drawn in rounds} == {8}
    parts = [part for drawn in rounds for part in drawn.values()]
    assert abs(np.mean(parts) - 0.5) < 0.02  # F′ ~ U(0, F)
    assert min(parts) >= 0
    assert max(parts) < 1
    assert [steps_done(part, 10) for part in (0.0, 0.05, 0.19, 0.99)] == [1, 1, 1, 9]


@pytest.mark.parametrize(("method", "partial", "kept"), [("fedavg", "method", 1), ("fedprox", "method", 2),
                                                        ("fedavg", "use", 2), ("fedprox", "drop", 1)])  # fmt: skip
def test_partial_work_is_dropped_or_used(method: str, partial: str, kept: int, few: FederatedData) -> None:
    given = {"epochs": 5, "batch": 4, "set": [f"rounds.partial_work={partial}"]}
    simulation = build_simulation(resolve(settings_for(method, stragglers=0.5, **given)), few)
    record = next(simulation.run_rounds())
    whole = {name: steps_of(simulation.setup, size) for name, size in few.train_sizes.items()}
    cut = [name for name, steps in record["steps"].items() if steps < whole[name]]
    assert len(cut) == 1
    assert len(simulation.clients) == kept
    assert record["lost"] == (cut if kept == 1 else [])


def test_a_round_that_loses_everybody_keeps_the_state(few: FederatedData) -> None:
    simulation = build_simulation(resolve(settings_for(stragglers=1.0, epochs=9)), few)
    before = simulation.state
    record = next(simulation.run_rounds())
    assert simulation.state is before
    assert record["failed"] == "quorum not reached: got 0 updates, 1 are needed"
    assert record["train_loss"] is None
    assert record["personalization"] is None
    assert record["bytes_up"] == 0


def test_a_run_in_which_everybody_was_always_lost_has_a_summary(few: FederatedData, tmp_path: Path) -> None:
    summary = run(settings_for("local", stragglers=1.0, epochs=9), tmp_path, data=few)
    assert summary["personalization"] is summary["global"] is None


# ---- scores and bytes


def test_one_seed_repeats_a_run_and_another_does_not(few: FederatedData) -> None:
    def losses(seed: int) -> list[float]:
        return [record["train_loss"] for record in build_simulation(resolve(settings_for(seed=seed)), few).run_rounds()]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_scores_of_a_run_are_those_of_its_models(few: FederatedData, tmp_path: Path) -> None:
    settings = settings_for("fedali")
    summary = run(settings, tmp_path / "run", data=few)
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    means = [record["personalization"]["macro_f1"]["mean"] for record in records]
    assert summary["best_round"] == int(np.argmax(means)) + 1
    assert summary["personalization"]["macro_f1"]["mean"] == max(means)
    validated = [record["validation"]["macro_f1"]["mean"] for record in records]
    for chosen, number in ((summary["validation"], int(np.argmax(validated)) + 1), (summary["last"], len(records))):
        assert chosen["round"] == number
        assert chosen["personalization"] == records[number - 1]["personalization"]
        assert chosen["global"] == records[number - 1]["global"]
    again = build_simulation(resolve(settings), few)
    again.restore(checkpoint.load(tmp_path / "run" / "checkpoint.bin", "cpu"))
    general = again.generalization()
    task = again.task
    assert spread(task, general) == summary["generalization"]
    assert sum(int(each["confusion"].sum()) for each in general.values()) == len(general) * len(few.union_test().y)
    assert task.metrics(total(again.global_statistics()))["macro_f1"] == summary["last"]["global"]["macro_f1"]


class Scripted:
    """Scores every client's model by a script: how many of ten examples are right, by round."""

    RIGHT: ClassVar = {"test": [2, 9, 4, 3], "validation": [2, 5, 8, 3]}

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.evaluate_per_client = simulation, simulation.evaluator.evaluate_per_client

    def evaluate_clients(
        self, models: Mapping[str, ClientModel], examples: Mapping[str, Examples]
    ) -> dict[str, Statistics]:
        tests = self.simulation.data.test
        kind = "test" if all(part is tests[name] for name, part in examples.items()) else "validation"
        right = self.RIGHT[kind][self.simulation.round_number - 1]
        return {name: {"confusion": torch.tensor([[right, 10 - right], [10 - right, right]])} for name in models}


def test_three_rounds_are_chosen_each_with_its_own_models(few: FederatedData, tmp_path: Path) -> None:
    """Round 2 is best by test, 3 by validation, 4 is the last: all differ, and each keeps the models that it had."""
    settings = settings_for("fedavg", rounds=4, batch=8)
    begun, resumed = (build_simulation(resolve(settings), few) for _ in range(2))
    models: list[dict[str, torch.Tensor]] = []
    for simulation in (begun, resumed):
        simulation.evaluator = Scripted(simulation)
    for _ in zip(range(3), begun.run_rounds(), strict=False):
        models.append(flatten({name: dict(client.params) for name, client in begun.clients.items()}))
    checkpoint.save(tmp_path / "checkpoint.bin", begun.checkpoint())
    resumed.restore(checkpoint.load(tmp_path / "checkpoint.bin", "cpu"))
    list(resumed.run_rounds())
    models.append(flatten({name: dict(client.params) for name, client in resumed.clients.items()}))
    for name, number in {"best": 2, "validation": 3, "last": 4}.items():
        chosen = resumed.best_round.selections(resumed.clients)[name]
        assert chosen is not None
        assert chosen.round == number
        assert chosen.record["personalization"]["accuracy"]["mean"] == pytest.approx([0.2, 0.9, 0.4, 0.3][number - 1])
        kept = flatten({name: dict(client.params) for name, client in chosen.clients.items()})
        assert all(torch.equal(value, models[number - 1][key]) for key, value in kept.items())
    assert not any(torch.equal(models[1][key], models[2][key]) for key in models[1])


def test_centralized_trains_one_model_on_everybodys_examples(few: FederatedData, tmp_path: Path) -> None:
    summary = run(settings_for("centralized"), tmp_path, data=few)
    assert summary["personalization"] is None
    assert summary["generalization"] is None
    assert summary["clients"] == 2
    assert summary["global"]["macro_f1"] is not None
    scores = json.loads((tmp_path / "client_scores.json").read_text())
    means = [scores[name]["global"]["macro_f1"] for name in few.clients]
    assert summary["global_per_client"]["macro_f1"]["mean"] == pytest.approx(np.mean(means))
    record = json.loads((tmp_path / "rounds.jsonl").read_text().splitlines()[0])
    assert record["cohort"] == ["everyone"]
    confusion = json.loads((tmp_path / "confusion.json").read_text())
    assert np.sum(confusion["global"]) == len(few.union_test().y)


def test_the_union_of_test_sets_is_copied_once(few: FederatedData) -> None:
    assert few.union_test() is few.union_test()


def test_bytes_are_what_the_method_shares(few: FederatedData) -> None:
    def travelled(method: str) -> tuple[int, int]:
        record = list(build_simulation(resolve(settings_for(method)), few).run_rounds())[-1]
        return record["bytes_up"], record["bytes_down"]

    initial = build_simulation(resolve(settings_for()), few).initial
    parameters = sum(value.nbytes for value in initial.params.values())
    known = 6 * 16 * 4 + 6 * 4  # six prototypes of 16 float32, and which of them there are
    assert travelled("local") == (0, 0)
    assert travelled("fedavg") == (parameters, parameters)
    up = parameters + 8 * 16 * 4
    assert travelled("fedali") == (up, up + 2 * 4)  # β's factor, to train and to serve with
    assert travelled("fedproto") == (known, known)
    assert travelled("fesem") == (parameters, parameters)
    # each client its own head, and no other's
    assert travelled("fedpac")[1] == parameters + known


def test_spread_is_over_clients_with_examples() -> None:
    task = Classification()
    perfect, useless = ({"confusion": torch.tensor(matrix)} for matrix in ([[2, 0], [0, 2]], [[0, 2], [2, 0]]))
    spread_ = spread(task, {"a": perfect, "b": useless, "c": task.no_statistics(2)})
    assert spread_ is not None
    assert spread_["accuracy"] == {"mean": 0.5, "std": 0.5}
    assert spread(task, {"c": task.no_statistics(2)}) is None


# ---- the directory


def test_a_directory_keeps_to_its_settings(few: FederatedData, tmp_path: Path) -> None:
    run(settings_for(rounds=1), tmp_path, data=few)
    with pytest.raises(RunDirectoryError, match=r"with training\.lr = 0\.002, this one has 0\.5; choose another --out"):
        run(settings_for(rounds=1, lr=0.5), tmp_path, data=few)
    run(settings_for(rounds=1, threads=2, workers=2, client_store="disk"), tmp_path, data=few)


@pytest.mark.parametrize(("method", "whose"), [("fedali", "the server's state lacks"), ("fedavg", "client ada lacks")])
def test_a_run_of_the_earlier_alp_is_not_gone_on_with(
    method: str, whose: str, few: FederatedData, tmp_path: Path
) -> None:
    """Its clients had no factor of β, and FedAli's server counted no rounds."""
    settings = settings_for(method, rounds=2)
    begun = build_simulation(resolve(settings), few)
    next(begun.run_rounds())
    saved = begun.checkpoint()
    clients = {
        name: client._replace(buffers={n: v for n, v in client.buffers.items() if not n.endswith("beta_scale")})
        for name, client in saved.client_sets["clients"].items()
    }
    state = {name: value for name, value in saved.state.items() if name != "rounds"}
    client_sets = dict.fromkeys(saved.client_sets, clients)
    checkpoint.save(tmp_path / "checkpoint.bin", saved._replace(state=state, client_sets=client_sets))
    with pytest.raises(RunDirectoryError, match=rf"is of an earlier version: {whose} .*residual.*choose another --out"):
        run(settings, tmp_path, data=few)


def test_a_damaged_checkpoint_is_refused(few: FederatedData, tmp_path: Path) -> None:
    run(settings_for(rounds=1), tmp_path, data=few)
    path = tmp_path / "checkpoint.bin"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(RunDirectoryError, match=r"checkpoint.bin is damaged .* delete it"):
        run(settings_for(rounds=1), tmp_path, data=few)
