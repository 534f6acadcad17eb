"""Compares clients' direction of gravity in the same activity, to find those who carry the sensor differently.

No client's samples tell alone which way is up (all signs may be turned round together), nor whether its axes are those
of the others. But people who do the same and wear the same device alike have gravity along the same axes; whoever
differs from a clear majority wears it otherwise, or has an axis with the wrong sign, or swapped axes. Nothing is said
where there is no majority: phones are put into pockets either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from har_pipeline.recording import UNLABELLED, Categorical, Recording, device_of

MIN_CLIENTS = 4
"""Of one kind of device in one activity; fewer are no majority."""
MIN_SAMPLES = 256
MIN_STEADINESS = 0.5
"""Of |mean| in the mean size: below, the direction changes too much to be one."""
MIN_MAJORITY = 0.75
"""Share of the clients whose gravity lies within NEAR (50°) of the majority's; who differs is beyond FAR (70°)."""
NEAR = np.cos(np.deg2rad(50))
FAR = np.cos(np.deg2rad(70))
MIN_SHARE = 0.5
"""Of a client's compared activities in which it must differ: one posture may be anybody's own."""
AXES = "xyz"


@dataclass
class Direction:
    """Sums over samples of one client in one activity."""

    total: np.ndarray = field(default_factory=lambda: np.zeros(3))
    size: float = 0.0
    count: int = 0

    def add(self, other: Direction) -> None:
        """Count another's samples too."""
        self.total, self.size, self.count = self.total + other.total, self.size + other.size, self.count + other.count

    @property
    def unit(self) -> np.ndarray | None:
        """Direction (3,) of specific force, so upwards; None where it is too short or changes too much."""
        length = float(np.linalg.norm(self.total))
        if self.count < MIN_SAMPLES or not length > MIN_STEADINESS * self.size:
            return None
        return self.total / length


class Difference(NamedTuple):
    """A client whose gravity points elsewhere than the others', in which activities, and in words how."""

    client: str
    activities: tuple[str, ...]
    words: str


class GravityDirections:
    """Sums up accelerations by client and activity; constant memory for each pair."""

    def __init__(self) -> None:
        self._directions: dict[tuple[str, str], Direction] = {}

    def add(self, recording: Recording) -> None:
        """Take note of a stretch of an accelerometer, in specific force; others are passed over."""
        if recording.sensor != "acc":
            return
        values = np.asarray(recording.values, dtype=np.float64)
        usable = np.isfinite(values).all(axis=1)
        for activity, mask in _by_activity(recording):
            rows = values[mask & usable]
            if activity not in UNLABELLED and len(rows):
                sizes = float(np.linalg.norm(rows, axis=1).sum())
                self._at(recording.client, activity).add(Direction(rows.sum(axis=0), sizes, len(rows)))

    def merge(self, other: GravityDirections) -> None:
        """Take over what another has seen."""
        for (client, activity), direction in other._directions.items():
            self._at(client, activity).add(direction)

    def _at(self, client: str, activity: str) -> Direction:
        return self._directions.setdefault((client, activity), Direction())

    def differences(self) -> list[Difference]:
        """Compare clients of the same kind of device (`anna_wrist` with other wrists), activity by activity."""
        compared: dict[str, int] = {}
        differing: dict[str, list[tuple[str, np.ndarray, np.ndarray]]] = {}
        for activity, units in self._groups():
            majority = _majority(units.values())
            if majority is None:
                continue
            for client, unit in units.items():
                compared[client] = compared.get(client, 0) + 1
                if float(unit @ majority) < FAR:
                    differing.setdefault(client, []).append((activity, unit, majority))
        return [
            Difference(client, tuple(activity for activity, _, _ in found), _words(found))
            for client, found in sorted(differing.items())
            if len(found) >= MIN_SHARE * compared[client]
        ]

    def _groups(self) -> Iterable[tuple[str, dict[str, np.ndarray]]]:
        groups: dict[tuple[str, str], dict[str, np.ndarray]] = {}
        for (client, activity), direction in self._directions.items():
            if (unit := direction.unit) is not None:
                groups.setdefault((activity, device_of(client)), {})[client] = unit
        return [(activity, units) for (activity, _), units in sorted(groups.items())]


def _by_activity(recording: Recording) -> list[tuple[str, np.ndarray]]:
    """Return each activity of a recording with a mask (n,) of its samples."""
    activity = recording.activity
    if isinstance(activity, str):
        return [(activity, np.ones(len(recording.times_s), dtype=bool))]
    words = activity if isinstance(activity, Categorical) else Categorical.of(activity)
    return [(str(name), words.codes == code) for code, name in enumerate(words.names.tolist())]


def _majority(units: Iterable[np.ndarray]) -> np.ndarray | None:
    """Return the direction (3,) near which MIN_MAJORITY of the units lie; None if there is none, or too few units."""
    rows = np.array(list(units))
    if len(rows) < MIN_CLIENTS:
        return None
    near = rows @ rows.T >= NEAR
    best = near[int(near.sum(axis=1).argmax())]
    centre = rows[best].sum(axis=0)
    centre /= np.linalg.norm(centre)
    return centre if (rows @ centre >= NEAR).mean() >= MIN_MAJORITY else None


def _words(found: list[tuple[str, np.ndarray, np.ndarray]]) -> str:
    """Say how a client differs, by the activity in which it differs most."""
    activity, unit, majority = min(found, key=lambda entry: float(entry[1] @ entry[2]))
    own, others = _main_axis(unit), _main_axis(majority)
    more = f" (and in {len(found) - 1} activities more)" if len(found) > 1 else ""
    what = f"upwards is {own} in {activity} where most others have {others}{more}"
    if own[1] != others[1]:
        return f"{what}: worn otherwise, or axes swapped; see acc.columns and acc.matrix"
    return (
        f"{what}: the device the other way up, an axis with the wrong sign (acc.scale), or all of them "
        '(acceleration = "gravity points down")'
    )


def _main_axis(unit: np.ndarray) -> str:
    axis = int(np.abs(unit).argmax())
    return f"{'+' if unit[axis] > 0 else '−'}{AXES[axis]}"
