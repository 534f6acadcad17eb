"""Cross-validation of a round's training over stretches of time; only the training process imports this.

Each fold is a contiguous part of each class's windows in the order of time: windows overlap by half, so that random
folds would test on what they trained on. Windows that share time with the fold are left out of its training. Each
fold's client begins as a device that has taken part in nothing, as what the method keeps between rounds has seen the
fold. The broadcast may have, by the device's earlier updates: it is what both sides of the comparison begin from.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from edge_agent.storage.images import ImagePreparation, Preparation
from edge_agent.training.comparison import by_stretch, is_small
from edge_agent.training.cross_validation import MAX_WINDOWS, NOT_VALIDATED, CrossValidation
from edge_agent.training.local_data import LocalData, divided
from federation.plan import Plan
from federation.records import Client, Examples, Tree
from federation.training.client_round import train_one
from federation.training.local_round import Setup
from federation.training.prediction import predict
from gaitway.tasks import task_of
from har_pipeline import ClientWindows, PipelineSettings, time_folds

FOLDS = 3
"""Each costs about a round's training: enough that two thirds of the windows are left to train on."""
MIN_CLASSES = 2


def validation_obstacle(windows: ClientWindows, data: LocalData, settings: Preparation, plan: Plan) -> str:
    """Say why a round is not cross-validated; empty if it is to be."""
    if isinstance(settings, ImagePreparation) or not task_of(plan.task).has_classes:
        return "it is for windows with an activity alone"
    if not is_small(by_stretch(data.holdout)):
        return "the holdout is large enough"
    if len(windows) > MAX_WINDOWS:
        return f"there are {len(windows):,} windows, more than {MAX_WINDOWS:,}"
    if len(np.unique(data.train.y)) < MIN_CLASSES:
        return "the windows to train on are of one class"
    return ""


class FoldTraining(NamedTuple):
    """A round to be trained again: what it began from, whose it is, and how many examples are answered at once."""

    setup: Setup
    initial: Client
    broadcast: Tree
    client_id: str
    round_number: int
    batch_size: int


def cross_validate(
    training: FoldTraining,
    windows: ClientWindows,
    settings: PipelineSettings,
    plan: Plan,
    *,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> CrossValidation | None:
    """Train the round once for each fold, and answer the fold; None where the time is over before the last.

    windows (n, window, 6) are raw; `deadline` is on the clock.
    """
    answers, begun = np.full(len(windows), NOT_VALIDATED, np.int64), clock()
    for done, split in enumerate(time_folds(windows, FOLDS, settings.window_s)):
        spent = clock() - begun
        if clock() + (spent / done if done else 0.0) > deadline:
            return None
        answers[split.test] = fold_answers(training, divided(windows, split, plan.data, settings))
    return CrossValidation(FOLDS, windows.session, windows.start_s, answers)


def fold_answers(training: FoldTraining, fold: LocalData) -> np.ndarray:
    """Train the round on a fold's training windows, and return the answers (n,) to its others."""
    x, y = torch.from_numpy(fold.normalized(fold.train)), torch.from_numpy(fold.train.targets)
    setup, initial, broadcast, client_id, round_number, batch_size = training
    found = train_one(setup, initial, broadcast, Examples(x, y), client_id=client_id, round_number=round_number)
    return predict(setup, found.client, torch.from_numpy(fold.normalized(fold.holdout)), batch_size)
