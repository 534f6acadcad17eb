"""Cross-validation of a round's training over sessions, whatever computes.

A model fits the rest of a session that it was trained on better than the next session, so a holdout from the same
session flatters it. If a device has windows of one session only, the holdout decides: it chose better models there
(`experiments/serving_choice.py`), because the shared model has seen what the folds hold out. That bias is small with
several sessions, even in federations of four devices (`experiments/session_choice.py`).

A fold is some of the sessions. For a class with one session, it is a contiguous part in the order of time, because
windows overlap by half and random folds would test on what they trained on. Windows that share time with the fold are
left out of its training. Each fold's client starts like a device that has never taken part, because what the method
keeps between rounds has seen the fold. The broadcast may have seen it too, through the device's earlier updates; both
sides of the comparison start from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from edge_agent.storage.images import ImagePreparation, Preparation
from edge_agent.training.cross_validation import MAX_WINDOWS, NOT_VALIDATED, CrossValidation
from edge_agent.training.local_data import LocalData, divided
from federation.plan import Plan
from gaitway.tasks import task_of
from har_pipeline import ClientWindows, PipelineSettings, has_sessions, session_folds

FOLDS = 3
"""Each costs about a round's training: enough that two thirds of the windows are left to train on."""
MIN_CLASSES = 2


def validation_obstacle(windows: ClientWindows, data: LocalData, settings: Preparation, plan: Plan) -> str:
    """Say why a round is not cross-validated; empty if it is to be."""
    if isinstance(settings, ImagePreparation) or not task_of(plan.task).has_classes:
        return "it is for windows with an activity alone"
    if not has_sessions(windows):
        return "no activity has windows of several sessions"
    if len(windows) > MAX_WINDOWS:
        return f"there are {len(windows):,} windows, more than {MAX_WINDOWS:,}"
    if len(np.unique(data.train.y)) < MIN_CLASSES:
        return "the windows to train on are of one class"
    return ""


def cross_validate(
    answer: Callable[[LocalData], Mapping[str, np.ndarray]],
    windows: ClientWindows,
    settings: PipelineSettings,
    plan: Plan,
    *,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, CrossValidation]:
    """Train the round once for each fold, and answer the fold; {} where the time is over before the last.

    `answer` trains on a fold's training windows and returns what each model made of them answers to its others, by
    name; windows (n, window, 6) are raw; `deadline` is on the clock.
    """
    answers: dict[str, np.ndarray] = {}
    begun = clock()
    for done, split in enumerate(session_folds(windows, FOLDS, settings.window_s)):
        spent = clock() - begun
        if clock() + (spent / done if done else 0.0) > deadline:
            return {}
        for name, found in answer(divided(windows, split, plan.data, settings)).items():
            answers.setdefault(name, np.full(len(windows), NOT_VALIDATED, np.int64))[split.test] = found
    return {name: CrossValidation(FOLDS, windows.session, windows.start_s, found) for name, found in answers.items()}
