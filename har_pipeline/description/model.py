"""The keys of a description of recordings; docs/data.md is the reference.

files = 'subject(?P<client>\\d+)/(?P<activity>[a-z_]+)\\.csv'
labels = ["walking", "sitting"]
time = { column = "timestamp", unit = "ms" }
acc = { columns = ["ax", "ay", "az"], unit = "g" }
gyro = { columns = ["gx", "gy", "gz"], unit = "deg/s" }
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from gaitway.errors import did_you_mean, first_problem
from gaitway.plain_text import cleaned
from gaitway.python310 import tomllib
from har_pipeline.description.keys import (
    DATE,
    EXAMPLES,
    GROUPS,
    MAX_NUMBER,
    AccUnit,
    Axes,
    Column,
    DescriptionPart,
    GyroUnit,
    Matrix,
    Number,
    Pattern,
    RangeUnit,
    Said,
    Separator,
    TimeUnit,
    Triple,
    Word,
    Words,
    WordSource,
    column_alone,
    names_alone,
    role_of_group,
    words_by_column,
)
from har_pipeline.errors import SettingsError
from har_pipeline.recording import UNLABELLED
from har_pipeline.streaming.interpolate import MAX_GAP_S
from har_pipeline.units import (
    ACC_UNITS,
    GYRO_UNITS,
    TIME_UNITS,
    AccelerationConvention,
    check_convention,
    specific_force,
)

MAX_DESCRIBED_BYTES = 1 << 20
JOINED = ("client", "session")
"""What a group and a column may say together: the wrist of anna is `anna_wrist`."""


def same_word(word: str) -> str:
    """Return what two spellings of one activity share: no case, single blanks and one form of each letter."""
    return " ".join(cleaned(word).split()).casefold()


class Labels(DescriptionPart):
    """The activities in the order of their indices, and what becomes of the words that stand in the files."""

    names: Words = ()
    map: dict[str, str] = Field(default_factory=dict, max_length=1000)
    ignore: Words = ()
    strict: bool = Field(default=False, strict=True)

    @model_validator(mode="after")
    def _consistent(self) -> Labels:
        for key in ("names", "ignore"):
            words: tuple[str, ...] = getattr(self, key)
            twice = next((word for word in words if words.count(word) > 1), None)
            if twice is not None:
                raise ValueError(f"{key} has {twice!r} twice; name each activity once")
        for word in self.names:
            if word in UNLABELLED or word in self.ignore:
                raise ValueError(f"{word!r} cannot be a label: it marks rows without one")
        for word, label in self.map.items():
            if self.names and label not in self.names:
                raise ValueError(
                    f"map turns {word!r} into {label!r}, which isn't a label; {did_you_mean(label, self.names)}"
                )
            if word in self.ignore or (word in self.names and word != label):
                raise ValueError(f"{word!r} is in map, and in {'ignore' if word in self.ignore else 'names'} as well")
        return self

    def label_of(self, word: str) -> str | None:
        """Return the label that a word of the files stands for; "" for one without, None for an unknown word.

        Where no word is spelt so, case and blanks make no difference.
        """
        if word in UNLABELLED or word in self.ignore:
            return ""
        label = self.map.get(word, word)
        if not self.names or label in self.names:
            return label
        alike = {same_word(name): self.map.get(name, name) for name in (*self.names, *self.map)}
        return alike.get(same_word(label), "" if same_word(label) in map(same_word, self.ignore) else None)


class LabelRanges(DescriptionPart):
    """Another file that says from when to when what was done: which file, its columns, and whose labels they are.

    Its named groups, and its columns of clients, sessions and activities, agree with those of the recordings. Without
    a column `label`, rows in a range keep their activity, and the others have none.
    """

    files: Pattern
    header: bool = Field(default=True, strict=True)
    separator: Separator = ","
    skip_lines: int = Field(default=0, ge=0, le=10_000, strict=True)
    begin: Column
    end: Column
    label: Column | None = None
    unit: RangeUnit | None = None
    client: Said | None = None
    session: Said | None = None
    activity: Said | None = None

    trailing: ClassVar[str] = ""
    comment: ClassVar[str] = ""
    decimal: ClassVar[str] = "."

    @model_validator(mode="after")
    def _numbered(self) -> LabelRanges:
        named = next(
            (column for column in (self.begin, self.end, *self.columns_of_words) if isinstance(column, str)), None
        )
        if not self.header and named is not None:
            raise ValueError(f"header is false, so columns are numbers, counted from 1; got {named!r}")
        return self

    @property
    def sources(self) -> dict[str, WordSource]:
        """Where its rows say whose they are."""
        given = {name: getattr(self, name) for name in ("client", "session", "activity")}
        return {name: source for name, source in given.items() if source is not None}

    @property
    def columns_of_words(self) -> tuple[str | int, ...]:
        """The columns whose cells are never read as numbers."""
        found = [source.column for source in self.sources.values()]
        return tuple(column for column in (*found, self.label) if column is not None)


class TimeColumn(DescriptionPart):
    """The column of times, and what its numbers or texts mean."""

    column: Column
    unit: TimeUnit = "s"
    format: str | None = Field(default=None, min_length=2, max_length=64)

    @model_validator(mode="after")
    def _date(self) -> TimeColumn:
        if self.format is not None and self.unit != DATE:
            raise ValueError('format is that of text dates; set unit = "date" too')
        return self

    @property
    def seconds(self) -> float:
        """How many seconds a step of the column's numbers is."""
        return TIME_UNITS[self.unit] if isinstance(self.unit, str) else self.unit


class NumberColumn(DescriptionPart):
    """A number that a regression learns, such as a heart rate; it holds for the rows after it, at most for 2 s."""

    column: Column
    name: Word | None = None
    unit: Word | None = None
    min: Number = -MAX_NUMBER
    max: Number = MAX_NUMBER

    @model_validator(mode="after")
    def _ordered(self) -> NumberColumn:
        if not self.min < self.max:
            raise ValueError(f"min is {self.min:g}, and max {self.max:g}; min must be below max")
        return self

    @property
    def label(self) -> str:
        """What is learnt, with its unit: `heart rate (beats/min)`."""
        name = self.name or str(self.column)
        return f"{name} ({self.unit})" if self.unit else name

    def values(self, raw: np.ndarray) -> np.ndarray:
        """Return the numbers (n,) of the column, NaN where they are beyond `min` and `max`: not known."""
        usable: np.ndarray = np.where((raw >= self.min) & (raw <= self.max), raw, np.nan)
        return usable


class SensorColumns(DescriptionPart):
    """Three columns of one sensor: value = matrix · ((columns + add − offset) · scale · unit)."""

    units: ClassVar[Mapping[str, float]] = {}

    columns: Triple
    unit: str | float = 1.0
    add: Triple | None = None
    scale: Axes = (1.0, 1.0, 1.0)
    offset: Axes = (0.0, 0.0, 0.0)
    matrix: Matrix | None = None
    sensor: Word | None = None
    time: Column | None = None

    @model_validator(mode="after")
    def _usable(self) -> SensorColumns:
        if len({*self.columns}) < 3:
            raise ValueError("the columns must be three different ones")
        if 0.0 in self.scale:
            raise ValueError("scale is 0; an axis would be lost")
        determinant = 1.0 if self.matrix is None else float(np.linalg.det(np.array(self.matrix)))
        if abs(determinant) < 1e-9:
            raise ValueError("the matrix has no inverse; an axis would be lost")
        if determinant < 0:
            raise ValueError(
                "the matrix mirrors (its determinant is below 0), which no mounting of a sensor does; expected a "
                "rotation: change the sign of one row or, if one axis has the wrong sign in the files, give it a "
                "negative scale"
            )
        return self

    @property
    def unit_factor(self) -> float:
        """What one of the unit is in m/s² or rad/s."""
        return self.units[self.unit] if isinstance(self.unit, str) else self.unit

    def values(self, raw: np.ndarray) -> np.ndarray:
        """Turn the numbers (n, 3) of the columns into m/s² or rad/s."""
        values: np.ndarray = (raw - np.array(self.offset)) * (np.array(self.scale) * self.unit_factor)
        return values if self.matrix is None else values @ np.array(self.matrix).T


class Accelerometer(SensorColumns):
    """Acceleration, by the description's `acceleration` with or without gravity."""

    units: ClassVar[Mapping[str, float]] = ACC_UNITS

    unit: AccUnit = "m/s2"
    add_sensor: Word | None = None
    add_gap_s: float = Field(default=MAX_GAP_S, gt=0, le=10)

    @property
    def added_columns(self) -> Triple:
        """The columns of `add_sensor`'s rows: those of `add`, or those of the accelerometer."""
        return self.add or self.columns

    @model_validator(mode="after")
    def _declared(self) -> Accelerometer:
        if max(self.scale) < 0:
            raise ValueError(
                "scale turns all three axes round; leave the sign out, and declare it: "
                'acceleration = "gravity points down"'
            )
        return self


class Gyroscope(SensorColumns):
    """Angular rate."""

    units: ClassVar[Mapping[str, float]] = GYRO_UNITS

    unit: GyroUnit = "rad/s"


def _convention(given: object) -> AccelerationConvention:
    try:
        return check_convention("it", given)
    except SettingsError as error:
        raise ValueError(str(error)) from None


class Description(DescriptionPart):
    """One folder, archive or file of recordings: which files, what their columns are, and what the labels mean."""

    files: Pattern = r"[^/]+\.csv(?:\.gz)?"
    strict: bool = Field(default=False, strict=True)
    header: bool = Field(default=True, strict=True)
    separator: Separator = ","
    trailing: str = Field(default="", max_length=10)
    comment: str = Field(default="", max_length=10)
    decimal: Literal[".", ","] = "."
    skip_lines: int = Field(default=0, ge=0, le=10_000, strict=True)
    only: Annotated[dict[str, Words], BeforeValidator(words_by_column)] = Field(default_factory=dict)
    labels: Annotated[Labels, BeforeValidator(names_alone)] = Labels()
    client: Said | None = None
    session: Said | None = None
    activity: Said | None = None
    sensor: Said | None = None
    time: Annotated[TimeColumn, BeforeValidator(column_alone)] | None = None
    rate_hz: float | None = Field(default=None, ge=0.1, le=100_000, strict=True)
    acceleration: Annotated[AccelerationConvention, BeforeValidator(_convention)]
    acc: Accelerometer
    gyro: Gyroscope | None = None
    number: Annotated[NumberColumn, BeforeValidator(column_alone)] | None = None
    ranges: LabelRanges | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Description:
        if self.time is None and self.rate_hz is None:
            raise ValueError("time: name the column of the times, or give rate_hz if the rows have none")
        named_sensor = next((name for name, sensor in self.sensors.items() if sensor.sensor), None)
        if named_sensor and not self.sensor_by_row:
            raise ValueError(
                f"{named_sensor}.sensor: nothing says the sensor of a row; name its column, as in sensor = "
                '"kind", or a group (?P<sensor>…) of files'
            )
        if self.acc.add_sensor is not None and not self.sensor_by_row:
            raise ValueError(
                'acc.add_sensor: nothing says the sensor of a row; name its column, as in sensor = "kind", or a group '
                "(?P<sensor>…) of files"
            )
        if self.acc.add_sensor is not None and self.acc.add_sensor == self.acc.sensor:
            raise ValueError(
                f"acc.add_sensor: {self.acc.add_sensor!r} is acc.sensor too; a sensor is not added to itself"
            )
        if self.separator == self.decimal:
            raise ValueError("separator: it is the decimal mark as well; set decimal or separator otherwise")
        for name in self.groups:
            source = getattr(self, name)
            if source is not None and (name not in JOINED or source.column is None):
                raise ValueError(f"{name}: it is a named group of files already; leave one of the two out")
        timed = next((name for name, sensor in self.sensors.items() if sensor.time is not None), None)
        if timed is not None and self.time is None:
            raise ValueError(f"{timed}.time: nothing says its unit; set time, as in {EXAMPLES['time']}")
        by_ranges = self.ranges is not None and self.ranges.label is not None
        if self.labels.names and self.activity is None and "activity" not in self.groups and not by_ranges:
            raise ValueError(
                "activity: there are labels, but not where they stand: name a column, a fixed word, or a group "
                "(?P<activity>…) of files"
            )
        if not self.header:
            named = next((column for column in self.all_columns() if isinstance(column, str)), None)
            if named is not None:
                raise ValueError(f"header is false, so columns are numbers, counted from 1; got {named!r}")
        return self

    @property
    def groups(self) -> tuple[str, ...]:
        """What the named groups of `files` say."""
        return tuple(dict.fromkeys(map(role_of_group, re.compile(self.files).groupindex)))

    @property
    def sensors(self) -> dict[Literal["acc", "gyro"], SensorColumns]:
        """The sensors whose columns are described."""
        return {"acc": self.acc} if self.gyro is None else {"acc": self.acc, "gyro": self.gyro}

    @property
    def declared_hz(self) -> dict[str, float]:
        """The rate that is stated of each sensor beside a column of times, against which these can be judged."""
        stated = self.time is not None and self.rate_hz is not None
        return dict.fromkeys(self.sensors, self.rate_hz or 0.0) if stated else {}

    @property
    def sensor_by_row(self) -> bool:
        """Whether each row is of one sensor, which a column or the file's name says; else all are in each row."""
        return self.sensor is not None or "sensor" in self.groups

    def values(self, sensor: Literal["acc", "gyro"], raw: np.ndarray) -> np.ndarray:
        """Turn the numbers (n, 3) of a sensor's columns into specific force in m/s², or into rad/s."""
        values = self.sensors[sensor].values(raw)
        return specific_force(values, self.acceleration) if sensor == "acc" else values

    @property
    def columns_of_words(self) -> tuple[str | int, ...]:
        """The columns of words: as numbers, subject 01 would be 1."""
        sources: list[WordSource | None] = [getattr(self, name) for name in GROUPS]
        found = (source.column for source in sources if source is not None and source.column is not None)
        return (*found, *map(self.named_column, self.only))

    def named_column(self, name: str) -> str | int:
        """Return the column that a key of TOML names: its number, where there is no header."""
        return int(name) if not self.header and name.isdecimal() and int(name) else name

    def time_of(self, sensor: Literal["acc", "gyro"]) -> str | int | None:
        """Return the column of a sensor's times."""
        return self.sensors[sensor].time or (None if self.time is None else self.time.column)

    def all_columns(self) -> Iterator[str | int]:
        """Yield every column that is read."""
        for source in (self.time, *(getattr(self, name) for name in GROUPS)):
            if source is not None and source.column is not None:
                yield source.column
        yield from map(self.named_column, self.only)
        for sensor in self.sensors.values():
            yield from (*sensor.columns, *(sensor.add or ()), *([] if sensor.time is None else [sensor.time]))
        if self.number is not None:
            yield self.number.column

    def with_labels(self, names: Sequence[str]) -> Description:
        """Return the same with these labels: a federation's, on a device."""
        return self.model_copy(update={"labels": self.labels.model_copy(update={"names": tuple(names)})})

    def to_json(self) -> dict[str, Any]:
        """Return what is not the default, as JSON can hold it; `description_of` reads it."""
        return self.model_dump(mode="json", exclude_defaults=True)


def description_of(options: Mapping[str, Any]) -> Description:
    """Check a description that came as a mapping, such as `--options` or a part of a TOML file.

    Raises:
        SettingsError: in one line that names the key, what came, and what was expected.
    """
    try:
        return Description.model_validate(options)
    except ValidationError as error:
        raise SettingsError(f"description: {first_problem(error, input_shown=True, model=Description)}") from error


def read_description(path: Path | str) -> Description:
    """Read a description from a TOML file.

    Raises:
        SettingsError: if there is none, if it is no TOML, or for a key that does not fit, naming it.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_DESCRIBED_BYTES + 1)
        if len(text) > MAX_DESCRIBED_BYTES:
            raise SettingsError(f"{path}: larger than 1 MiB; expected a description in TOML")
        options = tomllib.loads(text.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"{path}: {error}; expected a description in TOML, as `har_pipeline describe` writes"
        ) from error
    try:
        return Description.model_validate(options)
    except ValidationError as error:
        raise SettingsError(f"{path}: {first_problem(error, input_shown=True, model=Description)}") from error
