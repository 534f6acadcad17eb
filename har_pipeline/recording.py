"""One sensor of one session as readers yield it: the only form in which raw samples enter the pipeline."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
STANDARD_GRAVITY = 9.80665
UNLABELLED = frozenset({"", "null"})

Sensor = Literal["acc", "gyro"]


class Recording(NamedTuple):
    """A stretch of one sensor: a whole session or a chunk of it.

    times_s (n,) float64 in seconds on the client's clock; values (n, 3) float, total acceleration in m/s² with
    gravity or angular rate in rad/s. activity is one name or one per sample; "" and "null" mean unlabelled.
    source and line (of the first sample) are there for error messages.
    """

    client: str
    session: str
    activity: str | np.ndarray
    sensor: Sensor
    times_s: np.ndarray
    values: np.ndarray
    source: str = ""
    line: int = 0

    def where(self, index: int = 0) -> str:
        """Say which file and line sample `index` came from."""
        place = self.source or f"client {self.client}, session {self.session}, {self.sensor}"
        return f"{place}, line {self.line + index}" if self.line else f"{place}, sample {index}"


def subject_of(client: str) -> str:
    """Read the subject from a client's id: all before its last `_`, or all of it, e.g. "s07" of "s07_sw" and "s07"."""
    head, separator, _ = client.rpartition("_")
    return head if separator else client


def device_of(client: str) -> str:
    """Read the device, or body place, from a client's id: all after its last `_`, or ""; `origin` tells which it is."""
    _, separator, tail = client.rpartition("_")
    return tail if separator else ""
