"""A first description of unknown files, as TOML with a comment on each guess, tried on the files themselves."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from har_pipeline.description.files import find_files
from har_pipeline.description.guess.columns import Columns, Guess, guess_columns, numbers_of, unit_in_name
from har_pipeline.description.guess.layout import TextLayout, guess_layout
from har_pipeline.description.guess.names import guess_files
from har_pipeline.description.inspection import UNLABELLED_NAME, FileReport, inspect
from har_pipeline.description.keys import DATE
from har_pipeline.description.model import description_of
from har_pipeline.description.text import UTF_16
from har_pipeline.errors import SourceError
from har_pipeline.readers.archive import unpacking, walk
from har_pipeline.recording import STANDARD_GRAVITY, Sensor
from har_pipeline.signals.tally import PAUSE
from har_pipeline.units import TIME_UNITS

HEAD_BYTES = 1 << 16
MOST_HEADS = 400
TRIED_S = 20.0
MOST_LABELS = 100
BINARY = re.compile(
    r"\.(jpe?g|png|gif|bmp|pdf|docx?|xlsx?|npz|npy|mat|h5|hdf5|parquet|py|pyc|md|html?|json|toml|ya?ml|mp4|avi|onnx|bin)$",
    re.IGNORECASE,
)
DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%Y.%m.%d")
CLOCKS = ("%H:%M:%S.%f", "%H:%M:%S,%f", "%H:%M:%S", "%I:%M:%S.%f %p", "%I:%M:%S %p")
EPOCHS = {"s": (1e8, 1e10), "ms": (1e11, 1e13), "us": (1e14, 1e16), "ns": (1e17, 1e19)}
STEPS = {"s": (1e-3, 0.5), "ms": (0.5, 500.0), "us": (500.0, 5e5), "ns": (5e5, 5e8)}


@dataclass
class Draft:
    """The lines of a first description; `problems` is what trying it found."""

    guesses: dict[str, Guess] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the keys and values alone."""
        return {key: guess.value for key, guess in self.guesses.items()}

    def toml(self) -> str:
        """Write the keys in their order, each with its comment."""
        lines = [f"# {remark}" for remark in self.remarks]
        lines += [f"{key} = {_toml(guess.value)}  # {guess.comment}" for key, guess in self.guesses.items()]
        return "\n".join(lines) + "\n"


@dataclass
class _Kind:
    """Files of one layout: their names, and the tables of their first bytes."""

    names: list[str] = field(default_factory=list)
    layouts: list[TextLayout] = field(default_factory=list)


def draft(root: Path | str, progress: Callable[[int, str], None] | None = None) -> Draft:
    """Look at a folder, an archive or a file, and guess.

    Raises:
        SourceError: if there is nothing, or no table of numbers in which an accelerometer could be.
    """
    root = Path(root)
    if not root.exists():
        raise SourceError(f"{root} does not exist; expected a folder, an archive or a file of recordings")
    kinds, encoded = _kinds(root)
    if encoded and not kinds:
        raise SourceError(f"{encoded[0]} is UTF-16; save it as UTF-8")
    if not kinds:
        raise SourceError(f"no file under {root} is a text table of numbers; expected recordings such as *.csv")
    kind = max(kinds.values(), key=lambda kind: len(kind.names))
    others = sum(len(other.names) for other in kinds.values()) - len(kind.names)
    columns = guess_columns(kind.layouts)
    if "acc" not in columns.sensors:
        raise SourceError(
            f"{kind.names[0]}: no three columns look like an accelerometer; its columns are "
            f"{list(kind.layouts[0].header[:20]) or len(kind.layouts[0].rows[0])}"
        )
    by_file = _sensor_by_file(kind)
    wanted = [name for name in ("client", "session", "activity") if name not in columns.words]
    files = guess_files(kind.names, [*wanted, *(["sensor"] if by_file else [])])
    seen = f"written by looking at {root.name}: {len(kind.names)} files of this layout, {others} of others"
    found = Draft({"files": files}, [seen])
    if encoded:
        found.remarks.append(f"{len(encoded)} files are UTF-16 and cannot be read, such as {encoded[0]!r}")
    _layout(kind, found)
    for meaning, guess in columns.words.items():
        found.guesses[meaning] = guess
    parts = _by_sensor(kind, columns, by_file=by_file)
    _time(parts["acc"], columns, found)
    _sensors(parts, columns, found)
    if columns.spare:
        spare = "; ".join(" ".join(map(str, three)) for three in columns.spare)
        found.remarks.append(f"columns that are not used, perhaps further sensors: {spare}")
    _try(root, found, progress)
    return found


def _kinds(root: Path) -> tuple[dict[object, _Kind], list[str]]:
    """Sort the files under root by their layouts; return those in UTF-16 too."""
    kinds: dict[object, _Kind] = {}
    encoded: list[str] = []
    with unpacking(str(root)):
        for member in walk(root, lambda archive: True):
            read = sum(len(kind.layouts) for kind in kinds.values())
            if BINARY.search(member.name) or read >= MOST_HEADS:
                continue
            with unpacking(member.name), member.open() as stream:
                head = stream.read(HEAD_BYTES)
            if head.startswith(UTF_16):
                encoded.append(member.name)
            layout = guess_layout(head + b"\n" if len(head) < HEAD_BYTES else head)
            if layout is not None and layout.rows:
                what = layout.separator, layout.header or len(layout.rows[0]), layout.trailing
                kind = kinds.setdefault(what, _Kind())
                kind.names.append(member.name)
                kind.layouts.append(layout)
    return kinds, encoded


def _sensor_by_file(kind: _Kind) -> bool:
    words = [re.search(r"(?:^|[/_\-. ])(acc|gyr)", name, re.IGNORECASE) for name in kind.names]
    return len({word[1].lower() for word in words if word}) == 2 and all(words)


def _layout(kind: _Kind, found: Draft) -> None:
    layout = Counter((each.separator, each.decimal, each.skip_lines, each.comment) for each in kind.layouts)
    separator, decimal, skip_lines, comment = layout.most_common(1)[0][0]
    first = kind.layouts[0]
    if not first.header:
        found.guesses["header"] = Guess(False, True, "the first line holds numbers")
    for key, value, default in (
        ("separator", "tab" if separator == "\t" else separator, ","), ("trailing", first.trailing, ""),
        ("comment", comment, ""), ("decimal", decimal, "."), ("skip_lines", skip_lines, 0),
    ):  # fmt: skip
        if value != default:
            found.guesses[key] = Guess(value, True, "in every line that was looked at")


def _by_sensor(kind: _Kind, columns: Columns, *, by_file: bool) -> dict[Sensor, list[TextLayout]]:
    """Return the tables of each sensor: those of its files, or the rows that a column says are its; else all."""
    every: dict[Sensor, list[TextLayout]] = {"acc": kind.layouts, "gyro": kind.layouts}
    said = columns.words.get("sensor")
    if by_file:
        named = list(zip(kind.names, kind.layouts, strict=True))
        return {sensor: [layout for name, layout in named if _is_of(sensor, name)] for sensor in every}
    if said is None or said.value not in kind.layouts[0].header:
        return every
    at = kind.layouts[0].header.index(said.value)
    parts: dict[Sensor, list[TextLayout]] = {}
    for sensor in every:
        own = [[row for row in each.rows if row[at].strip().lower().startswith(sensor[:3])] for each in kind.layouts]
        parts[sensor] = [each._replace(rows=tuple(rows)) for each, rows in zip(kind.layouts, own, strict=True) if rows]
    return parts if all(parts.values()) else every


def _time(layouts: Sequence[TextLayout], columns: Columns, found: Draft) -> None:
    if columns.time is None:
        found.guesses["rate_hz"] = Guess(50.0, False, "no column is a time; how many rows a second?")
        return
    column = columns.time.value
    steps, firsts = [], []
    for layout in layouts:
        numbers = numbers_of(layout, (column,))[:, 0]
        numbers = numbers[np.isfinite(numbers)]
        if len(numbers) > 2:
            steps.append(_usual_step(numbers))
            firsts.append(float(numbers[0]))
    if not steps:
        form = _date_format(layouts[0], column)
        date = {"column": column, "unit": DATE, **({"format": form} if form else {})}
        why = "texts; is it the day that stands before the month?" if form else "texts; set format if not ISO 8601"
        found.guesses["time"] = Guess(date, False, why)
        return
    step, first = float(np.median(steps)), float(np.median(firsts))
    epoch = next((unit for unit, (low, high) in EPOCHS.items() if low < first < high), None)
    fitting = next((unit for unit, (low, high) in STEPS.items() if low <= step < high), "s")
    factor = TIME_UNITS[epoch or fitting]
    rate = 1 / (step * factor) if step > 0 else 0.0
    sure = epoch is not None and 5 <= rate <= 1000
    why = f"{rate:.4g} rows a second" + (", counted from 1970" if epoch else "")
    found.guesses["time"] = Guess({"column": column, "unit": epoch or fitting}, sure or columns.time.sure, why)


def _date_format(layout: TextLayout, column: str | int) -> str | None:
    """Return the form in which the first dates are written; None if they are ISO 8601, or of no known form."""
    at = column - 1 if isinstance(column, int) else layout.header.index(column)
    texts = [row[at].strip() for row in layout.rows[:20]]

    def fits(form: str) -> bool:
        try:
            return all(datetime.strptime(text, form) for text in texts)
        except ValueError:
            return False

    days = [day for day in DAYS if any(fits(f"{day} {clock}") for clock in CLOCKS)]
    return next((form for day in days for clock in CLOCKS if fits(form := f"{day} {clock}")), None)


def _usual_step(times: np.ndarray) -> float:
    """Return the mean time from row to row of a file's beginning, pauses left out."""
    steps = np.diff(times)
    kept = steps[steps <= PAUSE * abs(np.mean(steps))]
    return float(np.mean(kept)) if len(kept) else 0.0


def _sensors(parts: Mapping[Sensor, list[TextLayout]], columns: Columns, found: Draft) -> None:
    apart = parts["acc"] != parts["gyro"]
    for sensor, guess in columns.sensors.items():
        add = columns.add.value if sensor == "acc" and columns.add else None
        unit = _unit(sensor, guess.value, add, parts[sensor])
        keys = {"columns": list(guess.value), **({"add": list(add)} if add else {}), **unit.value}
        both = Guess(keys, guess.sure and unit.sure, f"{guess.why}; {unit.why}")
        found.guesses[sensor] = both
        if apart and "gyro" not in columns.sensors:
            gyro = _unit("gyro", guess.value, None, parts["gyro"])
            keys = {"columns": list(guess.value), **gyro.value}
            where = "rows" if "sensor" in columns.words else "files"
            found.guesses["gyro"] = Guess(keys, False, f"in {where} of its own; {gyro.why}")
    if "gyro" not in found.guesses:
        found.remarks.append("no gyroscope was found: its channels will be zero")


def _is_of(sensor: Sensor, name: str) -> bool:
    word = re.search(r"(?:^|[/_\-. ])(acc|gyr)", name, re.IGNORECASE)
    return word is not None and word[1].lower() == sensor[:3]


def _unit(sensor: Sensor, columns: Any, add: Any, layouts: list[TextLayout]) -> Guess:
    """Guess a unit from the columns' names, else from the sizes: gravity at rest, or how fast a body turns."""
    named = unit_in_name(columns[0])
    if named in (("m/s2", "g", "mg") if sensor == "acc" else ("rad/s", "deg/s")):
        return Guess({"unit": named}, True, "the unit is in the columns' names")
    values = [numbers_of(layout, columns) + (numbers_of(layout, add) if add else 0.0) for layout in layouts]
    values = [each for each in values if np.isfinite(each).all(axis=1).sum() > 2]
    if not values:
        return Guess({"unit": "m/s2" if sensor == "acc" else "rad/s"}, False, "the unit, since no number could be read")
    return _acc_unit(values) if sensor == "acc" else _gyro_unit(values)


def _acc_unit(values: list[np.ndarray]) -> Guess:
    sizes = [np.linalg.norm(each, axis=1) for each in values]
    quiet = sorted(sizes, key=lambda size: float(np.nanstd(size)) / max(float(np.nanmedian(size)), 1e-12))
    level = float(np.median([np.nanmedian(size) for size in quiet[: max(1, len(quiet) // 4)]]))
    for unit, size in (("m/s2", STANDARD_GRAVITY), ("g", 1.0), ("mg", 1000.0)):
        if 0.8 < level / size < 1.25:
            return Guess({"unit": unit}, unit != "mg", f"at rest they measure {level:.4g}, which gravity is in {unit}")
    nearest = 2.0 ** round(np.log2(level)) if level > 0 else 1.0
    scale = 1 / nearest if 0.85 < level / nearest < 1.15 else 1 / max(level, 1e-12)
    return Guess(
        {"unit": "g", "scale": float(f"{scale:.9g}")},
        False,
        f"counts: gravity measures {level:.4g}; the scale is in the sensor's data sheet",
    )


def _gyro_unit(values: list[np.ndarray]) -> Guess:
    size = float(np.nanpercentile(np.concatenate([np.linalg.norm(each, axis=1) for each in values]), 99))
    whole = all((np.nan_to_num(each) == np.round(np.nan_to_num(each))).all() for each in values)
    if whole and size > 30:
        return Guess(
            {"unit": "deg/s", "scale": 2000 / 2**15},
            False,
            f"counts of up to {size:.4g}; the scale is that of ±2000 deg/s in 16 bits, the data sheet knows",
        )
    unit = "deg/s" if size > 20 else "rad/s"
    sure = size > 40 or 0.5 < size < 12
    return Guess({"unit": unit}, sure, f"the fastest turns measure {size:.4g}, as they do in {unit}")


def _try(root: Path, found: Draft, progress: Callable[[int, str], None] | None) -> None:
    """Apply the description without labels, and write those that the files have; at most for TRIED_S."""
    described = description_of(found.to_json())
    files, until = find_files(described, root), time.monotonic() + TRIED_S
    reports: list[FileReport] = []
    for report in inspect(described, files, progress):
        reports.append(report)
        if time.monotonic() > until:
            found.remarks.append(f"labels are those of the first {len(reports)} of {files.count} files")
            break
    labels = sorted({label for report in reports for label in report.labels} - {UNLABELLED_NAME})
    if labels and len(labels) <= MOST_LABELS:
        why = "as the files spell them; labels.map merges some, labels.ignore leaves some out"
        found.guesses["labels"] = Guess(labels, False, why)
    elif labels:
        found.remarks.append(f"{len(labels)} words stand as activities, such as {labels[0]!r}: is it the right place?")
    else:
        found.remarks.append(
            'nothing says the activities: add labels = ["…"] and activity = { fixed = "…" } or a group'
        )
    found.problems = [report.problem for report in reports if report.problem]
    rates = sorted(report.rate_hz for report in reports if report.rate_hz)
    if rates and described.time is not None:
        found.remarks.append(f"{rates[len(rates) // 2]:.4g} Hz; {len(reports) - len(found.problems)} files were read")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        plain = "'" not in value and value.isprintable() and "\\" in value
        return f"'{value}'" if plain else json.dumps(value, ensure_ascii=not value.isprintable())
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return repr(value)
