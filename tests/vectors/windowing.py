"""Make `windowing.json`: samples of both sensors, and the windows that har_pipeline makes of them.

For ports to other languages, such as docs/examples/Windowing.kt. After a change of the filter or the grid:
`python -m tests.vectors.windowing`, and say in CHANGELOG.md why it changed.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gaitway.input_spec import LowPass
from har_pipeline import PipelineSettings, StreamPipeline
from har_pipeline.recording import Recording, Sensor
from tests.vectors.phone import packed, text

PATH = Path(__file__).with_suffix(".json")
TOLERANCE = 1e-4
"""In m/s² and rad/s; numbers are up to 20, and windows are float32."""
CASES = {
    "100 Hz, jitter": ((100.0, 0.0, ()), (100.0, 0.013, ())),
    "50 Hz and 208 Hz, a gap in each, what is behind the second too short for a window": (
        (50.0, 0.2, (3.0,)),
        (208.0, 0.0, (6.3,)),
    ),
    "two and a half seconds: no window": ((100.0, 0.0, (2.5,)), (100.0, 0.0, (2.5,))),
}
LENGTH_S = 8.0
GAP_S = 0.4


def vectors() -> dict[str, Any]:
    """Return everything that the file holds."""
    settings = PipelineSettings()
    return {
        "about": "Windows (n, 128, 6) of har_pipeline, float32, of samples: times in s (float64), values (n, 3) in "
        f"m/s² with gravity and rad/s (float32). base64, little-endian, C order. A port is within {TOLERANCE:g}.",
        "input": {
            "rate_hz": settings.rate_hz,
            "window": settings.window,
            "stride": settings.stride,
            **{name: getattr(LowPass, name) for name in ("cutoff_hz", "half_width_s", "kaiser_beta", "max_gap_s")},
        },
        "cases": list(_cases()),
    }


def _cases() -> Iterator[dict[str, Any]]:
    for number, (name, sensors) in enumerate(CASES.items()):
        stream = StreamPipeline(PipelineSettings(), ("walking",))
        case: dict[str, Any] = {"name": name}
        windows = []
        kinds: tuple[Sensor, Sensor] = ("acc", "gyro")
        for sensor, (rate_hz, begin_s, gaps) in zip(kinds, sensors, strict=True):
            times, values = _samples(np.random.default_rng([number, len(sensor)]), rate_hz, begin_s, gaps)
            activity = np.full(len(times), "walking")
            windows += stream.push(Recording("me", "0", activity, sensor, times, values.astype(np.float64)))
            case[f"{sensor}_times"] = base64.b64encode(times.astype("<f8").tobytes()).decode()
            case[f"{sensor}_values"] = packed(values)
        windows += stream.flush()
        x = np.array([window.x for window in windows], np.float32).reshape(-1, 128, 6)
        yield case | {"starts_s": [round(window.start_s, 9) for window in windows], "windows": packed(x)}


def _samples(
    random: np.random.Generator, rate_hz: float, begin_s: float, gaps: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Draw steps of a walk with noise; a gap after what `gaps` say, and an end there if that is before a window's."""
    times = begin_s + np.arange(int(LENGTH_S * rate_hz)) / rate_hz
    times = np.round(times + random.uniform(-0.2, 0.2, len(times)) / rate_hz, 6)
    if gaps == (2.5,):
        times = times[times < gaps[0]]
    for gap in gaps:
        times = times[(times < gap) | (times > gap + GAP_S)]
    phase = 2 * np.pi * times[:, None] * np.array([1.8, 3.6, 0.9]) + random.uniform(0, 6, 3)
    values = np.array([0.0, 9.81, 0.0]) + 3 * np.sin(phase) + random.normal(0, 0.3, (len(times), 3))
    return times, values.astype(np.float32)


def main() -> None:
    """Write the file."""
    PATH.write_text(text(vectors()))


if __name__ == "__main__":
    main()
