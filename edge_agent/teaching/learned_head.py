"""The head from a device's own windows and everyone's sums, and its evaluation on left-out windows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_agent.storage.shared_sums import SharedSums
from edge_agent.storage.window_store import one_after_another
from federation.aggregation.ridge_numpy import RidgeHead, RidgeOptions, solve_mean, sums_of, travelling
from gaitway.tasks.classification import confusion, scores_of
from har_pipeline.splits import overlaps

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


JOIN_S = 5.0
"""Windows of an activity that are no further apart form one stretch."""
MIN_WINDOWS = 4
"""Of a stretch from which one is left out."""


def left_out(
    y: NDArray[np.int64], start_s: NDArray[np.float64], session: NDArray[np.int64], window_s: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return places of training windows and of those left out: the last quarter in time of each stretch.

    y, start_s, session (n,): class, begin in seconds and session. Of a stretch of fewer than MIN_WINDOWS nothing is
    left out; windows that share time with one that is left out are in neither part.
    """
    start_s = one_after_another(start_s, session)
    order = np.lexsort((start_s, session))
    is_other = (np.diff(y[order]) != 0) | (np.diff(session[order]) != 0)
    is_later = np.diff(start_s[order]) > JOIN_S + window_s
    stretches = np.split(order, np.flatnonzero(is_other | is_later) + 1)
    test = np.zeros(len(y), bool)
    for stretch in stretches:
        if len(stretch) >= MIN_WINDOWS:
            test[stretch[-max(1, round(len(stretch) / 4)) :]] = True
    shared = overlaps(start_s, start_s[test], window_s)
    return np.flatnonzero(~test & ~shared), np.flatnonzero(test)
