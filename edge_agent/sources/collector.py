"""From samples to kept windows: what every sensor source pushes into.

Owns the pipeline and the connection to the windows; only the source's thread calls it. A full disk pauses it, a
broken database is replaced, and in both cases it says so.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

from edge_agent.config import Config
from edge_agent.errors import DamagedError, DiskFullError
from edge_agent.events import CollectingPaused, CollectingResumed, DataReady, WindowsSeen
from edge_agent.local_data import pipeline_settings, training_count
from edge_agent.sources.health import Health
from edge_agent.sources.repair import open_checked
from edge_agent.sources.source import Post
from edge_agent.window_store import RECORDING, SUSPECT
from federation.plan import Plan
from har_pipeline import Recording, SignalError, StreamPipeline, Window

log = logging.getLogger("edge_agent")

BATCH = 256
"""Windows per transaction, at the most."""
WAITING = 4 * BATCH
"""Windows that wait in memory while the disk is full; older ones are lost."""
SHOWN = 16
"""Of windows that come at once, so many are classified: the newest."""
FLUSH_S = 5.0
"""Seconds of windows that a kill can cost; more often would wear out an SD card."""
REPORT_S = 5.0
RETRY_S = 1.0
ROOM_AGAIN = 1.25
"""Times min_free_mb must be free before a pause ends: else it would begin again at once."""
TELLING, TELL_S = 0.1, 60.0
"""A change by such a share of the windows is told at once, a smaller one after a minute."""
LIVE_LAG_S = 30.0
"""How far one live sensor may run ahead of the other before the stretch is given up."""


class Collector:
    """Turns recordings into windows and keeps them; `live` sources lose what cannot be kept, others wait."""

    def __init__(self, config: Config, plan: Plan, post: Post, *, origin: str, live: bool, stop: threading.Event):
        self.config, self.plan, self.post, self.origin, self.live = config, plan, post, origin, live
        self.folder: Path = config.agent.data_dir
        self.settings = pipeline_settings(config.sensors, plan.data)
        recorded = origin == RECORDING
        cut = self.settings if recorded else replace(self.settings, keep_unlabelled=True)
        self._cut = replace(cut, late="drop", max_lag_s=min(cut.max_lag_s, LIVE_LAG_S)) if live else cut
        self._shown = live or config.sensors.replay_speed != "max"  # at the pace of life
        self.health = Health(config.sensors.source)
        self._stop = stop
        self._pending: list[Window] = []
        self._flushed = self._reported = self._retried = time.monotonic()
        self._paused = ""
        self._told: int | None = None
        self._told_at = 0.0
        self._open()
        self._pipeline = StreamPipeline(self._cut, plan.labels)
        self._session = self._next_session = 0 if recorded else self.store.next_session()

    def _open(self) -> None:
        while True:
            try:
                self.store, trouble = open_checked(self.folder)
                break
            except DiskFullError as error:  # not even for an empty file
                self._pause(str(error))
                if self._stop.wait(RETRY_S):
                    raise
        if trouble:
            log.error("%s", trouble)
            self.health.note(trouble)
        try:
            self._note_plan()
        except DiskFullError as error:
            self._pause(str(error))

    def _note_plan(self) -> None:
        """Tell other processes which labels there are, and whose windows they are to read."""
        reads = RECORDING if self.origin == RECORDING else "own"
        notes = {"labels": json.dumps(self.plan.labels), "reads": reads}
        if any(self.store.get(name) != value for name, value in notes.items()):
            self.store.put(**notes)

    # ---- samples

    def push(self, recording: Recording) -> None:
        """Take a stretch of one sensor; raises har_pipeline's errors for recordings, but never for a live sensor."""
        if self.live:
            self.health.saw(recording)
        try:
            self._take(self._pipeline.push(recording))
        except SignalError as error:
            if not self.live:
                raise
            self.health.note(str(error))
            self._new_pipeline()
        self.tick()

    def end_session(self) -> None:
        """Finish what is under way: the next samples follow a pause, a new recording or a jump of the clock."""
        self._take(self._pipeline.flush())

    def _new_pipeline(self) -> None:
        self._pipeline, self._session = StreamPipeline(self._cut, self.plan.labels), self._next_session

    def _take(self, windows: list[Window]) -> None:
        if windows and self._shown:
            self.post(WindowsSeen(tuple(windows[-SHOWN:])))
        if self.origin == RECORDING:
            windows = [window for window in windows if window.y >= 0]
        for window in windows:
            self._pending.append(window._replace(session=window.session + self._session))
            self._next_session = max(self._next_session, self._pending[-1].session + 1)
        if len(self._pending) >= BATCH:
            self.flush()

    # ---- windows

    def tick(self) -> None:
        """Keep what has waited for long enough, and say how many windows there are; call it every second or so."""
        now = time.monotonic()
        if self._pending and now - self._flushed >= FLUSH_S:
            self.flush()
        if now - self._reported >= REPORT_S:
            self._reported = now
            self._look_after()

    def close(self) -> None:
        """Keep what is left, and close the windows."""
        try:
            self.end_session()
            self.flush()
            if self.live:
                self._look_after()
        finally:
            self.store.close()

    def flush(self) -> None:
        """Keep the windows that wait, if there is room."""
        self._flushed = time.monotonic()
        while self._pending and not self._keep():
            if self.live:
                self.health.lost += max(0, len(self._pending) - WAITING)
                self._pending = self._pending[-WAITING:]
                return
            if self._stop.wait(RETRY_S):
                return

    def _keep(self) -> bool:
        if self._paused and time.monotonic() - self._retried < RETRY_S and self.live:
            return False
        self._retried = time.monotonic()
        try:
            self._refuse_full_disk()
            while self._pending:
                batch = self._pending[:BATCH]
                self.store.add(batch, self.plan.labels, self.settings, self.config.windows, origin=self.origin)
                del self._pending[: len(batch)]
        except DiskFullError as error:
            self._pause(str(error))
            return False
        except DamagedError as error:
            log.error("%s", error)
            self._reopen()
            return False
        self._resume()
        return True

    def _refuse_full_disk(self) -> None:
        free, least = shutil.disk_usage(self.folder).free / 1e6, self.config.windows.min_free_mb
        if free < least * (ROOM_AGAIN if self._paused else 1.0):
            raise DiskFullError(
                f"the disk of {self.folder} has {free:.0f} MB of free space, [windows] min_free_mb asks for {least:.0f}"
            )

    def _pause(self, reason: str) -> None:
        if not self._paused:
            log.error("collecting pauses: %s", reason)
            self.post(CollectingPaused(f"collecting pauses: {reason}"))
        self._paused = reason

    def _resume(self) -> None:
        if self._paused:
            log.info("collecting goes on: there is room again")
            self.post(CollectingResumed())
        self._paused = ""

    def _reopen(self) -> None:
        self.store.close()
        self._open()

    # ---- what others are told

    def ready(self) -> None:
        """Post how many windows there are to train on, if that is news."""
        outline = self.store.outline(self.config.sensor_client, self.settings, self.plan.labels)
        count = training_count(outline, self.plan.data, self.settings)
        told = self._told
        # each is a message to the broker: not for every window
        much = told is None or not told or abs(count - told) >= TELLING * told
        if count != told and (much or time.monotonic() - self._told_at >= TELL_S):
            self._told, self._told_at = count, time.monotonic()
            self.post(DataReady(count))

    def _look_after(self) -> None:
        """Every few seconds: replace a broken database, see whether there is room again, tell what is new."""
        try:
            if (self.folder / SUSPECT).exists():
                self._reopen()
            if self._paused and not self._pending:
                self._refuse_full_disk()
                self._note_plan()
                self._resume()
            if self.live:
                self.ready()
                self.store.put(health=json.dumps(self.health.summary()))
        except DiskFullError as error:
            self._pause(str(error))
        except DamagedError as error:
            log.error("%s", error)
            self._reopen()
