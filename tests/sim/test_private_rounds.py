"""Runs with noise that is correlated over rounds: who rests, and that a killed run goes on to the same bits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from federation.privacy.accounting import epsilon, epsilon_of_epochs, spent
from federation.records.tree import flatten
from gaitway.errors import GaitwayError
from sim.errors import SettingsError
from sim.experiment.settings import Experiment
from sim.rounds import checkpoint
from sim.run import build_simulation, load_data, resolve
from tests.sim.small_runs import needs_fork, settings_for

PRIVATE = ["rounds.clip_norm=1", "rounds.noise_multiplier=0.5", "rounds.noise_bands=2"]


def settings(clients: int) -> Experiment:
    return settings_for(rounds=4, clients_per_round=clients, set=PRIVATE)


def test_no_client_takes_part_twice_within_the_bands_and_a_killed_run_ends_alike(tmp_path: Path) -> None:
    data = load_data(resolve(settings(1)), None, tmp_path, None)
    whole, begun, resumed = (build_simulation(resolve(settings(1)), data) for _ in range(3))
    cohorts = [set(record["cohort"]) for record in whole.run_rounds()]
    assert all(len(one) == 1 and not one & other for one, other in pairwise(cohorts))
    playing = begun.run_rounds()
    next(playing), next(playing)
    checkpoint.save(tmp_path / "checkpoint.bin", begun.checkpoint())
    resumed.restore(checkpoint.load(tmp_path / "checkpoint.bin", "cpu"))
    assert [set(record["cohort"]) for record in resumed.run_rounds()] == cohorts[2:]
    assert whole.state["params"].keys() == whole.noise.keys()
    for name, value in whole.state["params"].items():
        assert torch.equal(value, resumed.state["params"][name])
    with_epsilon = [record["privacy"] for record in build_simulation(resolve(settings(1)), data).run_rounds()]
    assert [one["most_rounds"] for one in with_epsilon] == [1, 1, 2, 2]
    assert with_epsilon[-1]["epsilon"] == pytest.approx(epsilon(2 * spent(0.5), 1e-5), abs=1e-4)
    # what clients are sent has nothing of the noise beside the model
    assert whole.broadcasts_for(["x"])["x"].keys() == whole.state.keys() == {"params"}


def test_rounds_that_would_wait_for_ever_are_refused_before_any_is_run(tmp_path: Path) -> None:
    data = load_data(resolve(settings(2)), None, tmp_path, None)
    with pytest.raises(SettingsError, match=r"noise_bands=2: .* each invites 2, so 4 clients are needed; there are 2"):
        build_simulation(resolve(settings(2)), data)


@pytest.mark.ci
@needs_fork
def test_noise_on_gradients_of_examples_is_the_same_in_forks_and_has_an_account(tmp_path: Path) -> None:
    noise = ["training.example_clip_norm=1", "training.example_noise_multiplier=1.5"]
    given = [
        settings_for("fedavg", model="har_cnn", set=noise, engine=engine, workers=2)
        for engine in ("serial", "processes")
    ]
    data = load_data(resolve(given[0]), None, tmp_path, None)
    runs = [build_simulation(resolve(one), data) for one in given]
    for number, (record, other) in enumerate(zip(*(one.run_rounds() for one in runs), strict=True), 1):
        wanted = epsilon_of_epochs(1.5, number * runs[0].setup.training.epochs, 1e-5)
        assert record["privacy"]["example_epsilon"] == pytest.approx(wanted, abs=1e-4)
        assert record["privacy"] == other["privacy"]
    for name, value in flatten(runs[0].state).items():
        assert torch.equal(value, flatten(runs[1].state)[name]), name
    for options, words in (
        ({"engine": "stacked", "set": noise}, "one client at a time"),
        ({"chunk": 4, "set": noise}, "without --chunk"),
        ({"method": "fedproto", "set": noise}, "more than a mean of parameters"),
    ):
        with pytest.raises(GaitwayError, match=words):
            build_simulation(resolve(settings_for(**{"model": "har_cnn", **options})), data)
    with pytest.raises(SettingsError, match="needs example_clip_norm"):
        settings_for(set=noise[1:])


def test_a_failed_round_counts_for_its_windows_and_not_for_the_published_models(tmp_path: Path) -> None:
    """The server has the updates of a round that fails, whose noise is each device's own."""
    noise = ["training.example_clip_norm=1", "training.example_noise_multiplier=1.5", "rounds.minimum_clients=2"]
    given = settings_for(
        "fedavg", model="har_cnn", rounds=2, stragglers=0.5, set=[*noise, "rounds.max_failed_rounds=2"]
    )
    simulation = build_simulation(resolve(given), load_data(resolve(given), None, tmp_path, None))
    record = next(simulation.run_rounds())
    assert "failed" in record
    assert record["privacy"]["most_rounds"] == 0
    assert record["privacy"]["example_epsilon"] == pytest.approx(
        epsilon_of_epochs(1.5, given.training.epochs, 1e-5), abs=1e-4
    )
