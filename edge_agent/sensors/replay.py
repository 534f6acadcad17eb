"""Files as a sensor source: each is taken once, whole or not at all, and not again after a restart."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from edge_agent.errors import SensorError
from edge_agent.sensors.collector import Collector
from edge_agent.sensors.source import ThreadedSource
from federation.plan import Plan
from har_pipeline import Recording


class ReplayClock:
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


log = logging.getLogger(__name__)


class PacedSink:
    """Hands samples on, no faster than `[sensors] replay_speed` says."""

    def __init__(self, collector: Collector, clock: ReplayClock) -> None:
        self._collector, self._clock = collector, clock

    def push(self, recording: Recording) -> None:
        """Take a stretch of one sensor, and let its time pass."""
        self._collector.push(recording)
        if recording.sensor == "acc":
            self._clock.wait(recording)

    def end_session(self) -> None:
        """Finish what is under way."""
        self._collector.end_session()


class FileSource(ThreadedSource):
    """Takes every file that `files` finds below [sensors] path; posts DataReady once all are in."""

    kind: str

    @abstractmethod
    def files(self, path: Path) -> Sequence[Path]:
        """List what is to be taken, in a stable order."""

    @abstractmethod
    def settings(self) -> str:
        """Everything in the config that changes what a file means."""

    @abstractmethod
    def replay(self, path: Path, plan: Plan, sink: PacedSink, stop: threading.Event) -> None:
        """Push one file; its sessions are ended."""

    def collect(self, plan: Plan, stop: threading.Event) -> None:
        """Take what has not been taken before."""
        path = self.config.sensors.path
        if path is None or not path.exists():
            raise SensorError(
                f"[sensors] path is {str(path or '')!r}; expected a file or a folder for source {self.kind}"
            )
        if not (found := self.files(path)):
            raise SensorError(f"{path} holds nothing that the source {self.kind} can read; see docs/edge_agent.md")
        for each in found:
            self._take(each, plan, stop)
            if stop.is_set():
                return
        collector = Collector(self.config, plan, self.post, origin=self.kind, live=False, stop=stop)
        collector.ready()
        collector.close()

    def _take(self, path: Path, plan: Plan, stop: threading.Event) -> None:
        key = self._key(path, plan)
        collector = Collector(self.config, plan, self.post, origin=f"{self.kind}:{key}", live=False, stop=stop)
        try:
            if collector.store.get(f"taken:{key}"):
                return
            collector.store.drop_origin(collector.origin)  # one that was interrupted begins again
            self.replay(path, plan, PacedSink(collector, ReplayClock(self.config.sensors.replay_speed, stop)), stop)
            if not stop.is_set():
                collector.end_session()
                collector.flush()
                collector.store.put(**{f"taken:{key}": path.name})
                log.info("took %s", path)
        finally:
            collector.store.close()

    def _key(self, path: Path, plan: Plan) -> str:
        status = path.stat()
        parts = (path.name, status.st_size, status.st_mtime_ns, self.settings(), plan.labels, plan.data.pipeline)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
