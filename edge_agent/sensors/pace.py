"""Lets time pass in a replay as it did when the samples were taken."""

from __future__ import annotations

import threading

from har_pipeline import Recording


class Pace:
    """`speed` times as fast, or at once with "max"."""

    def __init__(self, speed: float | str, stop: threading.Event) -> None:
        self.speed, self.stop = speed, stop
        self.session, self.newest_s = "", 0.0

    def wait(self, recording: Recording) -> None:
        """Wait for as long as a recording, or a chunk of one, has lasted; no longer than until `stop` is set."""
        if isinstance(self.speed, str) or not len(recording.times_s):
            return
        if recording.session != self.session:
            self.session, self.newest_s = recording.session, float(recording.times_s[0])
        advance_s = max(0.0, float(recording.times_s[-1]) - self.newest_s)
        self.newest_s += advance_s
        self.stop.wait(advance_s / self.speed)
