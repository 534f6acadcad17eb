"""Finished windows: of one client, and of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from har_pipeline.errors import PipelineError
from har_pipeline.recording import Key, Origin, device_of, subject_of
from har_pipeline.settings import PipelineSettings
from har_pipeline.signals.checks import Finding
from har_pipeline.streaming.sensor_buffer import bandwidth_hz
from har_pipeline.streaming.stream import Window


@dataclass(frozen=True)
class ClientWindows:
    """The windows of one client, in the order in which they were recorded.

    x (n, window, 6) float32 in m/s² and rad/s (or normalized); y (n,) int64 index into the labels, by which windows
    are divided and grouped; start_s (n,) float64 on the client's clock, on which sessions follow each other; session
    (n,) int64, the contiguous segment; number (n,) float64, NaN where it is not known (left out: nowhere); target
    (n, ...) what a task learns where that is no class: see `targets`.
    """

    client: str
    x: np.ndarray
    y: np.ndarray
    start_s: np.ndarray
    session: np.ndarray
    number: np.ndarray = field(default_factory=lambda: np.empty(0))
    target: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Refuse arrays of unequal length; lay NaN for numbers that were left out."""
        if not len(self.number):
            object.__setattr__(self, "number", np.full(len(self.x), np.nan))
        parts = (self.x, self.y, self.start_s, self.session, self.number, self.targets)
        lengths = {len(part) for part in parts}
        if len(lengths) != 1:
            raise PipelineError(
                f"client {self.client}: x, y, start_s, session, number and target differ in length: {sorted(lengths)}"
            )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def targets(self) -> np.ndarray:
        """What a task learns (n, ...): numbers or masks where they were laid in, else the class."""
        return self.y if self.target is None else self.target

    def select(self, index: np.ndarray) -> ClientWindows:
        """Return the windows at `index` (indices or a mask)."""
        x, y, start_s, session = (part[index] for part in (self.x, self.y, self.start_s, self.session))
        target = None if self.target is None else self.target[index]
        return ClientWindows(self.client, x, y, start_s, session, self.number[index], target)

    def learning_numbers(self) -> ClientWindows:
        """Return the windows that have a number, as targets; in place of the class stands the session.

        So each stretch of recording is divided in time: of numbers hardly two windows have the same.
        """
        known = self.select(~np.isnan(self.number))
        return replace(known, y=known.session, target=known.number)

    @classmethod
    def stack(cls, client: str, windows: Sequence[Window], settings: PipelineSettings) -> ClientWindows:
        """Lay the windows of a stream together; none gives arrays of length 0."""
        x = np.stack([window.x for window in windows]) if windows else np.empty((0, settings.window, 6), np.float32)
        return cls(
            client,
            x,
            np.array([window.y for window in windows], dtype=np.int64),
            np.array([window.start_s for window in windows], dtype=np.float64),
            np.array([window.session for window in windows], dtype=np.int64),
            np.array([window.number for window in windows], dtype=np.float64),
        )


@dataclass(frozen=True)
class WindowedDataset:
    """A data set as windows: label names, clients sorted by id, the settings that made them, and clients' origins.

    rates_hz are the native rates of each client's sensors ("acc", "gyro") where recordings were cut, findings what is
    odd about the recordings. number says what windows' numbers are, with their unit; "" where there are none.
    """

    name: str
    labels: tuple[str, ...]
    clients: dict[str, ClientWindows]
    settings: PipelineSettings
    origins: Mapping[str, Origin] = field(default_factory=dict)
    rates_hz: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    number: str = ""

    def numbered(self) -> WindowedDataset:
        """Return the same without windows that have no number."""
        return replace(self, clients={name: data.select(~np.isnan(data.number)) for name, data in self.clients.items()})

    def learning_numbers(self) -> WindowedDataset:
        """Return the same with windows' numbers as targets, and without those that have none."""
        return replace(self, clients={name: data.learning_numbers() for name, data in self.clients.items()})

    def bandwidth_hz(self, client: str) -> float | None:
        """Say up to which frequency a client's windows hold what both its sensors measured; None if not known."""
        return min((bandwidth_hz(rate, self.settings) for rate in self.rates_hz.get(client, {}).values()), default=None)

    def origin(self, client: str) -> Origin:
        """Say where a client's windows come from; what its reader did not state is read from its id."""
        return self.origins.get(client) or Origin(self.name, subject_of(client), device_of(client))

    def clients_by(self, key: Key) -> dict[str, tuple[str, ...]]:
        """Group the clients by data set, user, device or place, both sorted; "" groups what is unknown."""
        groups: dict[str, list[str]] = {}
        for client in self.clients:
            groups.setdefault(getattr(self.origin(client), key), []).append(client)
        return {name: tuple(groups[name]) for name in sorted(groups)}

    def subject_of(self, client: str) -> str:
        """Return subject of a client, e.g. "a" of "a_nexus4"; "spsw-s07" of "spsw-s07_sw" in a combination."""
        return self.origin(client).user

    def device_of(self, client: str) -> str:
        """Return what tells a subject's clients apart, "nexus4" of "a_nexus4"; else the set's device."""
        return device_of(client) or self.origin(client).device

    @property
    def subjects(self) -> tuple[str, ...]:
        """All subjects, sorted."""
        return tuple(sorted({self.subject_of(client) for client in self.clients}))

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices or body places, sorted."""
        return tuple(sorted({self.device_of(client) for client in self.clients}))

    def class_counts(self) -> dict[str, np.ndarray]:
        """Return windows per class (len(labels),) of each client."""
        return {
            name: np.bincount(data.y[data.y >= 0], minlength=len(self.labels)) for name, data in self.clients.items()
        }
