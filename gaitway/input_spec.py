"""What a network takes: one example's shape, its channels with their units, and how raw values become its input.

Checkpoints and exported models carry it, and the inference session, which knows neither torch nor `models`, reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite, prod
from typing import Any, Literal, get_args

from gaitway.errors import GaitwayError

InputKind = Literal["window", "image", "vector"]
SENSOR_CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
SENSOR_UNITS = ("m/s^2", "m/s^2", "m/s^2", "rad/s", "rad/s", "rad/s")
PIXELS = "pixel / 255"
_COLOURS = {1: ("grey",), 3: ("red", "green", "blue")}


class InputSpecError(GaitwayError):
    """The fields of an `InputSpec` do not fit each other, or are no such fields."""


@dataclass(frozen=True)
class InputSpec:
    """One example x, float32: windows (time, channels), images (channels, height, width) or vectors (numbers,).

    Preprocessing is (x − mean) / std, a number for each channel. `units` are those of the raw x. Windows alone have a
    rate in Hz, a stride in samples, and say whether gravity is `included` in their accelerations.
    """

    kind: InputKind
    shape: tuple[int, ...]
    channels: tuple[str, ...]
    units: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rate_hz: float | None = None
    stride: int | None = None
    gravity: str | None = None

    @classmethod
    def windows(
        cls,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        window: int = 128,
        rate_hz: float = 50.0,
        stride: int = 64,
    ) -> InputSpec:
        """Describe windows (window, 6) of accelerometer and gyroscope in m/s² and rad/s."""
        shape = window, len(SENSOR_CHANNELS)
        return cls("window", shape, SENSOR_CHANNELS, SENSOR_UNITS, tuple(mean), tuple(std), rate_hz, stride, "included")

    @classmethod
    def images(cls, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]) -> InputSpec:
        """Describe images of a shape (channels, height, width), whose pixels lie between 0 and 1."""
        channels = _COLOURS.get(shape[0]) or tuple(f"channel {i}" for i in range(shape[0]))
        return cls("image", tuple(shape), channels, (PIXELS,) * len(channels), tuple(mean), tuple(std))

    @classmethod
    def vectors(cls, mean: Sequence[float], std: Sequence[float]) -> InputSpec:
        """Describe vectors, each of whose numbers has a mean and a deviation of its own."""
        count = len(mean)
        names = tuple(f"x{i}" for i in range(count))
        return cls("vector", (count,), names, ("1",) * count, tuple(mean), tuple(std))

    def normalized_by(self, mean: Sequence[float], std: Sequence[float]) -> InputSpec:
        """Return the same with a mean and a deviation for each channel."""
        return replace(self, mean=tuple(mean), std=tuple(std))

    @property
    def channel_axis(self) -> int:
        """The dimension of `shape` whose entries are the channels: a window's last, an image's first."""
        return len(self.shape) - 1 if self.kind == "window" else 0

    @property
    def size(self) -> int:
        """How many numbers an example has."""
        return prod(self.shape)

    @property
    def along_channels(self) -> tuple[int, ...]:
        """The shape in which a number for each channel broadcasts over an example: (6,) or (C, 1, 1)."""
        return (len(self.channels), *(1 for _ in self.shape[self.channel_axis + 1 :]))

    def in_words(self) -> str:
        """Return the shape of a batch and the units, for messages."""
        units = " and ".join(dict.fromkeys(self.units))
        return f"(n, {', '.join(map(str, self.shape))}) in {units}"

    def check(self) -> None:
        """Raise InputSpecError, naming the field, where they do not describe examples of this kind."""
        dims = {"window": 2, "image": 3, "vector": 1}
        _require(self.kind in get_args(InputKind), "kind", self.kind)
        counts = all(isinstance(size, int) and size > 0 for size in self.shape)
        _require(counts and len(self.shape) == dims[self.kind], "shape", self.shape)
        count = self.shape[self.channel_axis]
        for name, words in (("channels", self.channels), ("units", self.units)):
            _require(len(words) == count and all(isinstance(word, str) for word in words), name, words)
        _require(self.kind != "window" or self.channels == SENSOR_CHANNELS, "channels", self.channels)
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            real = all(isinstance(number, (int, float)) and isfinite(number) for number in numbers)
            _require(real and len(numbers) == count, name, numbers)
        _require(min(self.std) > 0, "std", self.std)
        if self.kind == "window":
            _require(isinstance(self.rate_hz, (int, float)) and self.rate_hz > 0, "rate_hz", self.rate_hz)
            _require(isinstance(self.stride, int) and self.stride > 0, "stride", self.stride)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: object) -> InputSpec:
        """Read and check the fields; raises InputSpecError."""
        known = [field.name for field in fields(cls)]
        if not isinstance(values, Mapping) or set(values) != set(known):
            raise InputSpecError(f"input is {values!r}; expected an object of {', '.join(known)}")
        for name in ("shape", "channels", "units", "mean", "std"):
            _require(isinstance(values[name], list), name, values[name])
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        spec = cls(**given)
        spec.check()
        return spec


def _require(condition: bool, name: str, value: object) -> None:
    if not condition:
        raise InputSpecError(f"input's {name} is {value!r}; that does not describe examples that a model takes")
