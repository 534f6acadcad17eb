"""Cross-validation of a round's training over stretches of time, whatever computes.

Each fold is a contiguous part of each class's windows in the order of time: windows overlap by half, so that random
folds would test on what they trained on. Windows that share time with the fold are left out of its training. Each
fold's client begins as a device that has taken part in nothing, as what the method keeps between rounds has seen the
fold. The broadcast may have, by the device's earlier updates: it is what both sides of the comparison begin from.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from edge_agent.storage.images import ImagePreparation, Preparation
from edge_agent.training.comparison import by_stretch, is_small
from edge_agent.training.cross_validation import MAX_WINDOWS, NOT_VALIDATED, CrossValidation
from edge_agent.training.local_data import LocalData, divided
from federation.plan import Plan
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


def cross_validate(
    answer: Callable[[LocalData], np.ndarray],
    windows: ClientWindows,
    settings: PipelineSettings,
    plan: Plan,
    *,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> CrossValidation | None:
    """Train the round once for each fold, and answer the fold; None where the time is over before the last.

    `answer` trains on a fold's training windows and answers its others;
    windows (n, window, 6) are raw; `deadline` is on the clock.
    """
    answers, begun = np.full(len(windows), NOT_VALIDATED, np.int64), clock()
    for done, split in enumerate(time_folds(windows, FOLDS, settings.window_s)):
        spent = clock() - begun
        if clock() + (spent / done if done else 0.0) > deadline:
            return None
        answers[split.test] = answer(divided(windows, split, plan.data, settings))
    return CrossValidation(FOLDS, windows.session, windows.start_s, answers)
