"""Baselines that are not federated: what they are fitted on, and that a table can hold them beside methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.errors import SettingsError
from sim.experiment.settings import Experiment
from sim.results.run_directory import RunDirectory
from sim.rounds.baselines import LAMBDA, Baseline
from sim.run import build_simulation, load_data, resolve, run
from sim.sweep.arena.measures import MEASURES
from tests.sim.small_runs import settings_for


def asked(method: str, baseline: str, **options: Any) -> Experiment:
    given = {"rounds": 1, "model": "har_features", "holdout": "leave-subjects-out:1", **options}
    return settings_for(method, baseline=baseline, **given)


@pytest.mark.parametrize(
    ("method", "baseline"),
    [
        pytest.param("centralized", "random_forest", marks=pytest.mark.ci),
        ("local", "ridge"),
        pytest.param("centralized", "ridge", marks=pytest.mark.ci),
        pytest.param("local", "random_forest", marks=pytest.mark.ci),
    ],
)
def test_a_baseline_leaves_a_run_like_any_other_and_nothing_travels(method: str, baseline: str, tmp_path: Path) -> None:
    settings = asked(method, baseline)
    summary = run(settings, tmp_path / "run", data=load_data(resolve(settings), None, tmp_path / "cache", None))
    read = {name: measure.read(RunDirectory(tmp_path / "run")) for name, measure in MEASURES.items()}
    pooled = method == "centralized"
    assert read["server" if pooled else "own"] > 0.4
    assert read["own" if pooled else "server"] is None
    assert (read["new"] is None, read["new_5"] is None) == (not pooled, pooled)
    assert (read["new_upside_down"] is None, read["new_upside_down_5"] is None) == (not pooled, pooled)
    assert read["upload_mb"] == (None if pooled else 0)
    assert not list((tmp_path / "run").glob("models/*"))
    again = run(settings, tmp_path / "run", data=load_data(resolve(settings), None, tmp_path / "cache", None))
    assert json.dumps({**again, "seconds": 0}) == json.dumps({**summary, "seconds": 0})


def test_ridge_is_that_of_numpy_on_everybodys_windows(tmp_path: Path) -> None:
    settings = asked("centralized", "ridge")
    simulation = build_simulation(resolve(settings), load_data(resolve(settings), None, tmp_path, None))
    assert isinstance(simulation, Baseline)
    (model,) = simulation.fitted.values()
    x, y = simulation.features(simulation.data.clients["everyone"].train)
    x, weight = x.astype(np.float64), 1 / np.sqrt(np.bincount(y))[y]
    centre = np.average(x, axis=0, weights=weight)
    z, signs = (x - centre) * np.sqrt(weight)[:, None], 2 * np.eye(len(simulation.data.labels))[y] - 1
    strength = LAMBDA * (weight[:, None] * x**2).sum(0).mean()
    classes = np.unique(y)
    targets = (signs - np.average(signs, axis=0, weights=weight)) * np.sqrt(weight)[:, None]
    wanted = np.linalg.solve(z.T @ z + strength * np.eye(z.shape[1]), z.T @ targets[:, classes])
    np.testing.assert_allclose(model.coef_, wanted.T, atol=1e-5)


def test_what_a_baseline_cannot_be_is_said(tmp_path: Path) -> None:
    data = load_data(resolve(asked("local", "ridge")), None, tmp_path, None)
    for settings in (asked("fedavg", "ridge"), asked("local", "ridge", rounds=2)):
        with pytest.raises(SettingsError, match="--baseline ridge: expected --method centralized or local"):
            build_simulation(resolve(settings), data)
