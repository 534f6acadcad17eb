"""Cross-validation of personalization on a device's windows, for when its holdout is too small.

The training process trains the round again for each fold, on the windows outside of it, and keeps what each of these
models answers to the windows that it has not seen. These answers are compared with those of the global model to the
same windows. That estimates the training, not the one model that came of it.

M. Stone, 'Cross-validatory choice and assessment of statistical predictions', Journal of the Royal Statistical Society
B 36 (1974).

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

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edge_agent.storage.images import ImagePreparation, Preparation
from edge_agent.training.local_data import LocalData, divided
from federation.plan import Plan
from gaitway.tasks import task_of
from har_pipeline import ClientWindows, PipelineSettings, has_sessions, session_folds

NOT_VALIDATED = -1
MAX_WINDOWS = 4096
"""A device with more has a holdout that can tell, or windows of one class alone."""

Answers = npt.NDArray[np.int64]


class CrossValidation(NamedTuple):
    """The answer (n,) to each window, of a model that was trained without it; windows by session and begin (n,)."""

    folds: int
    session: npt.NDArray[np.int64]
    start_s: npt.NDArray[np.float64]
    answers: Answers

    def to_json(self) -> str:
        """Write it as a file has it."""
        arrays = {name: getattr(self, name).tolist() for name in ("session", "start_s", "answers")}
        return json.dumps({"folds": self.folds, **arrays})

    @classmethod
    def read(cls, path: Path) -> CrossValidation | None:
        """Read a file; None where there is none, or it is damaged: what it said does not count then."""
        try:
            found = json.loads(path.read_bytes())
            session, answers = (np.array(found[name], np.int64) for name in ("session", "answers"))
            made = cls(int(found["folds"]), session, np.array(found["start_s"], np.float64), answers)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return made if len(session) == len(made.start_s) == len(answers) <= MAX_WINDOWS else None

    def answers_to(self, windows: ClientWindows) -> Answers:
        """Return the answer to each window (n,), `NOT_VALIDATED` where there is none: it came later."""
        keys = zip(self.session.tolist(), self.start_s.tolist(), strict=True)
        known = dict(zip(keys, self.answers.tolist(), strict=True))
        wanted = zip(windows.session.tolist(), windows.start_s.tolist(), strict=True)
        return np.array([known.get(key, NOT_VALIDATED) for key in wanted], np.int64)


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
