"""Gradient dissimilarity against the definition, and against a logistic regression that is worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from federation.methods import METHODS
from federation.plan import ModelSpec, RoundSettings, TrainingConfig
from federation.records import Examples
from federation.tasks.classification import Classification
from federation.training.forward import functional, initial_client, network
from federation.training.local_round import Setup
from federation.tree import flatten
from models.model import Model, ModelOutput
from sim import checkpoint
from sim.data.federated_data import ClientData, FederatedData
from sim.engines import Serial
from sim.errors import SettingsError
from sim.evaluation import Evaluator, dissimilarity, mean_gradient
from sim.networks.architectures import Architecture
from sim.reports.analysis.finished import FinishedRun
from sim.reports.analysis.gradients import gradients
from sim.reports.figures.run_figures import gradient_dissimilarity
from sim.results.run_directory import RunDirectory
from sim.run import build_simulation, load_data, run
from sim.simulation import Simulation
from tests.federation.by_hand import EXAMPLES, OneWeight, sigmoid
from tests.sim.small_runs import first, settings_for


class Linear(Model):
    """Logits (B, 2) of x (B, 2) by a matrix of zeros, so that each class has probability ½."""

    def __init__(self) -> None:
        super().__init__(2)
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        return ModelOutput(x, self.head(x))


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_the_gradient_by_hand(batch: int) -> None:
    # ∂L/∂W = mean of (½ − [class])·x: ½((−½, ½)ᵀ(2, 0) + (½, −½)ᵀ(0, 4))
    model = Linear()
    examples = Examples(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 1]))
    evaluate = functional(model, training=False)
    found = mean_gradient(Classification(), evaluate, initial_client(model), examples, batch)
    assert found.tolist() == [-0.5, 1.0, 0.5, -1.0]


def test_dissimilarity_is_the_definition() -> None:
    vectors = torch.randn(4, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    counts = [5, 1, 9, 3]
    found = dissimilarity(zip("abcd", counts, vectors, strict=True))
    mean = (torch.tensor(counts)[:, None] * vectors).sum(0) / sum(counts)
    assert found.value == pytest.approx(float(((vectors - mean) ** 2).sum(1).mean()), rel=1e-12)
    assert found.overall == pytest.approx(float(mean @ mean), rel=1e-12)
    assert found.clients["b"] == pytest.approx(float(vectors[1] @ vectors[1]))


def test_clients_that_agree_have_none() -> None:
    same = torch.full((5,), 0.3, dtype=torch.float64)
    assert dissimilarity([("a", 3, same), ("b", 7, same)]).value == pytest.approx(0, abs=1e-15)


# ---- in the rounds of a run


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_each_round_by_hand(method: str) -> None:
    """Logits (w·x, 0): ∇L_k = mean of (σ(w·x) − [y = 0])·x; ada has (1, class 0), bob twice (2, class 1)."""
    module = OneWeight()
    setup = Setup(METHODS[method](), TrainingConfig(classes=2, feature_dim=1, optimizer="sgd", lr=1.0), network(module))
    initial = setup.method.init_client_state(initial_client(module), setup.training)
    simulation = Simulation(
        networks=[Architecture(ModelSpec(name="dense"), setup, initial)],
        rounds=RoundSettings(rounds=3),
        data=FederatedData(("a", "b"), {name: ClientData(own, own) for name, own in EXAMPLES.items()}, {}, False),
        engine=Serial(),
        evaluator=Evaluator(batch=1),
        compares_gradients=True,
    )
    w = 0.0
    for record in simulation.run_rounds():
        ada, bob = sigmoid(w) - 1, 2 * sigmoid(2 * w)
        mean = (ada + 2 * bob) / 3
        expected = {"value": ((ada - mean) ** 2 + (bob - mean) ** 2) / 2, "overall": mean**2}
        assert record["gradient_dissimilarity"] == pytest.approx(expected, rel=1e-12)
        w -= mean  # one full step of rate 1 each, averaged by examples


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> FederatedData:
    """Two clients with few examples, unlike in number."""
    return first(load_data(settings_for(), None, tmp_path_factory.mktemp("cache"), None), {"ada": 20, "bob": 12})


def lines(path: Path) -> list[dict[str, float] | None]:
    return [json.loads(line).get("gradient_dissimilarity") for line in (path / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.ci
def test_it_is_off_by_default_and_changes_nothing_else(few: FederatedData, tmp_path: Path) -> None:
    """Dropout, ALP's moving prototypes and the forks of processes included."""
    for name, options in {"off": {}, "on": {"gradient_dissimilarity": True}}.items():
        settings = settings_for("fedali", set=["model.dropout=0.3"], engine="processes", workers=2, **options)
        run(settings, few, tmp_path / name)
    assert lines(tmp_path / "off") == [None, None]
    assert all(line and line["value"] > 0 and line["overall"] > 0 for line in lines(tmp_path / "on"))
    mine, theirs = (checkpoint.load(tmp_path / name / "checkpoint.bin", "cpu") for name in ("off", "on"))
    assert mine is not None
    assert theirs is not None
    for name, value in flatten(mine.state).items():
        assert torch.equal(value, flatten(theirs.state)[name])


def test_a_round_measures_what_the_analysis_of_the_run_before_it_does(few: FederatedData, tmp_path: Path) -> None:
    two, three = (settings_for(model="har_cnn", rounds=n, gradient_dissimilarity=True) for n in (2, 3))
    run(two, few, tmp_path / "two")
    run(three, few, tmp_path / "three")
    section = gradients(FinishedRun(RunDirectory(tmp_path / "two"), two, few))
    third = lines(tmp_path / "three")[2]
    assert third is not None
    assert section.values["dissimilarity"] == pytest.approx(third["value"], rel=1e-6)
    assert section.values["overall_square"] == pytest.approx(third["overall"], rel=1e-6)
    assert set(section.figures) == {"rounds"}


def test_only_the_rounds_clients_are_compared(few: FederatedData) -> None:
    simulation = build_simulation(settings_for(clients_per_round=1, gradient_dissimilarity=True), few)
    for record in simulation.run_rounds():
        assert record["gradient_dissimilarity"]["value"] == pytest.approx(0, abs=1e-12)  # one client is its own mean


def test_a_resumed_run_goes_on_to_the_same_numbers(few: FederatedData, tmp_path: Path) -> None:
    settings = settings_for(model="har_cnn", rounds=3, gradient_dissimilarity=True)
    whole, begun, resumed = (build_simulation(settings, few) for _ in range(3))
    measured = [record["gradient_dissimilarity"] for record in whole.run_rounds()]
    next(begun.run_rounds())
    checkpoint.save(tmp_path / "checkpoint.bin", begun.checkpoint())
    resumed.restore(checkpoint.load(tmp_path / "checkpoint.bin", "cpu"))
    assert [record["gradient_dissimilarity"] for record in resumed.run_rounds()] == measured[1:]


def test_the_report_draws_it_where_it_was_measured(few: FederatedData, tmp_path: Path) -> None:
    run(settings_for(model="har_cnn"), few, tmp_path / "off")
    run(settings_for(model="har_cnn", gradient_dissimilarity=True), few, tmp_path / "on")
    assert gradient_dissimilarity(RunDirectory(tmp_path / "off")) is None
    figure = gradient_dissimilarity(RunDirectory(tmp_path / "on"))
    assert figure is not None
    drawn, overall = (list(line.get_ydata()) for line in figure.axes[0].get_lines())
    assert [{"value": v, "overall": o} for v, o in zip(drawn, overall, strict=True)] == lines(tmp_path / "on")


@pytest.mark.parametrize(
    "method", [name for name, each in METHODS.items() if each.pools_data or not each().has_global_model]
)
def test_methods_without_a_model_of_all_clients_say_so(method: str, few: FederatedData) -> None:
    settings = settings_for(method, gradient_dissimilarity=True)
    why = "has one client" if METHODS[method].pools_data else "no model that all clients start a round from"
    with pytest.raises(SettingsError, match=f"--gradient-dissimilarity: {method} .*{why}"):
        build_simulation(settings, few)
