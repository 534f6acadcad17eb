"""Runs with noise that is correlated over rounds: who rests, and that a killed run goes on to the same bits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from sim import checkpoint
from sim.errors import SettingsError
from sim.experiment import Experiment
from sim.run import build_simulation, load_data
from tests.sim.small_runs import settings_for

PRIVATE = ["rounds.clip_norm=1", "rounds.noise_multiplier=0.5", "rounds.noise_bands=2"]


def settings(clients: int) -> Experiment:
    return settings_for(rounds=4, clients_per_round=clients, set=PRIVATE)


def test_no_client_takes_part_twice_within_the_bands_and_a_killed_run_ends_alike(tmp_path: Path) -> None:
    data = load_data(settings(1), None, tmp_path, None)
    whole, begun, resumed = (build_simulation(settings(1), data) for _ in range(3))
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
    # what clients are sent has nothing of the noise beside the model
    assert whole.broadcasts_for(["x"])["x"].keys() == whole.state.keys() == {"params"}


def test_rounds_that_would_wait_for_ever_are_refused_before_any_is_run(tmp_path: Path) -> None:
    data = load_data(settings(2), None, tmp_path, None)
    with pytest.raises(SettingsError, match=r"noise_bands=2: .* each invites 2, so 4 clients are needed; there are 2"):
        build_simulation(settings(2), data)
