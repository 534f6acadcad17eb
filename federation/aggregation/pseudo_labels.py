"""Solves a head from everyone's sums and a device's own unlabelled windows, pseudo-labelled by the shared head.

One step of self-training with pseudo-labels (D.-H. Lee: Pseudo-Label: The Simple and Efficient Semi-Supervised Learning
Method for Deep Neural Networks, ICML workshop 2013). Of the windows that the shared head assigns to a class, the half
with the largest margin is used. Labels always come from the shared head, never from the new one, so errors don't
reinforce themselves.

If the shared head is wrong, its labels make things worse. So a device uses such a head only under three conditions that
need no label: it has enough windows; its orientation is usual (`models.har_features`); and the head on all features and
the one without axes agree on most windows, two views of which one can't depend on the orientation (A. Blum, T.
Mitchell: Combining Labeled and Unlabeled Data with Co-Training, COLT 1998). For results see docs/methods.md, 'Own
windows without labels'. Without the three conditions it costs up to 0.4 points if all windows are of one activity;
upside down it would give +1.1, -0.5 and +0.2 points on MotionSense, UCI HAR and SP-SW-HAR. Weight and thresholds were
chosen on two of four splits; a tenth of the others' weight costs single clients three points more.

It is in numpy for programs that must not load torch; the simulation and devices with torch call the same function.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from federation.aggregation.ridge_numpy import (
    Doubles,
    FixedSums,
    RidgeHead,
    RidgeOptions,
    solve,
    solve_mean,
    sums_of,
    travelling,
)

WEIGHT = 0.03
"""Weight of the device's windows relative to all others' together."""
CONFIDENT_SHARE = 0.5
MIN_WINDOWS = 100
"""Two minutes; with fewer it changed nothing or did harm."""
MIN_AGREEMENT = 0.8
"""Minimum share of windows on which both views agree."""


def pseudo_labelled_head(
    shared: FixedSums,
    clients: int,
    features: NDArray[np.floating],
    options: RidgeOptions,
    columns: Sequence[int],
    *,
    is_far: bool,
) -> RidgeHead | None:
    """Solve the head of everybody's sums and the device's windows, features (n, D), as the shared head names them.

    clients: whose sums `shared` is.
    columns: of the features that do not depend on how the device lies.

    None where it is not to be used: too few windows, a device that lies otherwise, two views that disagree.
    """
    classes, share = shared.moment.shape[1], options.orientation_free_share
    if is_far or len(features) < MIN_WINDOWS or classes < 2 or clients < 1 or not columns or not 0 < share < 1:
        return None
    if options.floor:  # sums that have noise are too coarse
        return None
    whole, free = (solve(shared, None, 0, options.damping, of).scores(features) for of in (None, columns))
    if np.mean(whole.argmax(1) == free.argmax(1)) < MIN_AGREEMENT:
        return None
    kept, names = surest((1 - share) * whole + share * free)
    own = travelling(sums_of(features[kept], names[kept], classes, options.clip))
    return solve_mean(shared, own, WEIGHT * clients, options.damping, columns, share)


def surest(scores: Doubles) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return of scores (n, K) the rows of the larger margins in each class, ascending, and every row's class (n,).

    A class has at least one; of equal margins the earlier ones.
    """
    names = scores.argmax(1)
    second, first = np.sort(scores, axis=1)[:, -2:].T
    kept = []
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        order = np.argsort(-(first - second)[rows], kind="stable")
        kept.append(rows[order[: max(1, int(len(rows) * CONFIDENT_SHARE))]])
    return np.sort(np.concatenate(kept)), names
