"""Writes finished windows to the database, and copes with a full disk, a damaged file and a locked one.

Only the collecting thread calls it. A full disk or a locked file pauses it, and a damaged database is replaced; each is
logged. Windows that can't be stored wait in memory, up to a limit.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from pathlib import Path
from typing import NamedTuple

from edge_agent.config.settings import Config
from edge_agent.errors import DamagedError, DiskFullError, LockedError, StoreError
from edge_agent.machine.events import CollectingPaused, CollectingResumed
from edge_agent.sensors.source import Post, SensorHealth
from edge_agent.storage.repair import open_checked
from edge_agent.storage.window_store import RECORDING, SUSPECT
from federation.plan import Plan
from gaitway.tasks import TargetKind, task_of
from har_pipeline import PipelineSettings, Window

log = logging.getLogger(__name__)

BATCH = 256
"""Windows per transaction, at the most."""
MAX_QUEUED = 4 * BATCH
"""Windows of a live sensor that wait in memory while they cannot be written; older ones are lost."""
BUSY_S = 2.0
"""How long a sensor waits for another program that holds the file; from then on its windows wait in memory."""
FLUSH_S = 5.0
"""Seconds of windows that a kill can cost; more often would wear out an SD card."""
RETRY_S = 1.0
RESUME_FACTOR = 1.25
"""Times min_free_mb must be free before a pause ends: else it would begin again at once."""


class Feed(NamedTuple):
    """Where windows come from, whether their source waits for nobody, who hears of them, and what ends it."""

    origin: str
    live: bool
    post: Post
    stop: threading.Event


class WindowWriter:
    """Keeps windows under a plan's labels; a `live` source loses what cannot be kept, others are made to wait."""

    def __init__(
        self,
        config: Config,
        plan: Plan,
        settings: PipelineSettings,
        health: SensorHealth,
        feed: Feed,
    ) -> None:
        measures = task_of(plan.task).target is TargetKind.NUMBER
        self.vocabulary = () if measures else plan.labels  # what people can label windows with
        self.limits, self.labels, self.settings, self.origin = config.windows, plan.labels, settings, feed.origin
        self.folder: Path = config.agent.data_dir
        self.health, self.post, self.live = health, feed.post, feed.live
        self.kept = 0
        self._stop = feed.stop
        self._pending: list[Window] = []
        self._flushed = self._retried = time.monotonic()
        self._paused = ""
        self._open()

    def add(self, windows: list[Window]) -> None:
        """Take windows; they are in the database at the latest after `FLUSH_S` of calls to `tick`."""
        self._pending += windows
        if len(self._pending) >= BATCH:
            self.flush()

    def tick(self) -> None:
        """Keep what has waited for long enough."""
        if self._pending and time.monotonic() - self._flushed >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Keep the windows that wait, if there is room."""
        self._flushed = time.monotonic()
        while self._pending and not self._keep():
            if self.live:
                self.health.lost += max(0, len(self._pending) - MAX_QUEUED)
                self._pending = self._pending[-MAX_QUEUED:]
                return
            if self._stop.wait(RETRY_S):
                return

    def maintain(self) -> None:
        """Replace a database that a reader found broken, and see whether there is room again."""
        if (self.folder / SUSPECT).exists():
            self.reopen()
        if self._paused and not self._pending:
            self._refuse_full_disk()
            self._note_plan()
            self._resume()

    def handle_error(self, error: StoreError) -> None:
        """Do about an error of the database what can be done, and say it."""
        if isinstance(error, DiskFullError | LockedError):
            self._pause(str(error))
        elif isinstance(error, DamagedError):
            log.error("%s", error)
            self.reopen()
        else:
            log.warning("%s; retrying soon", error)

    def reopen(self) -> None:
        """Reopen the database; a broken one is replaced."""
        self.store.close()
        self._open()

    def _open(self) -> None:
        while True:
            try:
                self.store, handle_error = open_checked(self.folder, busy_s=BUSY_S)
                break
            except (DiskFullError, LockedError) as error:
                self._pause(str(error))
                if self._stop.wait(RETRY_S):
                    raise
        if handle_error:
            log.error("%s", handle_error)
            self.health.note(handle_error)
        try:
            self._note_plan()
        except (DiskFullError, LockedError) as error:
            self._pause(str(error))

    def _note_plan(self) -> None:
        """Tell other processes which labels there are, and whose windows they are to read."""
        reads = RECORDING if self.origin == RECORDING else "own"
        notes = {"labels": json.dumps(self.vocabulary), "reads": reads}
        if any(self.store.get(name) != value for name, value in notes.items()):
            self.store.put(**notes)

    def _keep(self) -> bool:
        if self._paused and time.monotonic() - self._retried < RETRY_S and self.live:
            return False
        self._retried = time.monotonic()
        try:
            self._refuse_full_disk()
            while batch := self._pending[:BATCH]:
                self.store.add(batch, self.labels, self.settings, self.limits, origin=self.origin)
                self.kept += len(batch)
                del self._pending[: len(batch)]
        except StoreError as error:
            self.handle_error(error)
            return False
        self._resume()
        return True

    def _refuse_full_disk(self) -> None:
        free, least = shutil.disk_usage(self.folder).free / 1e6, self.limits.min_free_mb
        if free < least * (RESUME_FACTOR if self._paused else 1.0):
            raise DiskFullError(
                f"the disk of {self.folder} has {free:.0f} MB of free space, [windows] min_free_mb asks for {least:.0f}"
            )

    def _pause(self, reason: str) -> None:
        if not self._paused:
            log.error("collecting paused: %s", reason)
            self.post(CollectingPaused(f"collecting paused: {reason}"))
        self._paused = reason

    def _resume(self) -> None:
        if self._paused:
            log.info("collecting resumed: windows are written again")
            self.post(CollectingResumed())
        self._paused = ""
