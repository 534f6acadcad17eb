"""Samples in, answers out: as prepared windows give them bit for bit, and what a live sensor does on bad days."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from export.recognizer import Answer, Recognizer
from export.runtime import InputError, Session
from gaitway.input_spec import GYROSCOPE, InputSpec
from har_pipeline import (
    PipelineSettings,
    Recording,
    SampleUnits,
    SettingsError,
    SignalError,
    StreamPipeline,
    prepare,
    recordings,
)
from tests.export.conftest import MEAN, STD, metadata
from tests.export.test_runtime import model_bytes

SESSION = Session.load(model_bytes())
ACCELEROMETER_ONLY = InputSpec.windows((*MEAN[:3], 0.0, 0.0, 0.0), (*STD[:3], 1e-3, 1e-3, 1e-3))
"""What the statistics of a masked gyroscope make of it."""
MASKED = Session.load(model_bytes(metadata("m", input=ACCELEROMETER_ONLY)))


def jittered(seconds: float, seed: int = 0, rate_hz: float = 93.0, gap_at_s: float = 0.0) -> np.ndarray:
    """Times of a sensor whose clock is not quite regular, with 0.4 s missing from `gap_at_s` on."""
    random = np.random.default_rng(seed)
    times = np.sort(np.arange(0, seconds, 1 / rate_hz) + random.uniform(-0.004, 0.004, int(np.ceil(seconds * rate_hz))))
    return times[(times < gap_at_s) | (times > gap_at_s + 0.4)] if gap_at_s else times


def motion(times_s: np.ndarray, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    waves = np.sin(2 * np.pi * np.array([1.1, 2.3, 0.7]) * times_s[:, None] + random.uniform(0, 6, 3))
    return waves + 0.3 * random.normal(size=(len(times_s), 3)) + [0.0, 0.0, 9.81]


def rotation(times_s: np.ndarray, seed: int = 1) -> np.ndarray:
    moved: np.ndarray = motion(times_s, seed) - [0.0, 0.0, 9.81]
    return moved


def pieces(count: int, seed: int) -> list[slice]:
    """Cut so many samples at random places."""
    edges = np.unique(np.random.default_rng(seed).integers(0, count, size=40))
    return [slice(low, high) for low, high in pairwise([0, *edges.tolist(), count])]


def by_chunks(recognizer: Recognizer, stretches: list[Recording], seed: int | None) -> list[Answer]:
    """Push recordings in the order of their times, each cut at places of its own; without a seed whole."""
    chunks = [
        (each.times_s[part][0], each.sensor, each.times_s[part], each.values[part])
        for each in stretches
        for part in ([slice(None)] if seed is None else pieces(len(each.times_s), seed + (each.sensor == "acc")))
        if len(each.times_s[part])
    ]
    answers: list[Answer] = []
    for _, sensor, times, values in sorted(chunks, key=lambda chunk: chunk[0]):
        answers += (recognizer.push_acc if sensor == "acc" else recognizer.push_gyro)(times, values)
    return answers + recognizer.flush()


def assert_equal(answers: list[Answer], x: np.ndarray, start_s: np.ndarray) -> None:
    """Compare with what the model says of prepared windows, bit for bit."""
    expected = [SESSION.predict(each[None]) for each in x]
    assert [answer.label for answer in answers] == [each.labels[0] for each in expected]
    assert [answer.start_s for answer in answers] == start_s.tolist()
    probabilities = [each.probabilities[0] for each in expected]
    np.testing.assert_array_equal([answer.probabilities for answer in answers], probabilities)


@pytest.mark.data
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(None, marks=pytest.mark.slow),
        pytest.param(1, marks=pytest.mark.ci),
        pytest.param(2, marks=pytest.mark.slow),
    ],
)
def test_a_real_recording_in_any_pieces_is_answered_as_its_prepared_windows(
    gaitway_data: Path, seed: int | None
) -> None:
    prepared = prepare("motionsense", gaitway_data, clients=["s01"]).clients["s01"]
    mine = list(recordings("motionsense", gaitway_data, clients=["s01"]))[:4]
    sessions = list(dict.fromkeys(each.session for each in mine))
    answers: list[Answer] = []
    for name in sessions:
        recognizer = Recognizer(SESSION, live=seed is not None)
        answers += by_chunks(recognizer, [each for each in mine if each.session == name], seed)
        assert recognizer.warnings == {}
    assert len(answers) > 20
    assert_equal(answers, prepared.x[: len(answers)], prepared.start_s[: len(answers)])


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_units_gaps_and_pieces_change_nothing(seed: int | None) -> None:
    """Samples in ms, g and deg/s with jitter and gaps, against the whole recording in s, m/s² and rad/s at once."""
    times_s, gyro_times_s = jittered(40, gap_at_s=17.3), jittered(41, seed=5, gap_at_s=9.0)
    times, acc = times_s * 1e3, motion(times_s) / 9.80665
    gyro_times, gyro = gyro_times_s * 1e3, rotation(gyro_times_s) * 57.3
    pipeline = StreamPipeline(PipelineSettings(keep_unlabelled=True), ())
    windows = pipeline.push(Recording("p", "", "", "acc", times * 1e-3, acc * 9.80665))
    windows += pipeline.push(Recording("p", "", "", "gyro", gyro_times * 1e-3, gyro * (np.pi / 180)))
    windows += pipeline.flush()
    recognizer = Recognizer(SESSION, SampleUnits(time="ms", acc="g", gyro="deg/s"), live=seed is not None)
    stretches = [Recording("p", "", "", "acc", times, acc), Recording("p", "", "", "gyro", gyro_times, gyro)]
    answers = by_chunks(recognizer, stretches, seed)
    assert len(answers) > 20
    assert_equal(answers, np.stack([window.x for window in windows]), np.array([window.start_s for window in windows]))


def test_an_answer_says_when_and_how_sure() -> None:
    times = np.arange(0, 6, 0.01)
    upright = np.tile([0.0, 0.0, 3.0], (len(times), 1))  # the third logit is the mean of acc_z
    recognizer = Recognizer(SESSION)
    first = next(
        answer
        for part in np.split(np.arange(len(times)), 60)
        for answer in recognizer.push(times[part], upright[part], 0 * upright[part])
    )
    assert (first.start_s, first.end_s, first.label) == (0.0, 2.56, "jog")
    expected = np.exp([0, 0, 3, 0]) / np.exp([0, 0, 3, 0]).sum()
    np.testing.assert_allclose(first.probabilities, expected, rtol=1e-5)
    assert first.probability == pytest.approx(expected.max(), rel=1e-5)
    # half the kernel, the time for late samples, and a chunk of 0.1 s
    assert 0.2 < first.delay_s < 0.35
    assert 0 < first.inference_s < 1


def test_axes_are_turned_to_the_devices() -> None:
    times = np.arange(0, 3, 0.01)
    lying = np.tile([5.0, 0.0, 0.0], (len(times), 1))  # the sensor's x points up where the device's z does
    (turned,) = by_chunks(
        Recognizer(SESSION, SampleUnits(axes="y,z,x")),
        [Recording("p", "", "", sensor, times, lying) for sensor in ("acc", "gyro")],
        None,
    )
    assert turned.label == "jog"  # acc_z
    matrix = ((0, 1, 0), (0, 0, 1), (1, 0, 0))
    same = Recognizer(SESSION, SampleUnits(axes=matrix)).push(times, lying, lying)
    np.testing.assert_array_equal(same[0].probabilities, turned.probabilities)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("x,y", "once each"),
        ("x,x,z", "once each"),
        ("a,b,c", "once each"),
        ("x,y,-z", "mirror image"),
        (((1, 0, 0), (0, 2, 0), (0, 0, 1)), "rotation"),
        (((1, 0), (0, 1)), "rotation"),
        ("--x,y,z", "once each"),
    ],
)
def test_axes_that_are_none_are_refused(axes: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SampleUnits(axes=axes)


def test_a_unit_that_is_none_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"'m/s'; did you mean 'm/s2'"):
        SampleUnits(acc="m/s")


def test_other_units_than_those_that_were_said_are_noticed_once() -> None:
    said: list[str] = []
    recognizer = Recognizer(SESSION, on_warning=said.append)  # m/s² and rad/s
    for begin_s in range(0, 20, 2):
        times = begin_s + np.arange(0, 2, 0.01)
        recognizer.push(times, motion(times) / 9.80665, rotation(times) * 57.3)
    recognizer.flush()
    assert len(said) == 2
    assert sum("set the unit of the acceleration to g" in words or "expected 9.81 m/s²" in words for words in said) == 1
    assert sum("set the unit of the gyroscope to deg/s" in words for words in said) == 1


def test_a_gyroscope_that_comes_after_the_accelerometer_is_not_called_silent() -> None:
    """As of two files of one session, which are read in turn (tinawan110/SwimmingData)."""
    times = jittered(120)
    recognizer = Recognizer(SESSION, live=False)
    half = len(times) // 2
    recognizer.push(times[:half], motion(times)[:half], rotation(times)[:half])
    recognizer.push_acc(times[half:], motion(times)[half:])
    assert not any(kind.startswith("silent") for kind in recognizer.warnings)
    recognizer.flush()
    assert any(kind.startswith("silent") for kind in recognizer.warnings)


def test_times_in_another_unit_give_no_window_and_the_reason() -> None:
    said: list[str] = []
    recognizer = Recognizer(SESSION, SampleUnits(time="ms"), live=False, on_warning=said.append)
    times = np.arange(0, 20, 0.01)
    assert recognizer.push(times, motion(times), rotation(times)) + recognizer.flush() == []
    assert any(words.startswith("no window results") and "Set the unit of time" in words for words in said)


def test_a_clock_that_is_set_back_begins_anew_and_says_so_once() -> None:
    recognizer = Recognizer(SESSION)
    starts = []
    for begin_s in (1000.0, 500.0, 100.0):
        times = begin_s + np.arange(0, 6, 0.01)
        answers = recognizer.push(times, motion(times), rotation(times))
        starts += [answer.start_s for answer in answers]
    starts += [answer.start_s for answer in recognizer.flush()]
    expected = [begin_s + offset for begin_s in (1000.0, 500.0, 100.0) for offset in (0, 1.28, 2.56)]
    np.testing.assert_allclose(starts, expected)
    assert list(recognizer.warnings) == ["clock"]
    assert "the accelerometer's clock went back by 506.0 s" in recognizer.warnings["clock"]


def test_samples_that_come_too_late_are_left_out_and_it_is_said() -> None:
    said: list[str] = []
    recognizer = Recognizer(SESSION, on_warning=said.append)
    times = np.arange(0, 4, 0.01)
    recognizer.push(times, motion(times), rotation(times))
    recognizer.push_acc(times[-30:-20], 1e6 + motion(times[-30:-20]))
    recognizer.push_acc(times[-30:-20], 1e6 + motion(times[-30:-20]))
    assert len(said) == 1
    assert "later than 0.1 s after others" in said[0]


def test_single_samples_that_no_sensor_measures_cost_no_answer() -> None:
    times = np.arange(0, 12, 0.01)
    acc = motion(times)
    expected = len(whole(Recognizer(SESSION), times, acc))
    acc[[300, 700], [0, 2]] = np.inf, 1e308
    said: list[str] = []
    answers = whole(Recognizer(SESSION, on_warning=said.append), times, acc)
    assert len(answers) == expected
    assert all(np.isfinite(each.probabilities).all() for each in answers)
    assert "samples without a number" in said[0]


def whole(recognizer: Recognizer, times: np.ndarray, acc: np.ndarray) -> list[Answer]:
    answers: list[Answer] = []
    for part in np.array_split(np.arange(len(times)), 40):
        answers += recognizer.push(times[part], acc[part], rotation(times)[part])
    return answers + recognizer.flush()


def test_a_sensor_that_never_comes_is_named_and_the_memory_stays_bounded() -> None:
    said: list[str] = []
    recognizer = Recognizer(SESSION, on_warning=said.append)
    held = 0
    for begin_s in range(0, 300, 5):
        times = begin_s + np.arange(0, 5, 0.01)
        assert recognizer.push_acc(times, motion(times)) == []
        held = max(held, recognizer.held)
    assert held <= 100 * 36  # 30 s that are waited for, and a chunk
    assert len(said) == 1
    assert said[0].startswith("there are no samples of the gyroscope")
    with pytest.raises(InputError, match="there are no samples of the gyroscope"):
        recognizer.flush()


def test_a_recording_without_gyroscope_is_an_error_for_a_model_that_needs_one() -> None:
    times = np.arange(0, 5, 0.01)
    recognizer = Recognizer(SESSION, live=False)
    recognizer.push_acc(times, motion(times))
    with pytest.raises(InputError, match="push both sensors, or train a model on recordings without it"):
        recognizer.flush()


def test_a_model_of_accelerations_alone_sees_a_gyroscope_of_zeros() -> None:
    times = jittered(6)
    alone, both = Recognizer(MASKED), Recognizer(SESSION)
    mine = alone.push_acc(times, motion(times)) + alone.flush()
    theirs = both.push(times, motion(times), np.zeros((len(times), 3))) + both.flush()
    assert len(mine) > 1
    np.testing.assert_array_equal([one.probabilities for one in mine], [one.probabilities for one in theirs])
    assert ACCELEROMETER_ONLY.masked == GYROSCOPE
    assert alone.push_gyro(times, motion(times)) == []
    assert list(alone.warnings) == ["masked"]


def test_a_recording_out_of_order_is_refused_where_it_is_no_live_one() -> None:
    recognizer = Recognizer(SESSION, live=False)
    times = np.arange(0, 5, 0.01)
    recognizer.push(times, motion(times), rotation(times))
    with pytest.raises(SignalError, match="comes after later ones"):
        recognizer.push_acc(times, motion(times))


@pytest.mark.parametrize(("times", "values"), [((5,), (4, 3)), ((5,), (5, 2)), ((5, 1), (5, 3))])
def test_arrays_of_another_shape_are_refused(times: tuple[int, ...], values: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"expected \(n,\) and \(n, 3\)"):
        Recognizer(SESSION).push_acc(np.zeros(times), np.zeros(values))


def test_neither_torch_nor_pandas_is_loaded_for_answers() -> None:
    program = """
import sys, numpy as np
from export.recognizer import Recognizer
from export.runtime import Session
from har_pipeline import SampleUnits
times = np.arange(0, 3000, 10)
values = np.tile([0.0, 0.0, 1.0], (300, 1))
recognizer = Recognizer(Session.load(sys.stdin.buffer.read()), SampleUnits(time="ms", acc="g"))
print(len(recognizer.push(times, values, 0 * values)))
print(sorted({"torch", "pandas", "scipy", "onnx", "typer", "models", "federation"} & sys.modules.keys()))
"""
    ran = subprocess.run([sys.executable, "-c", program], input=model_bytes(), capture_output=True, check=True)
    assert ran.stdout.decode().split("\n")[:2] == ["1", "[]"]
