"""Replays the recordings of a data set's client, as fast as one wants."""

from __future__ import annotations

import threading

from edge_agent.errors import SensorError
from edge_agent.sensors.collector import Collector
from edge_agent.sensors.replay import ReplayClock
from edge_agent.sensors.source import ThreadedSource
from edge_agent.storage.window_store import RECORDING
from federation.plan import Plan
from har_pipeline import recordings


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
