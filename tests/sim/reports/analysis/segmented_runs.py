"""Finished runs on generated images of squares, whose outlines have no class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from federation.plan import ModelSpec, RoundSettings, TrainingConfig
from har_pipeline import ChannelStatistics
from sim.data.federated_data import ClientData, FederatedData
from sim.experiment.options import AnalysesKind
from sim.experiment.settings import Experiment
from sim.reports.analysis.finished import FinishedRun
from sim.results.run_directory import RunDirectory
from sim.run import run
from tests.sim.test_tasks import images

LABELS = ("nothing", "red", "green")
KINDS = {"ada": (1,), "bob": (2,), "cyd": (1, 2)}
WIDTH = 8


def squares() -> FederatedData:
    """Three clients, two of which know only one kind of squares each."""
    clients = {
        name: ClientData(images(24, of, i), images(6, of, 100 + i)) for i, (name, of) in enumerate(KINDS.items())
    }
    half = ChannelStatistics(1, np.full(3, 0.5), np.full(3, 0.5**2 + 0.25**2))  # of mean 1/2 and deviation 1/4
    return FederatedData(LABELS, clients, dict.fromkeys(clients, half), False)


def settings(method: str, rounds: int = 3, analyses: AnalysesKind = "none") -> Experiment:
    """Settings of a run on them."""
    return Experiment(
        labels=LABELS,
        task={"name": "segmentation", "background": 0},
        method={"name": method},
        model=ModelSpec(
            name="segmenter_small",
            options={"input_shape": [3, 16, 16], "channels": [8, 8, 8, 8], "feature_dim": WIDTH},
        ),
        training=TrainingConfig(classes=3, feature_dim=WIDTH, batch_size=8, lr=0.02),
        rounds=RoundSettings(rounds=rounds),
        dataset="image_folder",
        dataset_options={"labels": list(LABELS), "side": 16},
        engine="serial",
        analyses=analyses,
    )


def finished(method: str, path: Path, rounds: int = 3, analyses: AnalysesKind = "none") -> FinishedRun:
    """Run it."""
    chosen, data = settings(method, rounds, analyses), squares()
    run(chosen, path, data=data)
    return FinishedRun(RunDirectory(path), chosen, data)
