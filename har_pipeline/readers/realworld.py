"""RealWorld 2016: 15 subjects × seven body places, eight activities, 50 Hz.

Sztyler and Stuckenschmidt, "On-body localization of wearable devices: an investigation of position-aware activity
recognition", PerCom 2016. Clients are subject × place, `1_shin`; a session is one activity, all its parts (`_2_`,
`_3_`) together: parts of the two sensors need not match, but their times (ms since 1970) do.

Acceleration: specific force, of Android phones: flat on a table, screen up, z is "0 m/s2 minus the force of gravity,
which is -9.81 m/s2" (developer.android.com, Motion sensors). So it is in the one recording at hand: the phone on the
shin is upright, y is +9.4 in the mean.
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

LABELS = ("climbingdown", "climbingup", "jumping", "lying", "running", "sitting", "standing", "walking")
PLACES = ("chest", "forearm", "head", "shin", "thigh", "upperarm", "waist")
COLUMNS = ("attr_time", "attr_x", "attr_y", "attr_z")
SENSORS: dict[str, Sensor] = {"acc": "acc", "gyroscope": "gyro", "gyr": "gyro"}
LAYOUT = Layout(
    files=re.compile(
        rf"(?:(?<=/)|^)(?:proband(\d+)/)?(?:data/)?(?:[^/]+\.zip/)*(acc|gyroscope|gyr)_({'|'.join(LABELS)})(?:_(\d+))?_"
        rf"({'|'.join(PLACES)})\.csv(\.gz)?$",
        re.IGNORECASE,
    ),
    archives=re.compile(r"real.?world|proband|^(acc|gyr|gyroscope)_", re.IGNORECASE),
    expected="proband{n}/data/{acc|gyr}_{activity}_csv.zip with {acc|Gyroscope}_{activity}[_{part}]_{place}.csv",
)

Files = dict[tuple[str, str, Sensor], list[tuple[int, Table]]]


def recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    """Yield both sensors of each activity; loose files without a `proband` folder belong to option `subject`."""
    files: Files = {}
    current = None
    for match, member in require_source(source, "realworld").members():
        subject, place = match[1] or str(options["subject"]), match[5].lower()
        if current not in (None, subject):
            yield from _sessions(files)
        current = subject
        client = f"{subject}_{place}"
        if chosen(client, clients):
            with member.open() as stream:
                table = read_table(stream, member.name, COLUMNS)
            key = (client, match[3].lower(), SENSORS[match[2].lower()])
            files.setdefault(key, []).append((int(match[4] or 1), table))
    yield from _sessions(files)


def _sessions(files: Files) -> Iterator[Recording]:
    """Yield and forget what one subject's files hold, each client's activities in the order of their times."""
    whole = []
    for (client, activity, sensor), parts in files.items():
        tables = [table for _, table in sorted(parts, key=lambda part: part[0])]
        rows = np.concatenate([table.numbers for table in tables])
        times, values = rows[:, 0] / 1000, rows[:, 1:]
        source, line = tables[0].source, tables[0].line
        whole.append(Recording(client, activity, activity, sensor, times, values, source, line))
    files.clear()
    begin: dict[tuple[str, str], float] = {}
    for each in whole:
        key = each.client, each.session
        begin[key] = min(begin.get(key, np.inf), float(np.fmin.reduce(each.times_s)))
    yield from sorted(whole, key=lambda each: (each.client, begin[each.client, each.session], each.sensor))


READER = RecordingReader(
    name="realworld",
    summary="RealWorld 2016: 15 subjects × 7 body places, 8 activities, 50 Hz",
    labels=lambda options: LABELS,
    layouts=lambda options: (LAYOUT,),
    recordings=recordings,
    acceleration="specific force",
    origin=lambda client: Origin("realworld", subject_of(client), "", device_of(client)),
    defaults={"subject": "1"},
)
