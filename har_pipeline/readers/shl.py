"""SHL preview: three users with four phones (hand, hips, torso, bag), eight modes of transportation, 100 Hz.

Gjoreski, Ciliberto, Wang, Ordonez Morales, Mekki, Valentin, Roggen, "The University of Sussex-Huawei locomotion and
transportation dataset for multimodal analytics with mobile devices", IEEE Access 2018. Preview, version 1, in three
zips: `SHLDataset_preview_v1/User{1..3}/{ddmmyy}/{Hand|Hips|Torso|Bag}_Motion.txt`, 23 columns without a header: time
in ms since 1970, accelerometer, gyroscope, magnetometer (3 each), orientation (4), gravity, linear acceleration (3
each), pressure, altitude, temperature; and `Label.txt` beside, 8 columns: time in ms, coarse label (0 none, 1 still,
2 walking, 3 run, 4 bike, 5 car, 6 bus, 7 train, 8 subway), fine label and five more.

Sources: programs that read the preview and agree on folders, columns and codes; the set's own documentation was out of
reach. Not verified: the units, taken to be Android's m/s² with gravity and rad/s, and what each of the zips holds.

Clients are user × place, `user1_hand`; a session is a day. A sample takes the label of the last label row before it,
unless that is over LABEL_AGE_S old. Days are spooled to disk: about 3 GB for the whole preview.

Acceleration: specific force, of Android phones (Huawei Mate 9): flat on a table, screen up, z is "0 m/s2 minus the
force of gravity, which is -9.81 m/s2" (developer.android.com, Motion sensors); gravity and linear acceleration have
columns of their own, whose sum it is, and the orientation turns it to the world's up. Not verified on the real files.
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

LABELS = ("still", "walking", "run", "bike", "car", "bus", "train", "subway")
NAMES = np.array(["null", *LABELS])
MOTION_COLUMNS, LABEL_COLUMNS, LABEL_AGE_S = 23, 8, 1.0
LAYOUT = Layout(
    files=re.compile(
        r"(?:(?<=/)|^)(?:SHLDataset_preview_v1[^/]*/)*(User\d+)/(\d\d)(\d\d)(\d\d)/"
        r"(?:(Hand|Hips|Torso|Bag)_Motion|Label)\.txt(?:\.gz)?$"
    ),
    archives=re.compile(r"SHL", re.IGNORECASE),
    expected="User{1..3}/{ddmmyy}/{Hand|Hips|Torso|Bag}_Motion.txt with Label.txt beside (SHLDataset_preview_v1)",
)

Key = tuple[str, str, str]
"""User, day as yymmdd, place; the place of the labels is ""."""


def recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    """Yield both sensors of each phone in step, in chunks of ten minutes, day by day."""
    with SampleColumns[Key](6) as motion, SampleColumns[Key](0) as labels:
        for match, member in require_source(source, "shl").members():
            user, day, place = match[1].lower(), match[4] + match[3] + match[2], (match[5] or "").lower()
            if not place:
                _read_labels(member, (user, day, place), labels)
            elif chosen(f"{user}_{place}", clients):
                _read_motion(member, (user, day, place), motion)
        for user, day, place in sorted(motion, key=lambda key: (key[0], key[2], key[1])):
            yield from _day(user, day, place, motion, labels)


def _read_motion(member: Member, key: Key, stored: SampleColumns[Key]) -> None:
    with member.open() as stream:
        for table in read_columns(stream, member.name, MOTION_COLUMNS, range(7)):
            stored.add(key, table.numbers[:, 0] / 1000, table.numbers[:, 1:], 0, table)


def _read_labels(member: Member, key: Key, stored: SampleColumns[Key]) -> None:
    with member.open() as stream:
        for table in read_columns(stream, member.name, LABEL_COLUMNS, range(2)):
            codes = table.numbers[:, 1]
            unknown = ~np.isin(codes, np.arange(len(NAMES)))
            if unknown.any():
                at = int(np.argmax(unknown))
                raise SourceError(
                    f"{member.name}, line {table.line + at}: coarse label {codes[at]:g}; expected 0 to {len(LABELS)}"
                )
            stored.add(key, table.numbers[:, 0] / 1000, np.empty((len(codes), 0)), codes, table)


def _day(
    user: str, day: str, place: str, motion: SampleColumns[Key], labels: SampleColumns[Key]
) -> Iterator[Recording]:
    rows = motion.samples((user, day, place))
    if (user, day, "") not in labels:
        raise SourceError(f"{rows.source}: no Label.txt beside it; expected {LAYOUT.expected}")
    label = labels.samples((user, day, ""))
    activity = NAMES[_codes_at(rows.times_s, label.times_s, label.codes)]
    yield from interleave_chunks(
        Recording(f"{user}_{place}", day, activity, "acc", rows.times_s, rows.values, rows.source, rows.line)
    )


def _codes_at(times_s: np.ndarray, label_s: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the code (n,) of the last label at or before each time (n,); 0 where it is missing or old."""
    last = np.searchsorted(label_s, times_s, side="right") - 1
    fresh = (last >= 0) & (times_s - label_s[np.maximum(last, 0)] <= LABEL_AGE_S)
    return np.where(fresh, codes[np.maximum(last, 0)], 0)


READER = RecordingReader(
    name="shl",
    summary="SHL preview: 3 users × hand, hips, torso and bag, 8 modes of transportation, 100 Hz",
    labels=lambda options: LABELS,
    layouts=lambda options: (LAYOUT,),
    recordings=recordings,
    acceleration="specific force",
    origin=lambda client: Origin("shl", subject_of(client), "mate9", device_of(client)),
)
