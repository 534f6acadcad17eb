"""Converts a sensor's numbers to m/s² and rad/s in the device's axes, by the names of units and axes.

Axes are written as the sensor's own, for the device's x, y and z in their order: "x,y,z" leaves them, "y,-x,z" takes
the sensor's y for x and its x, turned round, for y. Any other mounting is a 3 × 3 rotation whose rows are the device's
axes in the sensor's.

Accelerations are written in three conventions, which are removed here alone. An accelerometer measures specific force,
that is acceleration less gravity: a phone that lies on a table, screen up, reads +9.81 m/s² on z, since the table
pushes it upwards. Android, W3C's Generic Sensors, Linux IIO and most boards write that ("specific force"). Apple's
CoreMotion writes the opposite vector ("gravity points down": the same phone reads −1 g), user acceleration included.
"without gravity" is linear acceleration, of which up cannot be told.

Recordings and windows carry specific force alone. What lacks gravity is passed on as it is and reported as a finding
(`signals/checks.py`): no model that was trained on the others knows such windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.errors import SettingsError
from har_pipeline.recording import STANDARD_GRAVITY

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
ACC_UNITS = {"m/s2": 1.0, "g": STANDARD_GRAVITY, "mg": STANDARD_GRAVITY / 1000}
GYRO_UNITS = {"rad/s": 1.0, "deg/s": math.pi / 180}

# A mounting matrix is written with a few digits.
ORTHOGONAL_TO = 0.01


def scale_of(option: str, unit: object, units: Mapping[str, float]) -> float:
    """Return the factor of a unit; SettingsError names the option and the nearest known unit."""
    if unit not in units:
        raise SettingsError(f"option {option} is {unit!r}; {did_you_mean(str(unit), units)}")
    return units[str(unit)]


def in_seconds(numbers: np.ndarray, unit: str | float) -> np.ndarray:
    """Return times of a unit, by name or in seconds, as seconds; those by name are divided, so rounded once."""
    seconds: np.ndarray = numbers / round(1 / TIME_UNITS[unit]) if isinstance(unit, str) else numbers * unit
    return seconds


def axes_matrix(axes: str | Sequence[Sequence[float]]) -> np.ndarray:
    """Return the rotation (3, 3) that turns a sensor's vectors into the device's: device = matrix @ sensor.

    Raises SettingsError for words that are no three axes, and for a matrix that is no rotation.
    """
    if isinstance(axes, str):
        matrix = _matrix_of_names(axes)
    else:
        try:
            matrix = np.array(axes, dtype=np.float64)
        except (TypeError, ValueError):
            matrix = np.empty(0)
    if matrix.shape != (3, 3) or not np.allclose(matrix @ matrix.T, np.eye(3), atol=ORTHOGONAL_TO):
        raise SettingsError(
            f"axes are {str(axes)[:200]!r}; expected x, y and z once each, such as 'y,-x,z', or a 3 × 3 rotation"
        )
    if np.linalg.det(matrix) < 0:
        raise SettingsError(
            f"axes are {str(axes)[:200]!r}, a mirror image, which no mounting of a sensor is; change the sign of one "
            f"axis"
        )
    return matrix


def _matrix_of_names(axes: str) -> np.ndarray:
    matrix = np.zeros((3, 3))
    names = [name.strip() for name in axes[:50].split(",")]
    for row, name in enumerate(names[:3]):
        if (axis := name.removeprefix("-")) in ("x", "y", "z"):
            matrix[row, "xyz".index(axis)] = -1.0 if name.startswith("-") else 1.0
    return matrix if len(names) == 3 else np.zeros((3, 3))


@dataclass(frozen=True)
class SampleUnits:
    """What a source's numbers mean: units by name, its axes, and which way its accelerations point.

    The defaults are the pipeline's own.
    """

    time: str = "s"
    acc: str = "m/s2"
    gyro: str = "rad/s"
    axes: str | Sequence[Sequence[float]] = "x,y,z"
    acceleration: AccelerationConvention = "specific force"

    def __post_init__(self) -> None:
        """Refuse what is no unit, no axes and no convention; raises SettingsError."""
        scale_of("time unit", self.time, TIME_UNITS)
        scale_of("acc unit", self.acc, ACC_UNITS)
        scale_of("gyro unit", self.gyro, GYRO_UNITS)
        axes_matrix(self.axes)
        check_convention("acceleration", self.acceleration)

    def seconds(self, times: np.ndarray) -> np.ndarray:
        """Turn times (n,) into seconds."""
        return np.asarray(times, dtype=np.float64) * TIME_UNITS[self.time]

    def to_specific_force(self, values: np.ndarray) -> np.ndarray:
        """Turn readings (n, 3) of the accelerometer into specific force in m/s², in the device's axes."""
        readings = np.asarray(values, dtype=np.float64) * ACC_UNITS[self.acc]
        return self._turned(specific_force(readings, self.acceleration))

    def to_angular_rate(self, values: np.ndarray) -> np.ndarray:
        """Turn readings (n, 3) of the gyroscope into rad/s in the device's axes."""
        return self._turned(np.asarray(values, dtype=np.float64) * GYRO_UNITS[self.gyro])

    def _turned(self, values: np.ndarray) -> np.ndarray:
        # Axes that stay are not multiplied: a lost number in one would be lost in all, and the bits stay as they were.
        return values if self.axes == "x,y,z" else values @ axes_matrix(self.axes).T


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
