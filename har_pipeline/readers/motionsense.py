"""MotionSense: 24 subjects, an iPhone 6s in the trouser pocket, six activities at 50 Hz.

Malekzadeh, Clegg, Cavallaro, Haddadi, "Mobile sensor data anonymization", IoTDI 2019. The files have no time column:
rows are 20 ms apart, and the trials of a subject are laid one after another on one clock, in the protocol's order.

Acceleration: gravity points down. The columns are CoreMotion's: gravity is "The gravity acceleration vector expressed
in the device's reference frame", and the total is "equal to gravity plus the acceleration the user imparts"
(developer.apple.com, CMDeviceMotion). So it is in the files: gravity.z = −cos(pitch) · cos(roll), face up −1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from har_pipeline.origin import Origin
from har_pipeline.readers.archive import Layout, Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen, require_source
from har_pipeline.readers.tables import Table, read_table
from har_pipeline.recording import STANDARD_GRAVITY, Recording

LABELS = ("dws", "ups", "sit", "std", "wlk", "jog")
RATE_HZ = 50.0
PAUSE_S = 10.0
COLUMNS = tuple(f"{quantity}.{axis}" for quantity in ("gravity", "userAcceleration", "rotationRate") for axis in "xyz")
LAYOUT = Layout(
    files=re.compile(r"(?:(?<=/)|^)A_DeviceMotion_data/(dws|ups|sit|std|wlk|jog)_(\d+)/sub_(\d+)\.csv(\.gz)?$"),
    archives=re.compile(r"motion.?sense|A_DeviceMotion", re.IGNORECASE),
    expected="A_DeviceMotion_data/{dws|ups|sit|std|wlk|jog}_{trial}/sub_{n}.csv",
)


def recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    """Yield accelerometer and gyroscope of each trial; client `s07` is subject 7, session `wlk_15` trial 15."""
    trials: dict[tuple[str, int, str], Table] = {}
    for match, member in require_source(source, "motionsense").members():
        client = f"s{int(match[3]):02d}"
        if chosen(client, clients):
            with member.open() as stream:
                trials[client, int(match[2]), match[1]] = read_table(stream, member.name, COLUMNS)
    clock_s: dict[str, float] = {}
    for (client, trial, activity), table in sorted(trials.items(), key=lambda item: item[0]):
        times = clock_s.get(client, 0.0) + np.arange(len(table.numbers)) / RATE_HZ
        clock_s[client] = float(np.ceil(times[-1])) + PAUSE_S
        total = (table.numbers[:, 0:3] + table.numbers[:, 3:6]) * STANDARD_GRAVITY
        session = f"{activity}_{trial}"
        yield Recording(client, session, activity, "acc", times, total, table.source, table.line)
        yield Recording(client, session, activity, "gyro", times, table.numbers[:, 6:9], table.source, table.line)


READER = RecordingReader(
    name="motionsense",
    summary="MotionSense: 24 subjects, phone in the trouser pocket, 6 activities, 50 Hz",
    labels=lambda options: LABELS,
    layouts=lambda options: (LAYOUT,),
    recordings=recordings,
    acceleration="gravity points down",
    origin=lambda client: Origin("motionsense", client, "iphone_6s", "pocket"),
)
