"""Images in a simulation: the same ones on every engine, learnt from as well, and the options that say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from federation.methods import method_from_json
from federation.plan import Augmentation, ModelSpec, RoundSettings, TrainingConfig
from federation.records import Client, Examples
from federation.tasks.segmentation import Segmentation
from federation.training.forward import Moments, initial_client, initial_model, network
from federation.training.local_round import LocalRound, Setup
from sim.cli.app import app
from sim.engines import ClientJob, Engine, Processes, Serial, Stacked
from sim.reports.report import repeat_command
from sim.run import build_simulation, resolve
from tests.federation.tiny_networks import WIDTH, TinySegmenter
from tests.sim.small_runs import DATA, needs_fork, settings_for
from tests.sim.test_tasks import simulation

MOMENTS = Moments((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
ALL = "flip=0.5,padding=3,scale=0.5:2,brightness=0.3,contrast=0.2,saturation=0.4"


class Noting(nn.Module):
    """A segmenter whose buffer is the first image of the last batch that it was trained on."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = TinySegmenter(3, alp=False)
        self.register_buffer("seen", torch.zeros(3, 12, 10))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if self.training:
            self.seen = x[0]
        features, logits = self.inner(x, mask)
        return features, logits


def jobs(augmentation: str = ALL) -> list[ClientJob]:
    """Four clients, unlike in length, with images as bytes."""
    training = TrainingConfig(
        classes=3, feature_dim=WIDTH, batch_size=4, epochs=2, augmentation=Augmentation.model_validate(augmentation)
    )
    module = initial_model(Noting, 0)
    setup = Setup(method_from_json({"name": "fedavg"}), training, network(module), Segmentation(), MOMENTS, rounds=4)
    client, random = initial_client(module), np.random.default_rng(1)
    found = []
    for name, count in {"ada": 9, "bob": 4, "cyd": 6, "dan": 9}.items():
        x, y = random.integers(0, 256, (count, 3, 12, 10), np.uint8), random.integers(0, 3, (count, 12, 10), np.uint8)
        mine = Examples(torch.from_numpy(x), torch.from_numpy(y))
        found.append(ClientJob(name, setup, client, {"params": client.params}, mine))
    return found


def trained(engine: Engine, given: list[ClientJob]) -> dict[str, LocalRound]:
    return dict(engine.run(given, 3))


def images_of(clients: dict[str, LocalRound]) -> dict[str, Tensor]:
    return {name: found.client.buffers["seen"] for name, found in sorted(clients.items())}


def assert_same_images(engine: Engine, atol: float) -> None:
    """The same bits, and parameters that differ by rounding at most."""
    alone, found = trained(Serial(), jobs()), trained(engine, jobs())
    for name, seen in images_of(alone).items():
        assert torch.equal(images_of(found)[name], seen), name
        for key, wanted in alone[name].client.params.items():
            torch.testing.assert_close(found[name].client.params[key], wanted, rtol=0, atol=atol)


def test_stacked_clients_see_the_images_that_they_see_alone() -> None:
    assert_same_images(Stacked(chunk=3), 1e-5)


@pytest.mark.ci
@needs_fork
def test_processes_see_the_same_images() -> None:
    assert_same_images(Processes(2), 0.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_sees_the_same_images() -> None:
    def there(client: Client) -> Client:
        return Client(*({name: value.cuda() for name, value in part.items()} for part in client))

    given = [
        job._replace(
            client=there(job.client),
            broadcast={"params": there(job.client).params},
            examples=Examples(*(part.cuda() for part in job.examples)),
        )
        for job in jobs()
    ]
    module = initial_model(Noting, 0).cuda()
    setup = replace(given[0].setup, network=network(module))
    given = [job._replace(setup=setup) for job in given]
    alone = images_of(trained(Serial(), jobs()))
    for engine in (Serial(), Stacked(chunk=4, device="cuda")):
        for name, seen in images_of(trained(engine, given)).items():
            # a GPU divides by a number by multiplying with its inverse
            torch.testing.assert_close(seen.cpu(), alone[name], rtol=1e-5, atol=1e-5)


def test_images_differ_by_round_and_from_those_that_are_not_augmented() -> None:
    alone = images_of(trained(Serial(), jobs()))
    later = images_of(dict(Serial().run(jobs(), 4)))
    plain = images_of(trained(Serial(), jobs("none")))
    for name, seen in alone.items():
        assert not torch.equal(seen, later[name])
        assert not torch.equal(seen, plain[name])


def scores(augmentation: str) -> list[float]:
    """Mean IoU of the server's model by round."""
    begun = simulation("fedavg", rounds=10)
    network_ = begun.networks[0]
    training = network_.setup.training.model_copy(update={"augmentation": Augmentation.model_validate(augmentation)})
    begun.networks = [network_._replace(setup=replace(network_.setup, training=training))]
    begun.__post_init__()
    return [record["global"]["mean_iou"] for record in begun.run_rounds()]


def test_learning_does_not_suffer() -> None:
    plain, changed = (scores(text) for text in ("none", "flip=0.5,padding=2,brightness=0.1"))
    assert changed != plain
    assert changed[-1] > plain[-1] - 0.05
    assert changed[-1] > 0.6


def test_the_command_line_plan_and_repeated_command_agree(tmp_path: Path) -> None:
    given: dict[str, Any] = {"augmentation": ALL, "lr_schedule": "polynomial", "weight_decay": 4e-5}
    experiment = settings_for(**given, set=["training.lr_power=0.5"])
    assert experiment.training.augmentation == Augmentation.model_validate(ALL)
    assert (experiment.training.lr_schedule, experiment.training.lr_power) == ("polynomial", 0.5)
    command = repeat_command(experiment)
    for words in (
        "--augmentation flip=0.5,padding=3,scale=0.5:2.0", "--lr-schedule polynomial", "--weight-decay 4e-05",
        "training.lr_power=0.5",
    ):  # fmt: skip
        assert words in command
    plain = repeat_command(settings_for())
    assert not any(word in plain for word in ("augmentation", "schedule", "lr_power", "training."))


def test_windows_are_refused_before_a_round(tmp_path: Path) -> None:
    words = ["--rounds", "1", "--out", str(tmp_path / "run"), "--cache", str(tmp_path)]
    small = [word for option in DATA for word in ("--set", option)]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["run", "--augmentation", "flip=0.5", *small, *words])
    assert done.exit_code == 2
    assert "augmentation = flip=0.5: it is for images" in done.output
    assert "(128, 6)" in done.output
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["run", "--augmentation", "flop=1", *small, *words])
    assert "augmentation.flop" in done.output


def test_a_simulation_normalizes_bytes_by_the_moments_of_its_data() -> None:
    from sim.data.federated_data import ClientData, FederatedData
    from sim.experiment.settings import Experiment
    from sim.rounds.analyses import analyse_round

    random = np.random.default_rng(0)
    x = torch.from_numpy(random.integers(0, 256, (12, 1, 28, 28), np.uint8))
    y = torch.from_numpy(random.integers(0, 2, 12))
    settings = Experiment(
        labels=("a", "b"),
        model=ModelSpec(name="mnist_cnn"),
        method={"name": "fedavg"},
        training=TrainingConfig(classes=2, feature_dim=50, batch_size=4, augmentation=Augmentation(padding=2)),
        rounds=RoundSettings(rounds=1),
        engine="serial",
    )
    moments = Moments((0.5,), (0.25,))

    def played(x: Tensor, moments: Moments | None) -> dict[str, Any]:
        clients = {
            name: ClientData(Examples(x[k : k + 4], y[k : k + 4]), Examples(x[8:], y[8:]))
            for k, name in ((0, "ada"), (4, "bob"))
        }
        data = FederatedData(("a", "b"), clients, {}, False, moments=moments)
        simulation = build_simulation(resolve(settings), data)
        (record,) = simulation.run_rounds()
        scores = {key: record[key] for key in ("train_loss", "global", "personalization")}
        return {**scores, **analyse_round(simulation, record)}

    assert played(x, moments) == played(moments.normalized(x), None)
