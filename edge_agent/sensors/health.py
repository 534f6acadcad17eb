"""How a live sensor is doing: rates, gravity, the gyroscope at rest, and what had to be left out; for `doctor`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from har_pipeline import Finding, Recording, SignalChecks

SPAN_S = 10.0
"""Seconds of samples that are looked at."""
NOTES = 5
CHECKED_S, SETTLED_S = 3600.0, 60.0
"""After an hour the signals are judged anew, so that what was put right is forgotten; for a minute as before."""
REST_SPREAD = 0.3
"""Below this standard deviation of |acceleration|, in m/s², the device lies still."""


class SensorHealth:
    """The last seconds of both sensors, and counts since the start."""

    def __init__(self, source: str) -> None:
        self.source, self._declared_hz = source, dict[str, float]()
        self.samples = {"acc": 0, "gyro": 0}
        self.counts: dict[str, int] = {}
        self.lost = 0
        self._notes: deque[str] = deque(maxlen=NOTES)
        self._recent: dict[str, deque[Recording]] = {"acc": deque(), "gyro": deque()}
        self._heard_at = 0.0
        self._checks, self._checked_since = SignalChecks(), time.monotonic()
        self._before: tuple[Finding, ...] | None = None

    def declare(self, rates_hz: Mapping[str, float]) -> None:
        """Check the sensors' rates from now on against those that are stated."""
        self._declared_hz = dict(rates_hz)
        self._checks = SignalChecks(self._declared_hz)

    def check(self, recording: Recording) -> None:
        """Take note of samples of any source, live or not, for `findings`."""
        if time.monotonic() - self._checked_since > CHECKED_S:
            self._before = self._checks.findings()
            self._checks, self._checked_since = SignalChecks(self._declared_hz), time.monotonic()
        self._checks.add(recording)

    def findings(self) -> tuple[Finding, ...]:
        """Return what is odd about the samples of the last hour or so."""
        early = time.monotonic() - self._checked_since < SETTLED_S
        return self._before if early and self._before is not None else self._checks.findings()

    def record(self, recording: Recording) -> None:
        """Take note of samples that came."""
        if not len(recording.times_s):
            return
        self.samples[recording.sensor] += len(recording.times_s)
        self._heard_at = time.time()
        recent = self._recent[recording.sensor]
        if recent and recent[-1].times_s[-1] > recording.times_s[0]:
            recent.clear()  # the clock jumped
        recent.append(recording)
        while recent and recent[0].times_s[-1] < recording.times_s[-1] - SPAN_S:
            recent.popleft()

    def note(self, words: str) -> None:
        """Keep a sentence about something that went wrong; the last few stay."""
        self._notes.append(words)

    def summary(self) -> dict[str, Any]:
        """Describe it as JSON; a quantity is None where there were no samples."""
        acc, gyro = (self._values(name) for name in ("acc", "gyro"))
        size = np.linalg.norm(acc, axis=1)
        still = bool(len(size)) and float(size.std()) < REST_SPREAD
        return {
            "source": self.source,
            "at": time.time(),
            "heard_at": self._heard_at,
            "rate_hz": {name: self._rate(name) for name in self._recent},
            "acceleration": float(np.median(size)) if len(size) else None,
            "direction": acc.mean(axis=0).round(3).tolist() if still else None,
            "at_rest": still,
            "rotation": float(np.linalg.norm(gyro.mean(axis=0))) if len(gyro) else None,
            "samples": self.samples,
            "left_out": self.counts,
            "windows_lost": self.lost,
            "notes": list(self._notes),
        }

    def _values(self, name: str) -> np.ndarray:
        chunks = [recording.values for recording in self._recent[name]]
        return np.concatenate(chunks) if chunks else np.empty((0, 3))

    def _rate(self, name: str) -> float | None:
        recent = self._recent[name]
        count = sum(len(recording.times_s) for recording in recent)
        span_s = float(recent[-1].times_s[-1] - recent[0].times_s[0]) if recent else 0.0
        return round((count - 1) / span_s, 1) if span_s > 0 else None
