"""From a sensor's numbers to m/s² and rad/s in the device's axes: the units that they come in, by name, and its axes.

Axes are written as the sensor's own, for the device's x, y and z in their order: "x,y,z" leaves them, "y,-x,z" takes
the sensor's y for x and its x, turned round, for y. Any other mounting is a 3 × 3 rotation whose rows are the device's
axes in the sensor's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.errors import SettingsError
from har_pipeline.gravity import AccelerationConvention, check_convention, specific_force
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
            f"axes are {str(axes)[:200]!r}, a mirror image, which no mounting of a sensor is; turn the sign of one axis"
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
