"""The sensor source as a thread: recordings are replayed through the stream pipeline into the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from edge_agent.config import SensorsSection
from edge_agent.errors import AgentError, SensorError
from edge_agent.events import DataReady, Event, SensorFailed
from edge_agent.local_data import local_data, pipeline_settings
from edge_agent.store import Store
from federation.plan import Plan
from har_pipeline import PipelineError, PipelineSettings, Recording, StreamPipeline, Window, recordings

BATCH = 256
"""Windows per transaction."""


class Replay:
    """Fills the store once per plan; `post` gets DataReady or SensorFailed, from the thread."""

    def __init__(self, sensors: SensorsSection, client: str, folder: Path, post: Callable[[Event], None]) -> None:
        self.sensors, self.client, self.folder, self.post = sensors, client, folder, post
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, plan: Plan) -> None:
        """Begin with this plan's pipeline and labels; what an earlier plan began is stopped."""
        self.stop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(plan, self._stop), name="sensors", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Stop within one recording; wait for it no longer than that."""
        self._stop.set()
        if self._thread:
            self._thread.join(timeout_s)

    def _run(self, plan: Plan, stop: threading.Event) -> None:
        try:
            examples = self._collect(plan, stop)
        except (AgentError, PipelineError, OSError) as error:
            if not stop.is_set():
                self.post(SensorFailed(str(error)))
            return
        if not stop.is_set():
            self.post(DataReady(examples))

    def _collect(self, plan: Plan, stop: threading.Event) -> int:
        settings = pipeline_settings(self.sensors, plan.data)
        source = self.sensors.model_dump_json() + self.client + str(settings.to_json()) + "/".join(plan.labels)
        store = Store(self.folder)
        try:
            if store.get("collected") != source:
                store.clear_windows()  # a replay that was interrupted begins again
                self._fill(store, settings, plan.labels, stop)
                if stop.is_set():
                    return 0
                store.put(collected=source)
            windows = store.windows(self.client, settings.window)
            return len(local_data(windows, plan.data, settings).train)
        finally:
            store.close()

    def _fill(self, store: Store, settings: PipelineSettings, labels: tuple[str, ...], stop: threading.Event) -> None:
        pending: list[Window] = []
        for window in self._windows(settings, labels, stop):
            pending.append(window)
            if len(pending) == BATCH:
                store.add_windows(pending, self.sensors.max_windows)
                pending = []
        store.add_windows(pending, self.sensors.max_windows)

    def _windows(self, settings: PipelineSettings, labels: tuple[str, ...], stop: threading.Event) -> Iterator[Window]:
        # every recording is pushed whole, so that the windows are those of har_pipeline.prepare, bit for bit
        pipeline, seen, pace = StreamPipeline(settings, labels), False, _Pace(self.sensors.replay_speed, stop)
        source = recordings(
            self.sensors.dataset, self.sensors.root, clients=[self.client], options=self.sensors.options or None
        )
        for recording in source:
            seen = True
            yield from (window for window in pipeline.push(recording) if window.y >= 0)
            pace.wait(recording)
            if stop.is_set():
                return
        if not seen:
            raise SensorError(
                f"data set {self.sensors.dataset} has no client {self.client!r}; set [sensors] client to one of those "
                f"that `python -m har_pipeline info` lists"
            )
        yield from (window for window in pipeline.flush() if window.y >= 0)


class _Pace:
    """Lets time pass as fast as it did when the samples were taken, times `speed`."""

    def __init__(self, speed: float | str, stop: threading.Event) -> None:
        self.speed, self.stop = speed, stop
        self.session, self.newest_s = "", 0.0

    def wait(self, recording: Recording) -> None:
        if isinstance(self.speed, str) or not len(recording.times_s):
            return
        if recording.session != self.session:
            self.session, self.newest_s = recording.session, float(recording.times_s[0])
        advance_s = max(0.0, float(recording.times_s[-1]) - self.newest_s)
        self.newest_s += advance_s
        self.stop.wait(advance_s / self.speed)
