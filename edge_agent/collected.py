"""What a device keeps of its sensors, in words and numbers, for `status`; also while the agent runs."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from edge_agent.config.sensors import WindowsSection
from edge_agent.errors import StoreError
from edge_agent.storage.repair import ASIDE
from edge_agent.storage.window_store import FILE_NAME, UNLABELLED, WindowStore


class KeptWindows(NamedTuple):
    """Counts, and sentences about them and about what keeps the device from collecting."""

    labelled: int
    unlabelled: int
    words: list[str]


def kept_windows(folder: Path, limits: WindowsSection) -> KeptWindows:
    """Look at the windows in a data folder; none is no error."""
    labelled = unlabelled = 0
    words = []
    if (folder / FILE_NAME).is_file():
        try:
            with closing(WindowStore(folder)) as store:
                counts = store.counts()
        except StoreError as error:
            return KeptWindows(0, 0, [f"Its windows cannot be read: {error}.", *_obstacles(folder, limits)])
        unlabelled = counts.pop(UNLABELLED, 0)
        labelled = sum(counts.values())
    rest = f", and {unlabelled:,} without an activity" if unlabelled else ""
    words.append(f"It keeps {labelled:,} labelled windows{rest}.")
    return KeptWindows(labelled, unlabelled, words + _obstacles(folder, limits))


def _obstacles(folder: Path, limits: WindowsSection) -> list[str]:
    found = []
    free = shutil.disk_usage(folder).free / 1e6
    if free < limits.min_free_mb:
        found.append(
            f"It does not collect: its disk has {free:.0f} MB of free space and [windows] min_free_mb asks for "
            f"{limits.min_free_mb:.0f}; it goes on by itself when there is room."
        )
    if (folder / ASIDE).is_file():
        found.append(f"A broken file of windows was set aside as {ASIDE}; delete it when it is not needed.")
    return found
