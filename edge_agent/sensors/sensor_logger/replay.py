"""Exports of the Sensor Logger app as a sensor source: through the same stream as what the app pushes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from edge_agent.errors import SensorError
from edge_agent.sensors.imports import FileSource, PacedSink
from edge_agent.sensors.sensor_logger.calibration import signed, wrong_units
from edge_agent.sensors.sensor_logger.export import Row, exports_in, platform_of, rows_of
from edge_agent.sensors.sensor_logger.inbox import Vocabulary
from edge_agent.sensors.sensor_logger.message import batch_of
from edge_agent.sensors.sensor_logger.stream import PhoneStream
from federation.plan import Plan

log = logging.getLogger("edge_agent")

CHUNK = 2000
PAUSE_NS = 10 * 10**9
"""A chunk does not reach over a pause: the middle of its times would lie in neither part."""


class ExportSource(FileSource):
    """Takes a zip, a JSON file or a folder of them."""

    kind = "export"

    def files(self, path: Path) -> Sequence[Path]:
        """List the exports."""
        return exports_in(path)

    def settings(self) -> str:
        """Return what the phone's settings say of signs, times and annotations."""
        wanted = {"platform", "annotations", "stop_words", "reorder_s"}
        return self.config.phone.model_dump_json(include=wanted)

    def replay(self, path: Path, plan: Plan, sink: PacedSink, stop: threading.Event) -> None:
        """Push one export."""
        phone = self.config.phone
        platform = platform_of(path) or phone.platform
        stream = PhoneStream(sink, phone.reorder_s, Vocabulary(phone, plan.labels).activity_of)
        count = 0
        with closing(rows_of(path)) as found:
            for rows in _chunks(found):
                batch = batch_of(path.name, "", None, rows)
                if words := wrong_units(batch):
                    raise SensorError(f"{path}: {words}")
                stream.accept(signed(batch, platform))
                count += batch.samples
                if stop.is_set():
                    return
        stream.finish()
        left_out = ", ".join(f"{number} {name}" for name, number in sorted(stream.counts.items()) if number)
        log.info("%s: %d samples, signs of %s%s", path.name, count, platform, f"; {left_out}" if left_out else "")


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    found: list[Row] = []
    for row in rows:
        if found and (len(found) == CHUNK or row.time - found[-1].time > PAUSE_NS):
            yield found
            found = []
        found.append(row)
    if found:
        yield found
