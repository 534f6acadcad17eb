"""Which labelled windows are learnt from, and which are left out to tell how well that went."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_agent.storage.window_store import one_after_another
from har_pipeline.splits import overlaps

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
