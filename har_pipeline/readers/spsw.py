"""SP-SW-HAR: 23 subjects with a phone and a watch worn together, five activities that change within a file.

Matey-Sanz, Casteleyn, Granell, "Dataset of inertial measurements of smartphones and smartwatches for human activity
recognition", Data in Brief 2023. Time stamps are those of delivery, so they come in bursts. Differs from the other
sets: activities last 0.7 to 2.5 s, so windows advance by 16 samples.

Acceleration: specific force, of an Android phone and a Wear OS watch: flat on a table, screen up, z is "0 m/s2 minus
the force of gravity, which is -9.81 m/s2" (developer.android.com, Motion sensors). So it is in the files: the watch of
whoever sits with the hand on the thigh looks up, z > 0 on all 23 wrists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from har_pipeline.origin import Origin
from har_pipeline.readers.archive import Layout, Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen, require_source
from har_pipeline.readers.tables import Table, read_table
from har_pipeline.recording import Recording, Sensor, device_of, subject_of
from har_pipeline.settings import PipelineSettings

LABELS = ("WALKING", "TURNING", "SEATED", "SITTING_DOWN", "STANDING_UP")
PLACES = {"sp": "pocket", "sw": "wrist"}
COLUMNS = ("timestamp", "x_acc", "y_acc", "z_acc", "x_gyro", "y_gyro", "z_gyro")
FIRST_COLUMN: dict[Sensor, int] = {"acc": 1, "gyro": 4}
LAYOUT = Layout(
    files=re.compile(r"(?:(?<=/)|^)DATA/s(\d+)/s\d+_(\d+)_(sp|sw)\.csv(\.gz)?$"),
    archives=re.compile(r"sp.?sw|DATA\.", re.IGNORECASE),
    expected="DATA/sXX/sXX_YY_{sp|sw}.csv",
)


def recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    """Yield accelerometer and gyroscope of each execution; client `s11_sw` is subject 11's watch."""
    executions: dict[tuple[str, int], Table] = {}
    for match, member in require_source(source, "spsw").members():
        client = f"s{int(match[1]):02d}_{match[3]}"
        if chosen(client, clients):
            with member.open() as stream:
                executions[client, int(match[2])] = read_table(stream, member.name, COLUMNS, ("label",))
    for (client, execution), table in sorted(executions.items(), key=lambda item: item[0]):
        times, activity, session = table.numbers[:, 0] / 1000, np.asarray(table.text["label"]), f"{execution:02d}"
        for sensor, first in FIRST_COLUMN.items():
            values = table.numbers[:, first : first + 3]
            yield Recording(client, session, activity, sensor, times, values, table.source, table.line)


READER = RecordingReader(
    name="spsw",
    summary="SP-SW-HAR: 23 subjects × phone (sp) and watch (sw), 5 activities, about 103 Hz in bursts",
    labels=lambda options: LABELS,
    layouts=lambda options: (LAYOUT,),
    recordings=recordings,
    acceleration="specific force",
    origin=lambda client: Origin("spsw", subject_of(client), device_of(client), PLACES[device_of(client)]),
    settings=PipelineSettings(stride=16),
)
