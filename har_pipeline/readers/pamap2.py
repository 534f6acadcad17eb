"""PAMAP2: nine subjects with three inertial units (hand, chest, ankle), 18 activities at 100 Hz.

Reiss and Stricker, "Introducing a new benchmarked dataset for activity monitoring", ISWC 2012. Layout from the set's
readme as its repository's page quotes it: 54 columns without a header, separated by spaces; 1 time in s, 2 activity,
3 heart rate, then 17 per unit: temperature, acceleration at ±16 g and again at ±6 g (m/s²), gyroscope (rad/s),
magnetometer, orientation. The ±16 g columns are used: the others saturate in running. Activity 0 is what lies
between activities: unlabelled here. NaN marks what the radio lost. The heart rate, which comes nine times a second, is
the number that a regression learns, of all three places.

Clients are subject × place, `101_hand`; the optional recording follows the protocol's on a subject's clock, since both
files count from their own start. Not verified on the real files, which were not at hand: that both do so.

Acceleration: specific force, "3D-acceleration data (ms-2), scale: ±16g" of Colibri units, which read +1 g upwards at
rest as accelerometers do. The magnetometer beside shows it: in Germany the earth's field points down by 66°, against
specific force. Not verified on the real files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from har_pipeline.errors import SourceError
from har_pipeline.readers.archive import Layout, Member, Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen, require_source
from har_pipeline.readers.tables import SampleColumns, interleave_chunks, read_columns
from har_pipeline.recording import Origin, Recording, device_of, subject_of

ACTIVITIES = {
    1: "lying",
    2: "sitting",
    3: "standing",
    4: "walking",
    5: "running",
    6: "cycling",
    7: "nordic_walking",
    9: "watching_tv",
    10: "computer_work",
    11: "car_driving",
    12: "ascending_stairs",
    13: "descending_stairs",
    16: "vacuum_cleaning",
    17: "ironing",
    18: "folding_laundry",
    19: "house_cleaning",
    20: "playing_soccer",
    24: "rope_jumping",
}
PLACES = ("hand", "chest", "ankle")
SESSIONS = ("Protocol", "Optional")
NAMES = np.array([ACTIVITIES.get(code, "null") for code in range(max(ACTIVITIES) + 1)])
COLUMNS, FIRST_UNIT, UNIT_COLUMNS, PAUSE_S = 54, 3, 17, 10.0
SENSORS = (1, 7)
"""Offsets within a unit of its acceleration at ±16 g and its gyroscope."""
UNITS = tuple(FIRST_UNIT + UNIT_COLUMNS * unit for unit in range(len(PLACES)))
HEART_RATE = "heart rate (beats/min)"
USED = (0, 1, 2, *(unit + sensor + axis for unit in UNITS for sensor in SENSORS for axis in range(3)))
LAYOUT = Layout(
    files=re.compile(r"(?:(?<=/)|^)(Protocol|Optional)/subject(\d+)\.dat(\.gz)?$"),
    archives=re.compile(r"pamap|^(Protocol|Optional)\.", re.IGNORECASE),
    expected="{Protocol|Optional}/subject{101..109}.dat (PAMAP2_Dataset)",
)


def recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    """Yield both sensors of each place, subject by subject, the protocol before the optional recording."""
    with SampleColumns[tuple[str, str]](1 + 6 * len(PLACES)) as stored:
        for match, member in require_source(source, "pamap2").members():
            if any(chosen(f"{match[2]}_{place}", clients) for place in PLACES):
                _read(member, (match[2], match[1]), stored)
        for subject in sorted({subject for subject, _ in stored}):
            yield from _sessions(subject, stored, clients)


def _read(member: Member, key: tuple[str, str], stored: SampleColumns[tuple[str, str]]) -> None:
    with member.open() as stream:
        for table in read_columns(stream, member.name, COLUMNS, USED):
            codes = table.numbers[:, 1]
            unknown = ~np.isin(codes, (0, *ACTIVITIES))
            if unknown.any():
                at = int(np.argmax(unknown))
                raise SourceError(
                    f"{member.name}, line {table.line + at}: activity {codes[at]:g}; expected 0 or one of "
                    f"{', '.join(map(str, ACTIVITIES))}"
                )
            stored.add(key, table.numbers[:, 0], table.numbers[:, 2:], codes, table)


def _sessions(subject: str, stored: SampleColumns[tuple[str, str]], clients: Clients) -> Iterator[Recording]:
    clock_s = 0.0
    for session in SESSIONS:
        if (subject, session) not in stored:
            continue
        rows = stored.samples((subject, session))
        times = clock_s + rows.times_s
        clock_s = float(np.ceil(np.fmax.reduce(times))) + PAUSE_S
        activity = NAMES[rows.codes]
        for unit, place in enumerate(PLACES):
            client = f"{subject}_{place}"
            if chosen(client, clients):
                values = rows.values[:, 1 + 6 * unit : 7 + 6 * unit]
                heart_rate = rows.values[:, 0]
                recording = Recording(
                    client, session, activity, "acc", times, values, rows.source, rows.line, heart_rate
                )
                yield from interleave_chunks(recording)


READER = RecordingReader(
    name="pamap2",
    summary="PAMAP2: 9 subjects × hand, chest and ankle, 18 activities, 100 Hz",
    labels=lambda options: tuple(ACTIVITIES.values()),
    layouts=lambda options: (LAYOUT,),
    recordings=recordings,
    acceleration="specific force",
    number=lambda options: HEART_RATE,
    origin=lambda client: Origin("pamap2", subject_of(client), "colibri", device_of(client)),
)
