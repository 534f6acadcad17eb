"""Turns timestamped samples into answers: an exported model behind the pipeline of its training windows.

Samples can have any unit, rate and chunks; the windows equal those of `har_pipeline.prepare`, bit for bit, for any
chunks. The file's input specification (rate, window, stride, filter, masked channels) determines how they are made. It
needs only numpy and ONNX Runtime, not torch or pandas.

    recognizer = Recognizer(Session.load("model.onnx"), SampleUnits(time="ms", acc="g", gyro="deg/s"))
    for times, acc, gyro in sensor:
        for answer in recognizer.push(times, acc, gyro):
            print(f"{answer.start_s:.1f} to {answer.end_s:.1f} s: {answer.label} ({answer.probability:.0%})")

Errors: InputError (arrays of another shape, a sensor that the model needs and that never came), and
`har_pipeline`'s SignalError (clocks and values that are no samples) and SettingsError (units, axes).

`Timeline` writes answers as lines: a time line of activities for people, or a JSON object a line for programs.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.runtime import Floats, InputError, Session
from gaitway.input_spec import GYROSCOPE
from har_pipeline import PipelineSettings, Recording, SampleUnits, SignalError, StreamPipeline, Window
from har_pipeline.recording import MAX_VALUE
from har_pipeline.signals.checks import SENSORS, SignalChecks

log = logging.getLogger(__name__)

Sensor = Literal["acc", "gyro"]
CLIENT = "stream"
RESTART_S = 2.0
"""A clock that goes back by more was set anew, as after a start without a network; by less, the samples are late."""
JUDGE_EVERY_S = 5.0
"""Of samples, after which levels, rates and channels are looked at again."""
LIVE_LAG_S = 30.0
"""How far one live sensor may run ahead of the other before the stretch is given up: this bounds the memory."""


class Answer(NamedTuple):
    """What the model makes of one window, whose samples lie from `start_s` to `end_s` on their own clock.

    `delay_s` is how much later than `end_s` the newest sample was when the answer came: the filter's half width, the
    time that late samples are waited for, and the length of the chunks. `inference_s` is what the model took.
    A model that answers with a number says it in `number`, in its own unit, and in words in `label`; there is no
    probability then (NaN, and none in `probabilities`).
    """

    start_s: float
    end_s: float
    label: str
    probability: float
    probabilities: Floats
    delay_s: float
    inference_s: float
    number: float | None = None


class Recognizer:
    """One stream of samples through one model.

    `live` drops what comes too late and outlives pauses, jumps of the clock and a sensor that falls silent, each said
    once; otherwise (a recording) samples out of order are an error. `on_warning` is called once for each kind of
    trouble, with a sentence; `warnings` keeps them. Among them is what `har_pipeline.signals.checks` finds in the
    samples: wrong units and axes of time, acceleration and rotation, dead and doubled channels, lost samples.
    """

    def __init__(
        self,
        session: Session,
        units: SampleUnits | None = None,
        *,
        live: bool = True,
        on_warning: Callable[[str], None] = log.warning,
    ) -> None:
        """Stand ready for samples; raises SettingsError where the model takes no windows of motion sensors."""
        settings = replace(PipelineSettings.of(session.metadata.input), keep_unlabelled=True)
        self.settings = replace(settings, late="drop", max_lag_s=LIVE_LAG_S) if live else settings
        self.units, self.live = units or SampleUnits(), live
        self.needs_gyroscope = session.metadata.input.masked != GYROSCOPE
        self.warnings: dict[str, str] = {}
        """What was said, by its kind."""
        self._session, self._on_warning = session, on_warning
        self._heard: set[str] = set()
        self._checks, self._judged_s = SignalChecks(acceleration=self.units.acceleration), -np.inf
        self._answered = False
        self._begin()

    def push(self, times: NDArray[Any], acc: NDArray[Any], gyro: NDArray[Any] | None = None) -> list[Answer]:
        """Take samples of both sensors with the same times: (n,), (n, 3) and (n, 3), in the units of `units`.

        `gyro` is None for models that were trained without one. Returns the answers that are ready, oldest first.
        """
        answers = self.push_acc(times, acc)
        return answers if gyro is None else answers + self.push_gyro(times, gyro)

    def push_acc(self, times: NDArray[Any], values: NDArray[Any]) -> list[Answer]:
        """Take samples of the accelerometer, with gravity: times (n,), values (n, 3)."""
        return self._take("acc", times, values)

    def push_gyro(self, times: NDArray[Any], values: NDArray[Any]) -> list[Answer]:
        """Take samples of the gyroscope: (n,) and (n, 3); a model that was trained without one ignores them."""
        if not self.needs_gyroscope:
            self._warn("masked", "this model was trained without a gyroscope: its samples are not used")
            return []
        return self._take("gyro", times, values)

    @property
    def held(self) -> int:
        """How many samples of the fuller sensor are in memory."""
        return self._pipeline.buffered[0]

    def flush(self) -> list[Answer]:
        """End the recording: return the answers that still waited for later samples.

        Raises InputError where one of the sensors sent nothing, so that there can be no answer at all.
        """
        answers = self._answers(self._pipeline.flush())
        self._begin()
        if silent := self._silent():
            raise InputError(silent)
        self._judge(is_over=True)
        if self._heard and not self._answered:
            self._warn(
                "no_windows", self._checks.no_windows(CLIENT, self.settings.window_s, self.settings.max_gap_s).message
            )
        return answers

    def _begin(self) -> None:
        self._pipeline = StreamPipeline(self.settings, (), report=None)
        self._newest: dict[Sensor, float] = {"acc": -np.inf, "gyro": -np.inf}

    def _take(self, sensor: Sensor, times: NDArray[Any], values: NDArray[Any]) -> list[Answer]:
        times_s, found = self.units.seconds(times), np.asarray(values, dtype=np.float64)
        if times_s.ndim != 1 or found.shape != (len(times_s), 3):
            raise InputError(
                f"{SENSORS[sensor]}: times {times_s.shape} and values {found.shape}; expected (n,) and (n, 3)"
            )
        found = self.units.to_specific_force(found) if sensor == "acc" else self.units.to_angular_rate(found)
        answers: list[Answer] = []
        for stretch in self._between_restarts(sensor, times_s):
            if self._restarted(sensor, times_s[stretch]):
                answers += self._answers(self._pipeline.flush())
                self._begin()
            answers += self._push(Recording(CLIENT, "", "", sensor, times_s[stretch], found[stretch], SENSORS[sensor]))
        return answers

    def _between_restarts(self, sensor: Sensor, times_s: np.ndarray) -> Iterator[slice]:
        """Cut at jumps back of the clock; in a recording they are the pipeline's to refuse."""
        jumps = np.flatnonzero(np.diff(times_s) < -RESTART_S) + 1 if self.live else ()
        return (slice(low, high) for low, high in pairwise([0, *jumps, len(times_s)]) if high > low)

    def _restarted(self, sensor: Sensor, times_s: np.ndarray) -> bool:
        back_s = self._newest[sensor] - float(times_s[0])
        if not self.live or not back_s > RESTART_S:
            return False
        self._warn("clock", f"the {SENSORS[sensor]}'s clock went back by {back_s:.1f} s: answers restart from there")
        return True

    def _push(self, recording: Recording) -> list[Answer]:
        known = recording.times_s[np.isfinite(recording.times_s)]
        if len(known):
            self._heard.add(recording.sensor)
            self._newest[recording.sensor] = max(self._newest[recording.sensor], float(known.max()))
        self._checks.add(recording)
        if not self._newest[recording.sensor] < self._judged_s + JUDGE_EVERY_S:
            self._judge()
            self._judged_s = self._newest[recording.sensor]
        dropped = self._pipeline.dropped
        both = [recording]
        if not self.needs_gyroscope:
            lost = np.isnan(recording.values).any(axis=1)  # not a sample of either
            masked = np.where(lost[:, None], np.nan, np.zeros((len(lost), 3)))
            both.append(recording._replace(sensor="gyro", values=masked))
        answers: list[Answer] = []
        try:
            for sensor in both:
                answers += self._answers(self._pipeline.push(sensor))
        except SignalError as error:
            if not self.live:
                raise
            self._warn("signal", self._silent() or f"answers restart: {error}")
            self._begin()
        if self._pipeline.dropped > dropped:
            late_s = self.settings.reorder_s
            late = f"later than {late_s:g} s after others"
            self._warn("dropped", f"samples without a number, beyond {MAX_VALUE:,.0f}, or {late}, are left out")
        return answers

    def _answers(self, windows: list[Window]) -> list[Answer]:
        self._answered = self._answered or bool(windows)
        # One by one: a batch's sums are not those of its windows alone, and batches depend on how the stream was cut.
        return [self._answer(window) for window in windows]

    def _answer(self, window: Window) -> Answer:
        began = time.perf_counter()
        found = self._session.predict(window.x[None])
        took_s = time.perf_counter() - began
        end_s = window.start_s + self.settings.window_s
        delay_s = max(0.0, max(self._newest.values()) - end_s)
        (label,), (probabilities,) = found.labels, found.probabilities
        probability = float(probabilities.max()) if len(probabilities) else math.nan
        number = None if found.numbers is None else float(found.numbers[0])
        return Answer(window.start_s, end_s, label, probability, probabilities, delay_s, took_s, number)

    def _silent(self) -> str:
        """Say which sensor the model needs and never heard while it heard the other; empty if none."""
        needed = ["acc", "gyro"] if self.needs_gyroscope else ["acc"]
        silent = [sensor for sensor in needed if sensor not in self._heard]
        if not self._heard or not silent:
            return ""
        return (
            f"there are no samples of the {SENSORS[silent[0]]}, but this model was trained with it; push both "
            f"sensors, or "
            "train a model on recordings without it"
        )

    def _judge(self, *, is_over: bool = False) -> None:
        """Warn of what looks wrong; a file's two sensors come in turn, so that one lags until both are read."""
        for finding in self._checks.findings():
            lags = finding.code == "silent" and not (is_over or self.live)
            if finding.severity != "note" and not lags:
                self._warn(f"{finding.code} {finding.sensor}", f"{SENSORS[finding.sensor]}: {finding.message}")

    def _warn(self, kind: str, words: str) -> None:
        if kind not in self.warnings:
            self.warnings[kind] = words
            self._on_warning(words)


DIGITS = 4


class Timeline:
    """Makes lines of answers: one per stretch of an activity, or (numbers, `per_window`, `as_json`) one per window."""

    def __init__(self, labels: Sequence[str], *, per_window: bool, as_json: bool) -> None:
        self._labels, self._per_window, self._as_json = labels, per_window, as_json
        self._width = max(map(len, labels))
        self._first_s: float | None = None
        self._stretch: list[Answer] = []
        self.recording: Mapping[str, str] = {}
        """What names the recording in each JSON object; nothing where there is one alone."""

    def begin(self, first_s: float) -> None:
        """Count the shown seconds from this time on; only the first call counts."""
        self._first_s = first_s if self._first_s is None else self._first_s

    def add(self, answer: Answer) -> list[str]:
        """Return the lines that are complete with this answer."""
        if self._as_json:
            return [self._json(answer)]
        if self._per_window or answer.number is not None:
            return [self._line([answer])]
        done = []
        if self._stretch and not self._continues(answer):
            done, self._stretch = [self._line(self._stretch)], []
        self._stretch.append(answer)
        return done

    def end(self) -> list[str]:
        """Return what is left."""
        return [self._line(self._stretch)] if self._stretch else []

    def _continues(self, answer: Answer) -> bool:
        last = self._stretch[-1]
        return answer.label == last.label and answer.start_s <= last.end_s

    def _line(self, stretch: Sequence[Answer]) -> str:
        first, last = stretch[0], stretch[-1]
        begin_s = self._first_s or 0.0
        if first.number is not None:
            return f"{first.start_s - begin_s:8.1f} to {last.end_s - begin_s:8.1f} s  {first.label}"
        probability = float(np.mean([answer.probability for answer in stretch]))
        count = len(stretch)
        windows = "" if self._per_window else f"  {count} window{'s' if count > 1 else ''}"
        span = f"{first.start_s - begin_s:8.1f} to {last.end_s - begin_s:8.1f} s"
        return f"{span}  {first.label:<{self._width}}  {probability:4.0%}{windows}"

    def _json(self, answer: Answer) -> str:
        if answer.number is not None:
            kept = ("start_s", "end_s", "label", "number", "delay_s", "inference_s")
            return json.dumps({**self.recording, **{name: getattr(answer, name) for name in kept}})
        record = {name: value for name, value in answer._asdict().items() if name != "number"} | {
            "probability": round(answer.probability, DIGITS),
            "probabilities": {
                label: round(float(probability), DIGITS)
                for label, probability in zip(self._labels, answer.probabilities, strict=True)
            },
        }
        return json.dumps({**self.recording, **record})
