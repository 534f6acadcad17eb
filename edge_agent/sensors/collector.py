"""Turns samples into stored windows; every sensor source pushes into it, only from its own thread."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import replace

from edge_agent.config.settings import Config
from edge_agent.errors import StoreError
from edge_agent.machine.events import DataReady, NewWindows
from edge_agent.sensors.source import Post, SensorHealth, give_memory_back
from edge_agent.sensors.window_writer import Feed, WindowWriter
from edge_agent.storage.window_store import RECORDING, WindowStore
from edge_agent.training.local_data import (
    MIN_MEASURED,
    pipeline_settings,
    stored_examples,
    training_windows,
    window_keys,
)
from federation.plan import Plan
from gaitway.tasks import TargetKind, task_of
from har_pipeline import Recording, SignalError, StreamPipeline, Window
from har_pipeline.signals.checks import SENSORS

log = logging.getLogger(__name__)

MAX_CLASSIFIED = 16
"""Of windows that come at once, so many are classified: the newest."""
REPORT_S = 5.0
MIN_CHANGE_SHARE, MAX_REPORT_DELAY_S = 0.1, 60.0
"""A change by such a share of the windows is told at once, a smaller one after a minute."""
LIVE_LAG_S = 30.0
"""How far one live sensor may run ahead of the other before the stretch is given up."""


class Collector:
    """Turns recordings into windows and has them kept; `live` sources lose what cannot be kept, others wait."""

    def __init__(
        self,
        config: Config,
        plan: Plan,
        post: Post,
        *,
        origin: str,
        live: bool,
        stop: threading.Event,
    ) -> None:
        self.config, self.plan, self.post, self.origin, self.live = config, plan, post, origin, live
        self.settings = pipeline_settings(config.sensors, plan.data)
        recorded = origin == RECORDING
        self._numbers = task_of(plan.task).target is TargetKind.NUMBER  # the plan's label is no activity then
        labelled = recorded and task_of(plan.task).has_classes
        cut = self.settings if labelled else replace(self.settings, keep_unlabelled=True)
        self._cut = replace(cut, late="drop", max_lag_s=min(cut.max_lag_s, LIVE_LAG_S)) if live else cut
        self._shown = live or config.sensors.replay_speed != "max"  # in real time
        self.health = SensorHealth(config.sensors.source)
        self.writer = WindowWriter(config, plan, self.settings, self.health, Feed(origin, live, post, stop))
        self._reported = time.monotonic()
        self._reported_keys: frozenset[int] = frozenset()
        self._is_reported = False
        self._reported_unlabelled = frozenset[int]()
        self._reported_at = 0.0
        self._counted: tuple[int, int] | None = None
        self._saved_samples = -1
        self._findings: set[tuple[str, str]] = set()
        self._pipeline = StreamPipeline(self._cut, plan.labels, report=None)
        self._session = self._next_session = 0 if recorded else self.store.next_session()

    @property
    def store(self) -> WindowStore:
        """The windows; another one after a broken database was replaced."""
        return self.writer.store

    # ---- samples

    def push(self, recording: Recording) -> None:
        """Take a stretch of one sensor; raises har_pipeline's errors for recordings, but never for a live sensor."""
        if self.live:
            self.health.record(recording)
        self.health.check(recording)
        try:
            self._take(self._pipeline.push(recording._replace(activity="") if self._numbers else recording))
        except SignalError as error:
            if not self.live:
                raise
            self.health.note(str(error))
            self._pipeline, self._session = StreamPipeline(self._cut, self.plan.labels, report=None), self._next_session
        self.tick()

    def end_session(self) -> None:
        """Finish what is under way: the next samples follow a pause, a new recording or a jump of the clock."""
        self._take(self._pipeline.flush())

    def _take(self, windows: list[Window]) -> None:
        if windows and self._shown:
            self.post(NewWindows(tuple(windows[-MAX_CLASSIFIED:])))
        if self.origin == RECORDING:
            windows = [window for window in windows if window.y >= 0 or not task_of(self.plan.task).has_classes]
        # a pipeline counts sessions from 0; those of an earlier one stay apart
        windows = [window._replace(session=window.session + self._session) for window in windows]
        self._next_session = max(self._next_session, *(window.session + 1 for window in windows), 0)
        self.writer.add(windows)

    # ---- windows

    def tick(self) -> None:
        """Keep what has waited for long enough, and say what is new; call it every second or so."""
        self.writer.tick()
        if time.monotonic() - self._reported >= REPORT_S:
            self._reported = time.monotonic()
            self._maintain()

    def flush(self) -> None:
        """Keep the windows that wait, if there is room."""
        self.writer.flush()

    def close(self) -> None:
        """Keep what is left, and close the windows."""
        try:
            self.end_session()
            self.flush()
            self._maintain()
        finally:
            self.store.close()

    # ---- what others are told

    def post_ready(self) -> None:
        """Post which windows there are to train on, if that is news."""
        counted = (self.writer.kept, self.store.version())
        if counted == self._counted:
            return
        outline = stored_examples(self.store, self.config.sensor_client, self.settings, self.plan, samples=False)
        windows, reported = training_windows(outline, self.plan.data, self.settings), self._reported_keys
        count = len(windows)
        keys, unlabelled = window_keys(windows), frozenset[int]() if count else self._unlabelled_keys()
        measurable = count > 0 or len(unlabelled) >= MIN_MEASURED
        # each is a message to the broker, or a line in the log: not for every window
        before, now = (len(reported), count) if count else (len(self._reported_unlabelled), len(unlabelled))
        much = not before or not now or abs(now - before) >= MIN_CHANGE_SHARE * before
        if not much and time.monotonic() - self._reported_at < MAX_REPORT_DELAY_S:
            return
        self._counted = counted
        if self._is_reported and (keys, unlabelled) == (reported, self._reported_unlabelled):
            return
        self._is_reported = True
        self._reported_keys, self._reported_unlabelled, self._reported_at = keys, unlabelled, time.monotonic()
        self.post(DataReady(count, measurable=measurable, keys=keys, unlabelled=unlabelled))

    def watch(self, stop: threading.Event) -> None:
        """Post which windows there are, and again when other programs label or delete some, until `stop` is set."""
        self.post_ready()
        give_memory_back()
        while not stop.wait(REPORT_S):
            try:
                self.post_ready()
            except StoreError as error:
                self.writer.handle_error(error)

    def _unlabelled_keys(self) -> frozenset[int]:
        me, labels = self.config.sensor_client, self.plan.labels
        return window_keys(self.store.outline(me, self.settings, labels, unlabelled=True))

    def _maintain(self) -> None:
        try:
            self.writer.maintain()
            self.save_findings()
            if self.live:
                self.post_ready()
                if (heard := sum(self.health.samples.values())) != self._saved_samples:
                    self.store.put(health=json.dumps(self.health.summary()))
                    self._saved_samples = heard
        except StoreError as error:
            self.writer.handle_error(error)

    def save_findings(self) -> list[tuple[str, str]]:
        """Save the findings about the samples for status and doctor, and log what is new of it; returns it in words."""
        findings = {(finding.code, finding.sensor): finding for finding in self.health.findings()}
        messages = {
            key: f"{SENSORS.get(finding.sensor, 'sensors')}: {finding.message}" for key, finding in findings.items()
        }
        noted: list[tuple[str, str]] = [(finding.severity, messages[key]) for key, finding in findings.items()]
        if findings.keys() == self._findings and self.store.get("findings"):
            return noted
        for key, finding in findings.items():
            if finding.severity != "note" and key not in self._findings:
                log.warning("%s", messages[key])
        self.store.put(findings=json.dumps(noted))
        self._findings = set(findings)
        return noted
