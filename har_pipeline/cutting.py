"""Cuts all clients' recordings into windows, with one stream per client, and reports what was lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from har_pipeline.errors import SignalError
from har_pipeline.recording import Recording
from har_pipeline.settings import PipelineSettings
from har_pipeline.signals.checks import Finding, SignalChecks
from har_pipeline.streaming.sensor_buffer import PAUSE_S
from har_pipeline.streaming.stream import NO_LABEL, StreamPipeline, Window, encode_activity
from har_pipeline.streaming.windows import ClientWindows

MIN_RECORDED_S, WINDOWS_LONG = 10.0, 2.0
"""Minimum length of an activity, and of its stretches in windows; shorter ones may fill no window."""
FEW_WINDOWS = 0.5
"""Share of the possible windows below which gaps or changing labels are reported."""


class _LabelledTime:
    """Seconds of each activity in stretches of at least `least_s`, including gaps but not pauses."""

    def __init__(self, labels: int, least_s: float) -> None:
        self.seconds = np.zeros(labels)
        self._least_s = least_s
        self._code, self._stretch_s, self._last_s = NO_LABEL, 0.0, -np.inf

    def add(self, times_s: np.ndarray, codes: np.ndarray) -> None:
        """Take samples of codes (n,), -1 where there is no activity."""
        times_s, codes = times_s[np.isfinite(times_s)], codes[np.isfinite(times_s)]
        if not len(times_s):
            return
        steps = np.diff(times_s, prepend=self._last_s)
        steps = np.where((steps >= 0) & (steps <= PAUSE_S), steps, 0.0)
        edges = np.flatnonzero(np.diff(codes, prepend=self._code))
        for part in np.split(np.arange(len(codes)), edges):
            if len(part) and codes[part[0]] != self._code:
                self.end()
                self._code = int(codes[part[0]])
            self._stretch_s += float(steps[part].sum())
        self._last_s = float(times_s[-1])

    def end(self) -> None:
        """Count the stretch that is under way."""
        if self._code != NO_LABEL and self._stretch_s >= self._least_s:
            self.seconds[self._code] += self._stretch_s
        self._code, self._stretch_s = NO_LABEL, 0.0


@dataclass
class _Client:
    """One client's stream, windows and sessions, and the current session: its start, and whether it is left out."""

    stream: StreamPipeline
    time: _LabelledTime
    windows: list[Window] = field(default_factory=list)
    sessions: int = 0
    session: str | None = None
    began_at: int = 0
    is_left_out: bool = False


class WindowCutter:
    """Cuts recordings as they arrive; with `leaves_out`, sessions without usable times are left out and reported."""

    def __init__(
        self, settings: PipelineSettings, labels: tuple[str, ...], checks: SignalChecks, *, leaves_out: bool
    ) -> None:
        self._settings, self._labels, self._checks, self._leaves_out = settings, labels, checks, leaves_out
        self._clients: dict[str, _Client] = {}
        self._left_out: list[tuple[Finding, SignalError]] = []

    def take(self, recording: Recording) -> None:
        """Cut a recording or a chunk of one; raise SignalError with the checks' findings about the client."""
        client = self._client(recording.client)
        if recording.session != client.session:
            client.time.end()
            client.windows += client.stream.flush()
            client.session, client.began_at, client.is_left_out = recording.session, len(client.windows), False
            client.sessions += 1
        self._checks.add(recording)
        if client.is_left_out:
            return
        if recording.sensor == "acc":
            client.time.add(np.asarray(recording.times_s), encode_activity(recording, self._labels))
        try:
            client.windows += client.stream.push(recording)
        except SignalError as error:
            self._leave_out(client, recording, self._explained(error, recording.client))

    def finish(self) -> dict[str, ClientWindows]:
        """Return each client's windows; raise SignalError if everything was left out."""
        for client in self._clients.values():
            client.time.end()
            client.windows += client.stream.flush()
        if self._left_out and not any(client.windows for client in self._clients.values()):
            raise self._left_out[0][1]
        # Popped, so that at most one client's windows are in memory twice.
        return {name: ClientWindows.stack(name, self._popped(name), self._settings) for name in list(self._clients)}

    def findings(self, windows: Mapping[str, ClientWindows]) -> Iterator[Finding]:
        """Yield what was left out of finish()'s windows, and where labelled time gave few windows or none."""
        yield from (finding for finding, _ in self._left_out)
        for name in self._clients:
            if len(windows[name]):
                yield from self._lost(name, windows[name].y)

    def _client(self, name: str) -> _Client:
        if name not in self._clients:
            time = _LabelledTime(len(self._labels), WINDOWS_LONG * self._settings.window_s)
            self._clients[name] = _Client(StreamPipeline(self._settings, self._labels, report=None), time)
        return self._clients[name]

    def _lost(self, name: str, y: np.ndarray) -> Iterator[Finding]:
        """Yield activities without windows despite their length, and a general lack of windows."""
        client, recorded_s = self._clients[name], self._clients[name].time.seconds
        settings, counts = self._settings, np.bincount(y[y >= 0], minlength=len(self._labels))
        why = (
            f"a window needs {settings.window_s:.2f} s of one activity without a gap of more than "
            f"{settings.max_gap_s:g} s (of a slower sensor, five of its steps)"
        )
        for label in np.flatnonzero((counts == 0) & (recorded_s >= MIN_RECORDED_S)):
            words = f"{self._labels[label]!r} was recorded for {recorded_s[label]:.0f} s and has no window; {why}"
            yield Finding("warning", "activity_without_windows", name, "", words)
        stride_s = settings.stride / settings.rate_hz
        possible = (recorded_s.sum() - client.sessions * (settings.window_s - stride_s)) / stride_s
        if recorded_s.sum() >= MIN_RECORDED_S and counts.sum() < FEW_WINDOWS * possible:
            words = f"{recorded_s.sum():.0f} s gave {counts.sum()} windows of {possible:.0f} possible; {why}"
            yield Finding("warning", "few_windows", name, "", words)

    def _popped(self, name: str) -> list[Window]:
        windows, self._clients[name].windows = self._clients[name].windows, []
        return windows

    def _explained(self, error: SignalError, client: str) -> SignalError:
        reasons = [
            finding for finding in self._checks.findings() if (finding.severity, finding.client) == ("error", client)
        ]
        return SignalError(f"{error}. {reasons[0].where}: {reasons[0].message}") if reasons else error

    def _leave_out(self, client: _Client, recording: Recording, error: SignalError) -> None:
        if not self._leaves_out:
            raise error
        client.is_left_out = True
        client.stream.discard()
        del client.windows[client.began_at :]
        message = f"session {recording.session} was left out: {error}"
        self._left_out.append((Finding("warning", "left_out", recording.client, "", message), error))
