"""Sensor Logger (Kelvin Choi), Android, iOS and their watches: a zip or folder of CSV files, or one JSON file.

Each sensor has a table with `time` in nanoseconds since 1970, `seconds_elapsed`, and its axes in any order (z, y, x on
phones). `Accelerometer` is without gravity: total = Accelerometer + Gravity, or `TotalAcceleration`, or
`AccelerometerUncalibrated`. An Apple Watch's `WristMotion` has gravity*, acceleration* and rotationRate* in each row;
Android's watches have the phone's tables with `Watch` before their names. `Annotation` has texts with their times,
`Metadata` the platform, the device's id, and whether 'Standardise Units & Frames' was on.

Which way is up, and units, by the app's own pages: "iOS and Android differ by a negative sign in all three x, y and z
axes. If 'Standardise Units & Frames' is toggled on, Sensor Logger will conform to the Android definition"
(CROSSPLATFORM.md); "On iOS, [uncalibrated acceleration] is in standard gravity (g), when 'Standardise Units & Frames'
is off"; WristMotion alike (UNITS.md). So what iOS writes points down unless it is standardised; each recording is
turned round, or not, by its Metadata. Where this is missing, option `platform` says it: there is no other way to tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from har_pipeline.apps.export import AnnotationText, AppExport, AppTable, PartSamples
from har_pipeline.apps.files import MAX_META_BYTES, FileHead, json_records
from har_pipeline.apps.reader import LABEL_OPTIONS, AppReader
from har_pipeline.apps.tables import refuse_size, rows_of_words, samples_of, table_head
from har_pipeline.description.files import DescribedFile
from har_pipeline.description.samples import ROWS, Part
from har_pipeline.description.text import PlainText
from har_pipeline.errors import SettingsError, SourceError
from har_pipeline.readers.archive import Member
from har_pipeline.readers.reader import Options
from har_pipeline.recording import STANDARD_GRAVITY

NAME = "sensor_logger"
AXES = ("x", "y", "z")
WRIST = "WristMotion"
WRIST_COLUMNS = tuple(f"{what}{axis}" for what in ("gravity", "acceleration", "rotationRate") for axis in "XYZ")
PARTS: dict[str, Part] = {
    "TotalAcceleration": "acc",
    "AccelerometerUncalibrated": "acc",
    "Accelerometer": "linear",
    "Gravity": "added",
    "Gyroscope": "gyro",
    "GyroscopeUncalibrated": "gyro",
}
ALONE = ("Accelerometer",)
ACCELERATIONS = (("TotalAcceleration",), ("Accelerometer", "Gravity"), ("AccelerometerUncalibrated",), ALONE)
GYROSCOPES = (("Gyroscope",), ("GyroscopeUncalibrated",))
"""What is taken of an export: the first of these that it has."""
WITHOUT_GRAVITY = (
    "Accelerometer is without gravity, and there is neither Gravity nor TotalAcceleration; it is read as it is, since "
    "no filter finds what the phone has taken out. A model that was trained with gravity does not know such windows: "
    "switch Gravity on in the app for the next recording"
)
PREFIXES = {"phone": "", "watch": "Watch"}
TABLES = {f"{prefix}{name}" for prefix in PREFIXES.values() for name in PARTS} | {WRIST}
FILE = re.compile(rf"(^|/)(?P<sensor>{'|'.join(TABLES)}|Annotation|Metadata)\.(csv)(\.gz)?$")
PLATFORMS = ("android", "ios", "standardised")
NEAR_GRAVITY, LIKE_G, MAX_RAD_S = (9.0, 10.6), (0.5, 2.0), 35.0
"""m/s², g, and rad/s: the end of the range of a phone's gyroscope, 2,000 °/s."""
LEANS, MAX_ACCELERATION = 6.0, 60.0
"""m/s²: no mean of acceleration without gravity is so large, and no median of acceleration with it."""
STANDARDISE = "switch on 'Standardise Units & Frames' in the app's settings"
MAX_ANNOTATIONS = 10_000


ConvertRows = Callable[[np.ndarray, str], Iterator[PartSamples]]
"""Turns rows of a table, of the file by this name, into samples."""


class _Content(NamedTuple):
    """What one export holds: the file of each sensor's table, and the rows of Metadata and Annotation."""

    tables: dict[str, FileHead]
    metadata: Mapping[str, str]
    annotations: tuple[AnnotationText, ...]
    files: tuple[FileHead, ...]
    packed: bool


def _looks_like(file: FileHead) -> bool:
    if file.found is not None:
        return True
    match = FILE.search(file.name)
    if match is None:
        return False
    if match["sensor"] == "Metadata":
        return any("recording time" in row or "platform" in row for row in rows_of_words(file))
    wanted = {"time", "seconds_elapsed"}
    head = table_head(file, wants=lambda line: wanted <= {cell.strip() for cell in line.split(",")})
    return head is not None and head.text.skip_lines == 0


def _inspect(member: Member, data: bytes) -> dict[str, Any] | None:
    """Look through a JSON export: its sensors, the rows of Metadata and of Annotation."""
    if not member.name.lower().endswith((".json", ".json.gz")) or b'"sensor"' not in data:
        return None
    found: dict[str, Any] = {"sensors": set(), "metadata": {}, "annotations": []}
    with member.open() as stream:
        for record in json_records(stream, member.name):
            sensor = str(record.get("sensor", ""))
            if sensor == "Metadata":
                found["metadata"] = {key: str(value) for key, value in record.items()}
            elif sensor == "Annotation" and len(found["annotations"]) < MAX_ANNOTATIONS:
                found["annotations"].append({key: str(value) for key, value in record.items()})
            elif sensor in TABLES:
                found["sensors"].add(sensor)
    return found if found["sensors"] or found["annotations"] else None


def _find(files: Sequence[FileHead], options: Options) -> list[AppExport]:
    platform = options["platform"]
    if platform not in ("", *PLATFORMS):
        raise SettingsError(f"{NAME}: platform is {platform!r}; expected one of {', '.join(PLATFORMS)}")
    folders: dict[str, list[FileHead]] = {}
    exports = []
    for file in files:
        if file.found is not None:
            exports.append(_export(file.name, _of_json(file), platform))
        else:
            folders.setdefault(str(PurePosixPath(file.name).parent), []).append(file)
    exports += [_export(folder, _of_folder(contents), platform) for folder, contents in folders.items()]
    return [export for export in exports if export.tables or export.problem]


def _of_json(file: FileHead) -> _Content:
    notes = _annotations(file.found["annotations"])
    return _Content(dict.fromkeys(file.found["sensors"], file), file.found["metadata"], notes, (file,), packed=True)


def _of_folder(files: list[FileHead]) -> _Content:
    by_sensor = {match["sensor"]: file for file in files if (match := FILE.search(file.name))}
    properties = rows_of_words(by_sensor["Metadata"]) if "Metadata" in by_sensor else []
    notes = _annotations(rows_of_words(by_sensor["Annotation"])) if "Annotation" in by_sensor else ()
    tables = {sensor: file for sensor, file in by_sensor.items() if sensor in TABLES}
    return _Content(tables, properties[0] if properties else {}, notes, tuple(files), packed=False)


def _annotations(rows: list[dict[str, str]]) -> tuple[AnnotationText, ...]:
    notes = []
    for row in rows[:MAX_ANNOTATIONS]:
        try:
            notes.append(AnnotationText(int(row["time"]) / 1e9, row.get("text", "")))
        except (KeyError, ValueError):
            continue
    return tuple(notes)


def platform_of(metadata: Mapping[str, str]) -> str:
    """Return whose signs an export has by its Metadata; "" where that does not say it."""
    if metadata.get("standardisation", "").lower() == "true":
        return "standardised"
    platform = metadata.get("platform", "").lower()
    return platform if platform in PLATFORMS else ""


def _export(name: str, content: _Content, fallback: str) -> AppExport:
    platform = platform_of(content.metadata) or fallback
    remarks, tables, problems = list[str](), list[AppTable](), list[str]()
    if len(content.files) and any(
        len(file.data) >= MAX_META_BYTES for file in content.files if "Annotation" in file.name
    ):
        remarks.append("Annotation.csv is longer than 1 MiB; what follows is not read")
    for device, prefix in PREFIXES.items():
        has = {sensor.removeprefix(prefix) for sensor in content.tables if sensor.startswith(prefix)} & set(PARTS)
        if device == "watch" and WRIST in content.tables:
            tables.append(_table(content, WRIST, device, partial(_wrist, platform=platform_of(content.metadata))))
            continue
        problem = _problem(has)
        if problem and has & {"TotalAcceleration", "Accelerometer", "AccelerometerUncalibrated", "Gyroscope"}:
            problems.append(f"{device}: {problem}")
        elif not problem and not platform:
            problems.append(
                f"{device}: no Metadata.csv says whether it was Android or iOS, whose signs are opposite; give option "
                'platform, as in \'{"platform": "ios"}\': android, ios, or standardised, if \'Standardise Units & '
                "Frames' was on"
            )
        elif not problem:
            accelerations = _first(ACCELERATIONS, has)
            if accelerations == ALONE:
                remarks.append(f"{device}: {WITHOUT_GRAVITY}")
            for sensor in (*accelerations, *_first(GYROSCOPES, has)):
                part: Part = "acc" if accelerations == (sensor,) else PARTS[sensor]
                convert = partial(_axes, sensor=sensor, platform=platform, part=part)
                tables.append(_table(content, f"{prefix}{sensor}", device, convert))
    about = ", ".join(filter(None, (content.metadata.get("device name", ""), platform)))
    return AppExport(
        name,
        tuple({file.path for file in content.files}),
        user=re.sub(r"[^\w-]+|_", "-", content.metadata.get("device id", "")),
        about=about,
        tables=tuple(tables),
        annotations=content.annotations,
        problem="" if tables else "; ".join(problems),
        remarks=(*remarks, *(problems if tables else ())),
    )


def _first(choices: tuple[tuple[str, ...], ...], has: set[str]) -> tuple[str, ...]:
    return next((choice for choice in choices if set(choice) <= has), ())


def _problem(has: set[str]) -> str:
    if not _first(ACCELERATIONS, has):
        return "there is no accelerometer; switch Accelerometer and Gravity on in the app"
    return "" if _first(GYROSCOPES, has) else "there is no gyroscope; switch Gyroscope on in the app"


def _table(content: _Content, sensor: str, device: str, convert: ConvertRows) -> AppTable:
    file = content.tables[sensor]
    columns = ("time", *(WRIST_COLUMNS if sensor == WRIST else AXES))
    if content.packed:
        return AppTable(file.name, device, partial(_read_json, sensor=sensor, columns=columns, convert=convert))
    return AppTable(file.name, device, partial(_read_csv, columns=columns, convert=convert))


def _read_csv(file: DescribedFile, *, columns: tuple[str, ...], convert: ConvertRows) -> Iterator[PartSamples]:
    return samples_of(file, PlainText(), columns, lambda numbers: convert(numbers, file.name))


def _read_json(
    file: DescribedFile, *, sensor: str, columns: tuple[str, ...], convert: ConvertRows
) -> Iterator[PartSamples]:
    rows: list[list[float]] = []
    with file.open() as stream:
        for record in json_records(stream, file.name):
            if record.get("sensor") == sensor:
                rows.append([_number(record, column, file.name, sensor) for column in columns])
                if len(rows) == ROWS:
                    yield from convert(np.array(rows), file.name)
                    rows = []
    if rows:
        yield from convert(np.array(rows), file.name)


def _number(record: Mapping[str, Any], column: str, name: str, sensor: str) -> float:
    try:
        return float(record[column])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        text = str(record.get(column))[:50]
        raise SourceError(f"{name}: {text!r} in column {column} of {sensor} is no number") from error


def _axes(numbers: np.ndarray, name: str, *, sensor: str, platform: str, part: Part) -> Iterator[PartSamples]:
    """Convert the rows (n, 4) of a table: time in ns, x, y, z in the platform's units and signs."""
    values = numbers[:, 1:]
    if part == "gyro":
        refuse_size(name, "the gyroscope is around", values, 0, MAX_RAD_S, "which looks like °/s; expected rad/s")
    else:
        if sensor == "AccelerometerUncalibrated" and platform == "ios":
            values = values * STANDARD_GRAVITY
        if sensor == "Gravity":
            refuse_size(name, "gravity measures", values, *NEAR_GRAVITY, _instead(values))
        elif part == "acc" and sensor != "Accelerometer":
            refuse_size(name, "acceleration is around", values, LIKE_G[1], MAX_ACCELERATION, _instead(values))
        elif part == "linear" and float(np.linalg.norm(np.nanmean(values, axis=0))) > LEANS:
            raise SourceError(
                f"{name}: wrong units: acceleration leans to one side as if gravity were in it; expected acceleration "
                "without gravity: leave out Gravity's table, and call this one TotalAcceleration"
            )
        values = -values if platform == "ios" else values
    yield PartSamples(part, numbers[:, 0] / 1e9, values)


def _instead(values: np.ndarray) -> str:
    size = float(np.nanmedian(np.linalg.norm(values, axis=1)))
    like = f"which looks like g; {STANDARDISE}" if LIKE_G[0] <= size <= LIKE_G[1] else "which no phone at rest has"
    return f"{like}; expected {STANDARD_GRAVITY:.2f} m/s²"


def _wrist(numbers: np.ndarray, name: str, *, platform: str) -> Iterator[PartSamples]:
    """Convert the rows (n, 10) of an Apple Watch: time in ns, gravity, acceleration, both in g or both standardised."""
    times_s, gravity, linear, turning = numbers[:, 0] / 1e9, numbers[:, 1:4], numbers[:, 4:7], numbers[:, 7:10]
    size = float(np.nanmedian(np.linalg.norm(gravity, axis=1)))
    if NEAR_GRAVITY[0] <= size <= NEAR_GRAVITY[1]:
        factor, standardised = 1.0, True
    elif 0.9 <= size <= 1.1:
        factor, standardised = -STANDARD_GRAVITY, False
    else:
        raise SourceError(f"{name}: gravity measures {size:.2f}; expected 1 g, or 9.81 m/s² if it is standardised")
    if platform in ("ios", "standardised") and (platform == "standardised") != standardised:
        raise SourceError(
            f"{name}: gravity measures {size:.2f}, and Metadata.csv says that units are "
            f"{'' if platform == 'standardised' else 'not '}standardised; export the recording again"
        )
    yield PartSamples("acc", times_s, (gravity + linear) * factor)
    yield PartSamples("gyro", times_s, turning)


READER = AppReader(
    name=NAME,
    summary="exports of Sensor Logger (zip, folder, JSON), phones and watches of both platforms",
    app="Sensor Logger",
    expects="Sensor Logger's export: a zip or folder with Accelerometer.csv, Gravity.csv, Gyroscope.csv, or a JSON",
    defaults={**LABEL_OPTIONS, "platform": ""},
    looks_like=_looks_like,
    find=_find,
    inspect=_inspect,
)
