"""Windows that were never measured, for the tests of how they are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from har_pipeline import PipelineSettings, Window

LABELS = ("sit", "walk", "run")
SETTINGS = PipelineSettings()
BEGAN_S = 1_790_000_000.0


def window(y: int, n: int, *, session: int = 0, length: int = 128) -> Window:
    """The n-th window of 2.56 s, one after another; its samples are n."""
    return Window(np.full((length, 6), n, np.float32), y, BEGAN_S + 2.56 * n, session)


def of_classes(classes: Sequence[int]) -> list[Window]:
    """One window of each class given, in this order."""
    return [window(y, n) for n, y in enumerate(classes)]
