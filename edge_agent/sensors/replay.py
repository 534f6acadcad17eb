"""Replays recordings as a sensor source: files, each imported once and whole, and a data set's recordings."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from edge_agent.errors import SensorError
from edge_agent.sensors.collector import Collector
from edge_agent.sensors.source import ThreadedSource
from edge_agent.storage.window_store import IMPORTED_PREFIX, RECORDING, SKIPPED, WindowStore
from federation.plan import Plan
from har_pipeline import PipelineError, Recording, recordings

log = logging.getLogger(__name__)

OnePart = TypeVar("OnePart", bound="Part")


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


def push_sessions(recordings: Iterable[Recording], sink: PacedSink, stop: threading.Event) -> None:
    """Push recordings until `stop` is set; where another client or session begins, the one before is ended."""
    session = None
    for recording in recordings:
        if session not in (None, (recording.client, recording.session)):
            sink.end_session()
        session = recording.client, recording.session
        sink.push(recording)
        if stop.is_set():
            break


@dataclass(frozen=True)
class Part:
    """What is taken at once: its name below [sensors] path, and the files on disk that it is read from."""

    name: str
    paths: tuple[Path, ...]


class FileSource(ThreadedSource, Generic[OnePart]):
    """Takes every part that `parts` finds at [sensors] path; posts DataReady once all are in.

    Each is a recording of its own, whatever its clock says: two that overlap in time stay apart. One that is damaged,
    or has an activity that is no label, is left out; the store's note `SKIPPED` tells which, and why. Where none can
    be read, the first one's error is raised.
    """

    kind: str

    @abstractmethod
    def parts(self, path: Path) -> Iterable[OnePart]:
        """Find what is to be taken, in a stable order; a part is taken before the next is asked for."""

    @abstractmethod
    def settings(self) -> str:
        """Return everything in the config that changes what a file means."""

    @abstractmethod
    def replay(self, part: OnePart, plan: Plan, sink: PacedSink, stop: threading.Event) -> list[str]:
        """Push one part; its sessions are ended. Returns what of it was left out, and why."""

    def declared_hz(self) -> Mapping[str, float]:
        """Return the rate that the config states of a sensor ("acc", "gyro"); the measured one is judged by it."""
        return {}

    def collect(self, plan: Plan, stop: threading.Event) -> None:
        """Take what has not been taken before; then say when windows change."""
        path = self.config.sensors.path
        if path is None or not path.exists():
            raise SensorError(
                f"[sensors] path is {str(path or '')!r}; expected a file or a folder for source {self.kind}"
            )
        skipped: dict[str, list[str]] = {}
        odd: dict[str, str] = {}
        seen = taken = False
        refused: PipelineError | None = None
        for part in self.parts(path):
            seen = True
            try:
                left_out = self._import_part(part, plan, stop)
                taken = True
            except PipelineError as error:
                log.warning("recording skipped file=%s: %s", part.name, error)
                left_out, refused = [str(error)], refused or error
            if left_out:
                skipped[part.name] = left_out
            odd |= {words: severity for severity, words in self._saved_findings(part)}
            if stop.is_set():
                return
        if not seen:
            raise SensorError(f"{path} holds nothing that the source {self.kind} can read; see docs/devices.md")
        if refused is not None and not taken:
            raise refused  # what is wrong with every part is the description
        collector = Collector(self.config, plan, self.post, origin=self.kind, live=False, stop=stop)
        findings = [(severity, words) for words, severity in odd.items()]
        collector.store.put(**{SKIPPED: json.dumps(skipped), "findings": json.dumps(findings)})
        try:
            collector.watch(stop)
        finally:
            collector.close()

    def _import_part(self, part: OnePart, plan: Plan, stop: threading.Event) -> list[str]:
        """Take a part unless it was taken before; returns what of it was left out, and why."""
        key, under = _key(part), self._under(plan)
        collector = Collector(self.config, plan, self.post, origin=f"{self.kind}:{key}", live=False, stop=stop)
        collector.health.declare(self.declared_hz())
        try:
            if json.loads(collector.store.get(f"{IMPORTED_PREFIX}{key}") or "{}").get("under") == under:
                return []
            # one that was interrupted begins again, and so does one that means something else by now
            collector.store.put(**{f"{IMPORTED_PREFIX}{key}": ""})
            collector.store.drop_origin(collector.origin)
            sink = PacedSink(collector, ReplayClock(self.config.sensors.replay_speed, stop))
            left_out = self.replay(part, plan, sink, stop)
            if not stop.is_set():
                collector.end_session()
                collector.flush()
                # with something left out it is tried again at the next start, and said again
                collector.store.put(
                    **{f"{IMPORTED_PREFIX}{key}": json.dumps({
                        "name": part.name, "under": "" if left_out else under, "findings": collector.save_findings()
                    })}
                )  # fmt: skip
                log.info("recording imported file=%s", part.name)
            for reason in left_out:
                log.warning("recording partly skipped file=%s: %s", part.name, reason)
            return left_out
        except PipelineError:
            collector.store.drop_origin(collector.origin)
            raise
        finally:
            collector.store.close()

    def _saved_findings(self, part: Part) -> list[tuple[str, str]]:
        """Return what was odd about the samples of a part when it was taken, now or at an earlier start."""
        with closing(WindowStore(self.config.agent.data_dir)) as store:
            note = json.loads(store.get(f"{IMPORTED_PREFIX}{_key(part)}") or "{}")
        return [(severity, words) for severity, words in note.get("findings", [])]

    def _under(self, plan: Plan) -> str:
        return _digest(self.settings(), plan.labels, plan.data.pipeline)


def _key(part: Part) -> str:
    status = [path.stat() for path in part.paths]
    return _digest(part.name, [(value.st_size, value.st_mtime_ns) for value in status])


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class RecordingSource(ThreadedSource):
    """Fills the store once per plan."""

    def collect(self, plan: Plan, stop: threading.Event) -> None:
        """Replay everything, unless it is here already, post DataReady, and again when windows change."""
        collector = Collector(self.config, plan, self.post, origin=RECORDING, live=False, stop=stop)
        sensors, client = self.config.sensors, self.config.sensor_client
        source = sensors.model_dump_json() + client + str(collector.settings.to_json()) + "/".join(plan.labels)
        try:
            if collector.store.get("collected") != source:
                collector.store.drop_origin(RECORDING)  # a replay that was interrupted begins again
                self._replay(collector, stop)
                if stop.is_set():
                    return
                collector.store.put(collected=source)
            collector.watch(stop)
        finally:
            collector.store.close()

    def _replay(self, collector: Collector, stop: threading.Event) -> None:
        # every recording is pushed whole, so that the windows are those of har_pipeline.prepare, bit for bit
        sensors, client, seen = self.config.sensors, self.config.sensor_client, False
        clock = ReplayClock(sensors.replay_speed, stop)
        for recording in recordings(sensors.dataset, sensors.root, clients=[client], options=sensors.options or None):
            seen = True
            collector.push(recording)
            clock.wait(recording)
            if stop.is_set():
                return
        if not seen:
            raise SensorError(
                f"data set {sensors.dataset} has no client {client!r}; set [sensors] client to one of those "
                f"that `python -m har_pipeline info` lists"
            )
        collector.end_session()
        collector.flush()
