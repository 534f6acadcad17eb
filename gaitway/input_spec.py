"""A network's input specification, and the names of its head's parameters, for all packages.

The specification holds one example's shape, its channels with their units, and how raw values become input.

Checkpoints and exported models carry it. The inference session reads it without torch and without `models`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite, prod
from typing import Any, Literal, get_args

from gaitway.errors import GaitwayError

InputKind = Literal["window", "image", "vector"]
Fit = Literal["pad", "stretch"]
"""How an image of another shape is fitted to the input's: padded with grey, or stretched."""
SENSOR_CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
SENSOR_UNITS = ("m/s^2", "m/s^2", "m/s^2", "rad/s", "rad/s", "rad/s")
PIXELS = "pixel / 255"
DEVICE_AXES = "x right, y up, z out of the screen, right-handed; at rest the axis that points up shows +9.81 m/s^2"
"""A phone's axes as Android and W3C define them, seen from its front; a board's own axes are rotated to these."""
GYROSCOPE = SENSOR_CHANNELS[3:]
HEAD = "head."
"""Prefix of the classifier's parameters in every network; the layers before it compute the features."""
MIN_STD = 1e-3
"""Below the resolution of any phone's sensor (m/s² or rad/s), so that a constant channel becomes zeros, not noise."""
_COLOURS = {1: ("grey",), 3: ("red", "green", "blue")}


class InputSpecError(GaitwayError):
    """The fields of an `InputSpec` contradict each other, or are unknown."""


AntiAlias = Literal["always", "downsampling"]
"""Which sensors are low-passed: those with at least 0.9 of the windows' rate, or those that are faster than it."""
SLOWER: Mapping[AntiAlias, str] = {
    "always": "below 0.9 of rate_hz: least-squares interpolation, up to 0.42 of the sensor's own rate",
    "downsampling": "below 1.1 of rate_hz: least-squares interpolation, up to 0.42 of the sensor's own rate",
}
"""Description of the sensors that are interpolated instead, for each `anti_alias`."""


@dataclass(frozen=True)
class LowPass:
    """The filter between a sensor's samples, at any rate, and those of a window (`har_pipeline.streaming.resample`).

    Its kernel is a sinc of `cutoff_hz` under a Kaiser window of `kaiser_beta` that reaches `half_width_s` to either
    side, which is also its delay. A gap of more than `max_gap_s` between samples ends a stretch. Sensors that
    `anti_alias` leaves out are interpolated instead, as `slower` says.
    """

    name: str = "low-pass, windowed sinc"
    slower: str = SLOWER["always"]
    cutoff_hz: float = 22.0
    half_width_s: float = 0.13
    kaiser_beta: float = 5.65
    max_gap_s: float = 0.1
    anti_alias: AntiAlias = "always"

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON; `anti_alias` is omitted if it is "always", as in files of earlier versions."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("anti_alias", "always")}

    def describe(self) -> str:
        """Return a readable description."""
        return (
            f"low-pass {self.cutoff_hz:g} Hz (windowed sinc, half-width {self.half_width_s:g} s); sensors {self.slower}"
        )


@dataclass(frozen=True)
class InputSpec:
    """A network's float32 input: windows (time, channels), images (channels, height, width) or vectors (numbers,).

    Preprocessing is (x − mean) / std per channel. `units` are those of the raw x. Only windows have a rate in Hz, a
    stride in samples, a statement whether gravity is `included` in their accelerations, the `axes` they are measured
    in, and the `filter` applied to the sensor's own samples. `masked` channels were zeros (in raw units) when the model
    was trained, such as a missing gyroscope's. Only images have a `fit`: how images of other sizes become examples
    (`gaitway.images`).
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
    axes: str | None = None
    filter: LowPass | None = None
    masked: tuple[str, ...] = ()
    fit: Fit | None = None

    @classmethod
    def windows(
        cls,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        window: int = 128,
        rate_hz: float = 50.0,
        stride: int = 64,
        low_pass: LowPass | None = None,
    ) -> InputSpec:
        """Describe windows (window, 6) of accelerometer and gyroscope in m/s² and rad/s.

        A gyroscope with the statistics of zeros was masked.
        """
        return cls(
            "window", (window, len(SENSOR_CHANNELS)), SENSOR_CHANNELS, SENSOR_UNITS, tuple(mean), tuple(std),
            rate_hz, stride, "included", DEVICE_AXES, low_pass or LowPass(), _masked(mean, std),
        )  # fmt: skip

    @classmethod
    def images(
        cls, shape: Sequence[int], mean: Sequence[float], std: Sequence[float], fit: Fit = "stretch"
    ) -> InputSpec:
        """Describe images (channels, height, width) with pixels between 0 and 1."""
        channels = _COLOURS.get(shape[0]) or tuple(f"channel {i}" for i in range(shape[0]))
        units = (PIXELS,) * len(channels)
        return cls("image", tuple(shape), channels, units, tuple(mean), tuple(std), fit=fit)

    @classmethod
    def vectors(cls, mean: Sequence[float], std: Sequence[float]) -> InputSpec:
        """Describe vectors with a mean and a deviation for each number."""
        count = len(mean)
        names = tuple(f"x{i}" for i in range(count))
        return cls("vector", (count,), names, ("1",) * count, tuple(mean), tuple(std))

    def normalized_by(self, mean: Sequence[float], std: Sequence[float]) -> InputSpec:
        """Return the same with a mean and a deviation for each channel."""
        masked = _masked(mean, std) if self.kind == "window" else ()
        return replace(self, mean=tuple(mean), std=tuple(std), masked=masked)

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

    def describe(self) -> str:
        """Return the shape of a batch and its units, for messages."""
        units = " and ".join(dict.fromkeys(self.units))
        return f"(n, {', '.join(map(str, self.shape))}) in {units}"

    def check(self) -> None:
        """Raise InputSpecError, naming the field, if the fields don't describe examples of this kind."""
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
        _require(self.fit in (get_args(Fit) if self.kind == "image" else (None,)), "fit", self.fit)
        if self.kind == "window":
            _require(isinstance(self.rate_hz, (int, float)) and self.rate_hz > 0, "rate_hz", self.rate_hz)
            _require(isinstance(self.stride, int) and self.stride > 0, "stride", self.stride)
            # Samples with other axes or another filter are different data: refuse them rather than misclassify them.
            _require(self.gravity == "included", "gravity", self.gravity)
            _require(self.axes == DEVICE_AXES, "axes", self.axes)
            _require(self.filter is not None and _describes_filter(self.filter), "filter", self.filter)
            _require(self.masked in ((), GYROSCOPE), "masked", self.masked)

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON; only images have a `fit`, so files of other inputs match earlier versions'."""
        values = {name: value for name, value in asdict(self).items() if name != "fit" or value is not None}
        return values if self.filter is None else {**values, "filter": self.filter.to_json()}

    @classmethod
    def from_json(cls, values: object) -> InputSpec:
        """Read and check the fields; raises InputSpecError."""
        known = [field.name for field in fields(cls)]
        if not isinstance(values, Mapping) or set(values) | {"fit"} != set(known):
            raise InputSpecError(f"input is {values!r}; expected an object of {', '.join(known)}")
        # files from before this option omit it; their images were stretched
        values = {"fit": "stretch" if values["kind"] == "image" else None, **values}
        for name in ("shape", "channels", "units", "mean", "std", "masked"):
            _require(isinstance(values[name], list), name, values[name])
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        if given["filter"] is not None:
            low_pass = given["filter"]
            parts = {field.name for field in fields(LowPass)}
            _require(isinstance(low_pass, Mapping) and set(low_pass) | {"anti_alias"} == parts, "filter", low_pass)
            given["filter"] = LowPass(**low_pass)
        spec = cls(**given)
        spec.check()
        return spec


def _masked(mean: Sequence[float], std: Sequence[float]) -> tuple[str, ...]:
    zeros = all(m == 0 and s <= MIN_STD for m, s in zip(mean[3:], std[3:], strict=True))
    return GYROSCOPE if zeros else ()


def _describes_filter(low_pass: LowPass) -> bool:
    numbers = low_pass.cutoff_hz, low_pass.half_width_s, low_pass.kaiser_beta, low_pass.max_gap_s
    usable = all(isinstance(number, (int, float)) and isfinite(number) and number > 0 for number in numbers)
    named = (low_pass.name, low_pass.slower) == (LowPass.name, SLOWER.get(low_pass.anti_alias))
    return named and usable and low_pass.max_gap_s < low_pass.half_width_s


def _require(condition: bool, name: str, value: object) -> None:
    if not condition:
        raise InputSpecError(f"input's {name} is {value!r}; that doesn't describe a model's input")
