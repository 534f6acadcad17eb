"""The head that a device's own windows and everybody's sums give, and how well it does on windows left out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_agent.storage.shared_sums import SharedSums
from edge_agent.teaching.stretches import left_out
from federation.aggregation.ridge_numpy import RidgeHead, RidgeOptions, solve_mean, sums_of, travelling
from gaitway.tasks.classification import confusion, scores_of

Codes = NDArray[np.int64]


class EmbeddedWindows(NamedTuple):
    """Labelled windows: features (n, D), class (n,), begin in seconds (n,), session (n,).

    `orientation_free`: columns of the features that are the same however the device lies; none where nobody says it.
    """

    features: NDArray[np.float32]
    y: Codes
    start_s: NDArray[np.float64]
    session: Codes
    orientation_free: Sequence[int] = ()


class HeadScore(NamedTuple):
    """What a head answers on left-out windows of the federation's activities."""

    right: int
    windows: int
    macro_f1: float | None


class LearnedHead(NamedTuple):
    """A solved head, the shared one beside it, and what both answer on the windows left out."""

    personal: RidgeHead
    shared: RidgeHead
    matrix: Codes  # (K, K) of the personal head: left-out windows by true (row) and answered class
    own_score: HeadScore
    shared_score: HeadScore
    learnt: Codes  # (K,) training windows of each class
    solve_s: float
    """Seconds from features to the head."""


def learn(
    windows: EmbeddedWindows, classes: int, shared: SharedSums, method: Mapping[str, Any], window_s: float
) -> LearnedHead:
    """Solve the personal head of all windows but those left out, and score it and the shared one on these.

    classes: the federation's and behind them the person's own.
    """
    begun, options = time.perf_counter(), RidgeOptions.of(method)
    train, test = left_out(windows.y, windows.start_s, windows.session, window_s)
    y = windows.y[train]
    own = travelling(sums_of(windows.features[train], y, classes, options.clip))
    weight = options.own_weight * max(1, shared.clients)
    means = windows.orientation_free, options.orientation_free_share
    personal = solve_mean(shared.sums, own, weight, options.damping, *means)
    solve_s = time.perf_counter() - begun
    everybody = solve_mean(shared.sums, None, 0, options.damping, *means)
    truth, features = windows.y[test], windows.features[test]
    federated = truth < everybody.bias.size
    answers, shared_answers = personal.classes(features), everybody.classes(features)
    return LearnedHead(
        personal,
        everybody,
        confusion(truth, answers, classes),
        _score(truth[federated], answers[federated], classes),
        _score(truth[federated], shared_answers[federated], classes),
        np.bincount(y, minlength=classes),
        solve_s,
    )


def _score(truth: Codes, answered: Codes, classes: int) -> HeadScore:
    matrix = confusion(truth, answered, classes)
    f1 = scores_of(matrix).macro_f1
    return HeadScore(int(np.trace(matrix)), len(truth), f1 if len(truth) else None)


def is_named(head: LearnedHead, code: int) -> bool:
    """Whether an activity of the person's own is named: of the left-out windows taken for it, most were it."""
    return bool(2 * head.matrix[code, code] > head.matrix[:, code].sum())


def described(head: LearnedHead, activities: Sequence[str]) -> dict[str, Any]:
    """Describe it for the page: activities that are learnt or left out alone have a row."""
    rows = [code for code in range(len(activities)) if head.learnt[code] or head.matrix[code].any()]
    columns = sorted({*rows, *np.flatnonzero(head.matrix.any(0)).tolist()})
    return {
        "rows": [activities[code] for code in rows],
        "columns": [activities[code] for code in columns],
        "matrix": head.matrix[np.ix_(rows, columns)].tolist(),
        "learnt": [int(head.learnt[code]) for code in rows],
        "right": int(np.trace(head.matrix)),
        "windows": int(head.matrix.sum()),
        "own": head.own_score._asdict(),
        "shared": head.shared_score._asdict(),
        "solve_s": round(head.solve_s, 4),
    }
