"""Physics Toolbox Sensor Suite (Vieyra Software), Android and iOS: a CSV of its Multi Record mode.

Columns are `time`, `gFx`, `gFy`, `gFz` (g-force, with gravity, in g), `ax`, `ay`, `az` (without gravity, m/s²) and
`wx`, `wy`, `wz` (rad/s), others beside them; between commas, or between semicolons with decimal commas; a line may end
with a separator. `time` is in seconds since the start, or a time of day, 13:05:10:123. A row is written whenever any
sensor has a reading, and repeats what the others said last, at first zeros: repetitions are left out.

Which way is up: the file does not say its platform, and the app's pages do not say whether it turns the signs of iOS
round; so option `acceleration` has to. Recordings of Android phones that lie face up have gFz +1: "specific force".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from har_pipeline.apps.export import AppExport, AppTable, PartSamples
from har_pipeline.apps.files import FileHead
from har_pipeline.apps.reader import LABEL_OPTIONS, AppReader
from har_pipeline.apps.tables import CLOCK, FirstReadings, TableHead, refuse_size, samples_of, table_head
from har_pipeline.description.files import DescribedFile
from har_pipeline.errors import SettingsError
from har_pipeline.readers.reader import Options
from har_pipeline.recording import STANDARD_GRAVITY

NAME = "physics_toolbox"
TIME = "time"
G_FORCE, LINEAR, ROTATION = ("gFx", "gFy", "gFz"), ("ax", "ay", "az"), ("wx", "wy", "wz")
SIGNS = {"specific force": 1.0, "gravity points down": -1.0}
LIKE_G = (0.3, 4.0)


def _is_header(line: str) -> bool:
    cells = {cell.strip().strip('"') for cell in line.replace(";", ",").replace("\t", ",").split(",")}
    return TIME in cells and any(set(triple) <= cells for triple in (G_FORCE, LINEAR, ROTATION))


def _looks_like(file: FileHead) -> bool:
    head = table_head(file, wants=_is_header)
    # others write ax and wx too: the g-force is this app's own, and so are its files of one sensor with a total
    return head is not None and (set(G_FORCE) <= set(head.columns) or bool({"aT", "TgF"} & set(head.columns)))


def _find(files: Sequence[FileHead], options: Options) -> list[AppExport]:
    convention = options["acceleration"]
    if convention not in ("", *SIGNS):
        raise SettingsError(f"{NAME}: acceleration is {convention!r}; expected one of {', '.join(map(repr, SIGNS))}")
    heads = ((file, table_head(file, wants=_is_header)) for file in files)
    return [_export(file, head, convention) for file, head in heads if head]


def _export(file: FileHead, head: TableHead, convention: str) -> AppExport:
    problem = _problem(head, convention)
    read = partial(_read, head=head, sign=SIGNS.get(convention, 1.0))
    tables = () if problem else (AppTable(file.name, "phone", read),)
    return AppExport(file.name, (file.path,), tables=tables, problem=problem)


def _problem(head: TableHead, convention: str) -> str:
    if not set(G_FORCE) <= set(head.columns):
        return "it has no g-force (gFx, gFy, gFz), and ax, ay, az are without gravity; record 'G-Force Meter' too"
    if not set(ROTATION) <= set(head.columns):
        return "it has no gyroscope (wx, wy, wz); record 'Gyroscope' too, by 'Multi Record'"
    if not convention:
        return (
            "the file does not say whether it was Android or iOS, whose signs may be opposite; lay the phone flat, "
            "screen up, look at gFz, and give option acceleration: 'specific force' if it is +1, as on Android, "
            "'gravity points down' if it is -1"
        )
    return ""


def _read(file: DescribedFile, *, head: TableHead, sign: float) -> Iterator[PartSamples]:
    acc, gyro = FirstReadings(), FirstReadings()

    def convert(numbers: np.ndarray) -> Iterator[PartSamples]:
        times_s = numbers[:, 0]
        acc_s, force = acc(times_s, numbers[:, 1:4])
        refuse_size(file.name, "the g-force is around", force, *LIKE_G, "expected g")
        yield PartSamples("acc", acc_s, force * (sign * STANDARD_GRAVITY))
        yield PartSamples("gyro", *gyro(times_s, numbers[:, 4:7]))

    columns = (*G_FORCE, *ROTATION)
    first = dict(zip(head.columns, head.first, strict=False))
    if CLOCK.match(first.get(TIME, "")):
        return samples_of(file, head.text.with_words(TIME), columns, convert, clock=TIME)
    return samples_of(file, head.text, (TIME, *columns), convert)


READER = AppReader(
    name=NAME,
    summary="exports of Physics Toolbox Sensor Suite (CSV of Multi Record)",
    app="Physics Toolbox",
    expects="Physics Toolbox's CSV of 'Multi Record', with time, gFx, gFy, gFz, wx, wy, wz",
    defaults={**LABEL_OPTIONS, "acceleration": ""},
    looks_like=_looks_like,
    find=_find,
)
