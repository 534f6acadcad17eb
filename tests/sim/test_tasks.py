"""A federation learns to segment generated images, on every engine; scores are the task's, and so are refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from federation.methods import method_from_json
from federation.plan import ModelSpec, RoundSettings, TrainingConfig
from federation.records import Examples
from federation.tasks.masked_reconstruction import MaskedReconstruction
from federation.tasks.segmentation import Segmentation
from federation.tasks.task import Task
from federation.training.forward import initial_client, initial_model, network
from federation.training.local_round import Setup
from models import build
from sim.cli.app import app
from sim.data.federated_data import ClientData, FederatedData
from sim.engines import Engine, Processes, Serial, Stacked
from sim.engines.client_store import Clients
from sim.experiment.networks import Architecture
from sim.rounds.simulation import Simulation
from sim.scores.evaluation import BestRound, Evaluator
from tests.federation.tiny_networks import WIDTH, TinySegmenter
from tests.sim.small_runs import DATA, needs_fork

COLOURS = np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.5], [-1.0, 1.0, 0.5]])
"""Of the background and of two kinds of squares, under noise of deviation 0.7."""
CHANCE = 1 / 5
"""Mean IoU of guessing one of three equally frequent classes: each is hit in 1 of 9 pixels, and is in 5 of 9."""


def images(count: int, kinds: tuple[int, ...], seed: int, scale: int = 1) -> Examples:
    """Images (n, 3, S, S), S = 16 · scale, with three squares of these kinds; their outlines are ignored."""
    random = np.random.default_rng(seed)
    targets = np.zeros((count, 16 * scale, 16 * scale), np.int64)
    for image in targets:
        for kind in random.choice(kinds, 3):
            top, left, size = *random.integers(0, 10 * scale, 2), random.integers(4 * scale, 6 * scale + 1)
            image[top : top + size, left : left + size] = 255
            image[top + 1 : top + size - 1, left + 1 : left + size - 1] = kind
    clean = COLOURS[np.where(targets == 255, 0, targets)].transpose(0, 3, 1, 2)
    x = clean + 0.7 * random.normal(size=clean.shape)
    return Examples(torch.tensor(x, dtype=torch.float32), torch.tensor(targets))


def simulation(
    method: str,
    engine: Engine | None = None,
    evaluator: Evaluator | None = None,
    built: Callable[[], nn.Module] = lambda: TinySegmenter(3, alp=False),
    scale: int = 1,
    lr: float = 0.02,
    **rounds: Any,
) -> Any:
    """Four clients, two of which know only one kind of squares each."""
    kinds = {"ada": (1,), "bob": (2,), "cyd": (1, 2), "dan": (1, 2)}
    clients = {
        name: ClientData(images(24 + 4 * i, of, i, scale), images(8, of, 100 + i, scale))
        for i, (name, of) in enumerate(kinds.items())
    }
    training = TrainingConfig(classes=3, feature_dim=WIDTH, batch_size=8, lr=lr)
    module = initial_model(built, 0)
    setup = Setup(method_from_json({"name": method}), training, network(module), Segmentation(background=0))
    initial = setup.method.init_client_state(initial_client(module), training)
    return Simulation(
        networks=[Architecture(ModelSpec(name="tiny"), setup, initial)],
        rounds=RoundSettings(**{"rounds": 6, **rounds}),
        data=FederatedData(("nothing", "red", "green"), clients, {}, False),
        engine=engine or Serial(),
        evaluator=evaluator or Evaluator(batch=16),
    )


@pytest.mark.parametrize(
    "method", ["fedavg", *(pytest.param(each, marks=pytest.mark.ci) for each in ("fedprox", "fedproto_margin"))]
)
def test_a_federation_learns_to_segment(method: str) -> None:
    records = list(simulation(method, rounds=10).run_rounds())
    first, last = (record["global"]["mean_iou"] for record in (records[0], records[-1]))
    assert last > 3 * CHANCE
    assert last > first
    assert records[-1]["global"]["pixel_accuracy"] > last
    assert records[-1]["train_loss"] < records[0]["train_loss"]


@pytest.mark.ci
def test_the_small_segmenter_of_the_table_learns() -> None:
    # its finest maps have a quarter of the sides: squares of 2 to 4 pixels would be one cell of them, these are two
    def built() -> nn.Module:
        sizes = {"input_shape": [3, 32, 32], "channels": [16, 16, 24, 24], "feature_dim": WIDTH}
        return build("segmenter_small", classes=3, **sizes)

    records = list(simulation("fedavg", rounds=10, built=built, scale=2, lr=0.01).run_rounds())
    assert records[-1]["global"]["mean_iou"] > 3 * CHANCE
    assert records[-1]["global"]["mean_iou"] > records[0]["global"]["mean_iou"]


@pytest.mark.ci
@needs_fork
@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fedpr"])
def test_engines_agree_on_images(method: str) -> None:
    engines: list[tuple[Engine, Evaluator]] = [
        (Serial(), Evaluator(16)),
        (Stacked(chunk=3), Evaluator(16, chunk=3)),
        (Processes(2), Evaluator(16, workers=2)),
    ]
    played = [simulation(method, *each, rounds=2) for each in engines]
    scores = [[record["personalization"] for record in each.run_rounds()] for each in played]
    general = [each.generalization() for each in played]
    for found, union in zip(scores[1:], general[1:], strict=True):
        for one, other in zip(scores[0], found, strict=True):
            assert one["mean_iou"] == pytest.approx(other["mean_iou"], abs=2e-3)
        for name, each in union.items():
            pixels = sum(int((client.test.y != 255).sum()) for client in played[0].data.clients.values())
            assert int(each["confusion"].sum()) == int(general[0][name]["confusion"].sum()) == pixels


@pytest.mark.parametrize(("task", "chosen"), [(Segmentation(), 2), (MaskedReconstruction(), 3)])
def test_a_round_is_chosen_by_the_tasks_metric_and_its_direction(task: Task, chosen: int) -> None:
    best = BestRound(task)
    for number, score in enumerate((0.3, 0.5, 0.1, 0.5), 1):
        scores = {task.primary_metric: {"mean": score, "std": 0.0}}
        record = {"personalization": scores, "global_per_client": None, "validation": None}
        best.update(number, record, Clients(), {})
    assert best.best.round == chosen
    assert best.selections(Clients())["validation"] is None


def test_a_checkpoint_brings_statistics_back_bit_for_bit() -> None:
    begun = simulation("fedavg", rounds=1)
    list(begun.run_rounds())
    begun.best_round.statistics["eve"] = {"squared_error": torch.tensor(1 / 3, dtype=torch.float64)}
    saved = json.loads(json.dumps(begun.best_round.to_json()))
    again = BestRound.from_json(begun.task, saved, begun.best_round.best.clients, begun.best_round.validated.clients)
    assert again.to_json() == begun.best_round.to_json()
    for name, each in begun.best_round.statistics.items():
        for key, value in each.items():
            torch.testing.assert_close(again.statistics[name][key], value, rtol=0, atol=0)


def test_clients_json_counts_images_by_the_class_that_they_are_dealt_by() -> None:
    begun = simulation("fedavg")
    counts = begun.data.per_class(begun.task)
    assert counts["ada"]["train_per_class"] == [0, 24, 0]
    assert counts["bob"]["train_per_class"] == [0, 0, 28]
    assert counts["cyd"]["train"] == sum(counts["cyd"]["train_per_class"]) == 32


def test_a_network_that_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    words = ["--rounds", "1", "--out", str(tmp_path / "run"), "--cache", str(tmp_path)]
    small = [word for option in DATA for word in ("--set", option)]
    for task, model, method, said in (
        (
            "segmentation",
            "har_cnn",
            "fedavg",
            "one class per example and a number per example, but segmentation learns another",
        ),
        (
            "segmentation",
            "segmenter_small",
            "fedavg",
            "use --task classification or masked_reconstruction or regression",
        ),
        ("classification", "segmenter_small", "fedavg", "segmenter_small learns segmentation, not classification; "),
        (
            "classification",
            "segmenter_small",
            "fedavg",
            "of these windows that do: hart, hart_alp, har_features, har_cnn",
        ),
        (
            "masked_reconstruction",
            "har_cnn",
            "fedavg",
            "learns classification or regression, not masked_reconstruction; models of these windows that do: hart",
        ),
        ("masked_reconstruction", "har_cnn", "fedproto", "the method fedproto uses class prototypes, but the"),
        ("segmentatoin", "har_cnn", "fedavg", "unknown task 'segmentatoin'; did you mean 'segmentation'?"),
    ):
        done = CliRunner(env={"COLUMNS": "300"}).invoke(
            app, ["run", "--task", task, "--model", model, "--method", method, *small, *words]
        )
        assert done.exit_code == 2
        assert said in done.output
    images = ["run", "--data", "mnist", "--task", "masked_reconstruction", *words]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, images)
    assert done.exit_code == 2
    assert "none of these images does; on windows hart, hart_alp do" in done.output
