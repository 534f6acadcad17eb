"""What `--analyses` records: against definitions in numpy, and a logistic regression that is worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from federation.methods import METHODS
from federation.plan import ModelSpec, RoundSettings, TrainingConfig
from federation.records import Examples
from federation.records.tree import flatten
from federation.tasks.classification import Classification
from federation.training.forward import functional, initial_client, network
from federation.training.local_round import Setup
from models.model import Model, ModelOutput
from sim.data.federated_data import ClientData, FederatedData
from sim.engines import Serial
from sim.errors import SettingsError
from sim.experiment.networks import Architecture
from sim.reports.figures.run_figures import MEASURES, analyses, measured_rounds
from sim.results.run_directory import RunDirectory, round_model_file
from sim.rounds import checkpoint
from sim.rounds.analyses import (
    MANY_CLIENTS,
    SAMPLED_CLIENTS,
    BatchLosses,
    LossGradient,
    analyse_round,
    batches_of,
    dissimilarity,
    measured_clients,
)
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, resolve, run
from sim.scores.evaluation import Evaluator
from tests.federation.by_hand import EXAMPLES, OneWeight, sigmoid
from tests.sim.reports.analysis.test_margin import by_definition
from tests.sim.small_runs import settings_for


class Linear(Model):
    """Logits (B, 2) of x (B, 2) by a matrix of zeros, so that each class has probability ½."""

    def __init__(self) -> None:
        super().__init__(2)
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        return ModelOutput(x, self.head(x))


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_loss_and_gradient_by_hand(batch: int) -> None:
    # ∂L/∂W = mean of (½ − [class])·x: ½((−½, ½)ᵀ(2, 0) + (½, −½)ᵀ(0, 4)); both classes have probability ½
    model = Linear()
    examples = Examples(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 1]))
    losses = BatchLosses(Classification(), functional(model, training=False), initial_client(model), examples, batch)
    loss, gradient = losses.gradient()
    assert gradient.tolist() == [-0.5, 1.0, 0.5, -1.0]
    assert loss == losses.mean() == pytest.approx(math.log(2))


def test_dissimilarity_is_the_definition() -> None:
    vectors = torch.randn(4, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    counts, losses = [5, 1, 9, 3], [0.5, 2.0, 0.1, 1.0]
    found = dissimilarity(zip(counts, map(LossGradient, losses, vectors), strict=True))
    gradients = vectors.numpy()
    mean = np.average(gradients, axis=0, weights=counts)
    assert found.value == pytest.approx(((gradients - mean) ** 2).sum(1).mean(), rel=1e-12)
    assert found.overall == pytest.approx(mean @ mean, rel=1e-12)
    assert found.loss == pytest.approx(np.average(losses, weights=counts))


def test_of_many_clients_a_sample_is_measured() -> None:
    sizes = {f"client-{k:04d}": 5 for k in range(MANY_CLIENTS)}
    chosen = measured_clients(sizes, 3)
    assert len(chosen) == SAMPLED_CLIENTS
    assert set(chosen) < sizes.keys()
    assert chosen == measured_clients(sizes, 3) != measured_clients(sizes, 4)
    few = dict(list(sizes.items())[1:])
    assert measured_clients(few, 3) == list(few)


# ---- in the rounds of a run


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_each_round_by_hand(method: str) -> None:
    """Logits (w·x, 0): ∇L_k = mean of (σ(w·x) − [y = 0])·x; ada has (1, class 0), bob twice (2, class 1).

    One of the two trains in a round, and both are compared at the server's model after it.
    """
    module = OneWeight()
    setup = Setup(METHODS[method](), TrainingConfig(classes=2, feature_dim=1, optimizer="sgd", lr=1.0), network(module))
    initial = setup.method.init_client_state(initial_client(module), setup.training)
    simulation = Simulation(
        networks=[Architecture(ModelSpec(name="dense"), setup, initial)],
        rounds=RoundSettings(rounds=3, clients_per_round=1),
        data=FederatedData(("a", "b"), {name: ClientData(own, own) for name, own in EXAMPLES.items()}, {}, False),
        engine=Serial(),
        evaluator=Evaluator(batch=1),
    )
    w = 0.0
    for record in simulation.run_rounds():
        (trained,) = record["cohort"]
        w -= sigmoid(w) - 1 if trained == "ada" else 2 * sigmoid(2 * w)  # one full step of rate 1
        ada, bob = sigmoid(w) - 1, 2 * sigmoid(2 * w)
        mean = (ada + 2 * bob) / 3
        found = analyse_round(simulation, record)
        assert found["clients"] == 2
        assert found["gradient_dissimilarity"] == pytest.approx(((ada - mean) ** 2 + (bob - mean) ** 2) / 2, rel=1e-4)
        assert found["gradient_square"] == pytest.approx(mean**2, rel=1e-4)
        losses = -math.log(sigmoid(w)), -math.log(1 - sigmoid(2 * w))
        assert found["server_loss"] == pytest.approx((losses[0] + 2 * losses[1]) / 3, rel=1e-4)


def analysed(**options: Any) -> dict[str, Any]:
    return {"model": "har_cnn", "analyses": "michieli", **options}


def lines(path: Path) -> list[dict[str, float] | None]:
    return [json.loads(line).get("analyses") for line in (path / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedper", "fedproto_margin", "centralized"])
def test_the_margin_of_every_method_is_the_definition(method: str, few: FederatedData) -> None:
    """Of float64 means of the features that each of the round's clients has under the model that it has trained."""
    simulation = build_simulation(resolve(settings_for(method, **analysed())), few)
    for record in simulation.run_rounds():
        clients = {name: simulation.data.clients[name].train for name in record["cohort"]}
        prototypes = np.zeros((len(clients), 6, 16))
        counts = np.zeros((len(clients), 6))
        for k, (name, examples) in enumerate(clients.items()):
            client = simulation.clients[name]
            features = simulation.setup.network.evaluate(client.params, client.buffers, examples.x, None).features
            for c in set(examples.y.tolist()):
                own = features[examples.y == c].double().numpy()
                prototypes[k, c], counts[k, c] = own.mean(0), len(own)
        found = analyse_round(simulation, record)["aggregate_margin"]
        assert found == pytest.approx(by_definition(prototypes, counts), rel=1e-4)
        if method == "fedproto_margin":  # whose server has the prototypes that clients send
            assert found == pytest.approx(record["diagnostics"]["aggregate_margin"], rel=1e-4)


@pytest.mark.ci
def test_it_is_off_by_default_and_changes_nothing_else(few: FederatedData, tmp_path: Path) -> None:
    """Dropout, ALP's moving prototypes and the forks of processes included."""
    for name, options in {"off": {}, "on": {"analyses": "michieli"}}.items():
        settings = settings_for("fedali", set=["model.dropout=0.3"], engine="processes", workers=2, **options)
        run(settings, tmp_path / name, data=few)
    assert lines(tmp_path / "off") == [None, None]
    assert not round_model_file(tmp_path / "off", 2).exists()
    assert all(line and line["gradient_dissimilarity"] > 0 for line in lines(tmp_path / "on"))
    mine, theirs = (checkpoint.load(tmp_path / name / "checkpoint.bin", "cpu") for name in ("off", "on"))
    assert mine is not None
    assert theirs is not None
    for name, value in flatten(mine.state).items():
        assert torch.equal(value, flatten(theirs.state)[name])


def test_only_evaluated_rounds_are_analysed_and_leave_their_models(few: FederatedData, tmp_path: Path) -> None:
    settings = settings_for(**analysed(rounds=3, eval_every=2))
    run(settings, tmp_path, data=few)
    assert [bool(line) for line in lines(tmp_path)] == [False, True, True]
    assert [round_model_file(tmp_path, number).is_file() for number in (1, 2, 3)] == [False, True, True]
    last, server = round_model_file(tmp_path, 3), tmp_path / "models" / "global.safetensors"
    assert last.read_bytes() == server.read_bytes()
    seconds = json.loads((tmp_path / "summary.json").read_text())["seconds"]
    assert seconds["analyses"] > 0


def test_the_report_draws_what_was_measured(few: FederatedData, tmp_path: Path) -> None:
    run(settings_for(model="har_cnn"), tmp_path / "off", data=few)
    run(settings_for(**analysed()), tmp_path / "on", data=few)
    assert analyses(RunDirectory(tmp_path / "off")) is None
    figure = analyses(RunDirectory(tmp_path / "on"))
    assert figure is not None
    for axes, name in zip(figure.axes, MEASURES, strict=True):
        drawn = dict(zip(*axes.get_lines()[0].get_data(), strict=True))
        assert drawn == measured_rounds(RunDirectory(tmp_path / "on"), name)


@pytest.mark.parametrize(
    ("method", "measured"),
    [
        ("fedavg", {"server_loss", "gradient_dissimilarity", "aggregate_margin"}),
        ("centralized", {"server_loss", "aggregate_margin"}),  # one client is its own mean
        ("fedper", {"aggregate_margin"}),
    ],
)
def test_what_a_method_has_nothing_of_is_left_out(method: str, measured: set[str], few: FederatedData) -> None:
    simulation = build_simulation(resolve(settings_for(method, **analysed())), few)
    record = next(simulation.run_rounds())
    found = analyse_round(simulation, record)
    assert {name for name in MEASURES if found[name] is not None} == measured
    failed = analyse_round(simulation, {**record, "failed": "too few updates"})
    assert failed["aggregate_margin"] is None, "of which no update was used"


def test_a_baseline_has_no_network(few: FederatedData) -> None:
    given = {"model": "har_features", "rounds": 1, "baseline": "ridge", "normalization": "none"}
    with pytest.raises(SettingsError, match="--analyses michieli: --baseline ridge has no network"):
        build_simulation(resolve(settings_for("centralized", analyses="michieli", **given)), few)


def test_large_images_come_in_small_batches() -> None:
    """Of 3 × 512 × 1024 numbers a batch holds two, whatever it is asked for."""
    images = Examples(torch.zeros(5, 3, 512, 1024, dtype=torch.uint8), torch.arange(5))
    assert [len(part.y) for part in batches_of(images, 256)] == [2, 2, 1]
    vectors = Examples(torch.zeros(5, 60), torch.arange(5))
    assert [len(part.y) for part in batches_of(vectors, 3)] == [3, 2]
