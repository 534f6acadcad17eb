"""Which way is up: the three conventions in which accelerations are written, and the one place that removes them.

An accelerometer measures specific force, that is acceleration less gravity: a phone that lies on a table, screen up,
reads +9.81 m/s² on z, since the table pushes it upwards. Android, W3C's Generic Sensors, Linux IIO and most boards
write that ("specific force"). Apple's CoreMotion writes the opposite vector ("gravity points down": the same phone
reads −1 g), user acceleration included. "without gravity" is linear acceleration, of which up cannot be told.

Recordings and windows carry specific force alone. What lacks gravity is passed on as it is and reported as a finding
(`signals/checks.py`): no model that was trained on the others knows such windows.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.errors import SettingsError

AccelerationConvention = Literal["specific force", "gravity points down", "without gravity"]
CONVENTIONS: tuple[AccelerationConvention, ...] = get_args(AccelerationConvention)
MEANINGS: dict[AccelerationConvention, str] = {
    "specific force": "at rest, face up, z is +9.81 m/s² (Android, most boards)",
    "gravity points down": "at rest, face up, z is −9.81 m/s² (Apple's CoreMotion); turned round when it is read",
    "without gravity": "linear acceleration; models of the other conventions do not know it",
}


def check_convention(option: str, convention: object) -> AccelerationConvention:
    """Return a convention that came from outside; SettingsError names the option and the nearest known one."""
    for known in CONVENTIONS:
        if convention == known:
            return known
    raise SettingsError(f"{option} is {str(convention)[:100]!r}; {did_you_mean(str(convention)[:100], CONVENTIONS)}")


def specific_force(values: np.ndarray, convention: AccelerationConvention) -> np.ndarray:
    """Turn accelerations (n, 3) of a convention into specific force (n, 3), in the same unit and axes."""
    return -values if convention == "gravity points down" else values
