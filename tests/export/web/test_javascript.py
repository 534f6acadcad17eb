"""The browser's pipeline against Python's: the same samples through both, cut differently, give the same windows."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import phone
from export.gates import generated_windows
from export.onnx_export import export_onnx
from export.recognizer import Recognizer
from export.runtime import Session
from gaitway.input_spec import InputSpec
from har_pipeline import PipelineSettings, Recording, SampleUnits, StreamPipeline, recordings
from models import build
from models.har_features import FEATURES
from tests.export.conftest import MEAN, STD, metadata
from tests.export.test_recognizer import ACCELEROMETER_ONLY, jittered, motion, pieces, rotation
from tests.export.test_runtime import model_bytes

ORT = phone.APP / "vendor" / "ort" / "ort.wasm.min.mjs"

HERE = Path(__file__).parent
TOLERANCE = 1e-5
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine: apt-get install nodejs")


def by_node(script: str, request: dict[str, Any]) -> Any:
    """Run a script beside this file with a request on its standard input, and return its answer."""
    command, said = ["node", str(HERE / script)], json.dumps(request)
    ran = subprocess.run(command, input=said, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


def chunks(stretches: list[Recording], seed: int) -> list[dict[str, Any]]:
    """Cut each sensor's samples at places of its own, and lay them in the order of their times."""
    cut = [
        {"sensor": each.sensor, "times": each.times_s[part].tolist(), "values": each.values[part].tolist()}
        for number, each in enumerate(stretches)
        for part in pieces(len(each.times_s), seed + number)
        if len(each.times_s[part])
    ]
    return sorted(cut, key=lambda chunk: chunk["times"][0])


def assert_same_windows(stretches: list[Recording], seed: int, at_least: int, **options: Any) -> None:
    settings = PipelineSettings(keep_unlabelled=True, late="drop", **options)
    stream = StreamPipeline(settings, ())
    expected = [window for each in stretches for window in stream.push(each._replace(activity="", session=""))]
    expected += stream.flush()
    request = {"input": settings.input_spec(MEAN, STD).to_json(), "chunks": chunks(stretches, seed)}
    found = by_node("windows_of.mjs", request)
    assert len(expected) >= at_least
    np.testing.assert_allclose([each["start_s"] for each in found], [each.start_s for each in expected], atol=1e-9)
    x = np.array([each["x"] for each in found]).reshape(-1, 128, 6)
    np.testing.assert_allclose(x, np.stack([each.x for each in expected]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rate_hz", [50.0, 60.0, 93.0, 210.0])
def test_jitter_and_gaps(rate_hz: float) -> None:
    """Two sensors with clocks of their own, gaps at different times, a burst of equal times, and a lost sample."""
    times, gyro_times = jittered(20, 1, rate_hz, gap_at_s=9.1), jittered(19, 2, rate_hz, gap_at_s=13.0) + 0.7
    times[200:203] = times[200]
    values = motion(times, 1)
    values[333, 1] = np.nan
    values[700, 2] = 1e30  # what no sensor measures is left out by both
    stretches = [
        Recording("p", "", "", "acc", times, values),
        Recording("p", "", "", "gyro", gyro_times, rotation(gyro_times, 4)),
    ]
    lost = np.isnan(values).any(axis=1)
    request = [stretches[0]._replace(times_s=times[~lost], values=values[~lost]), stretches[1]]
    assert_same_windows(request, 7, at_least=4)


@pytest.mark.parametrize("rate_hz", [12.5, 25.0, 40.0])
def test_sensors_that_are_slower_than_the_grid(rate_hz: float) -> None:
    """They are interpolated in the band that they hold; some stamps are late, and one becomes faster on the way."""
    times = jittered(25, 6, rate_hz)
    times[40:-40:31] = times[41:-39:31] - 0.1 / rate_hz
    faster = np.concatenate([times[times < 14], np.arange(14.01, 32, 1 / (2 * rate_hz))])
    stretches = [
        Recording("p", "", "", "acc", times, motion(times, 6)),
        Recording("p", "", "", "gyro", faster, rotation(faster, 7)),
    ]
    assert_same_windows(stretches, 11, at_least=8)


def test_bursts_under_one_stamp_get_their_times_back() -> None:
    """Of each sensor, some at a time; at the end it is at rest."""
    times = jittered(20, 5, 50.0)
    stamps = times[np.minimum(np.arange(len(times)) // 9 * 9 + 8, len(times) - 1)]
    values = motion(times, 5)
    values[800:] = values[800]
    stretches = [
        Recording("p", "", "", "acc", stamps, values),
        Recording("p", "", "", "gyro", stamps, rotation(times, 9)),
    ]
    assert_same_windows(stretches, 3, at_least=12)


@pytest.mark.parametrize("rate_hz", [50.0, 60.0])
def test_sensors_that_are_anti_aliased_only_where_the_rate_falls(rate_hz: float) -> None:
    """Which the model's file says: one of the grid's rate is interpolated, a faster one low-passed."""
    times = jittered(12, 8, rate_hz)
    stretches = [
        Recording("p", "", "", "acc", times, motion(times, 8)),
        Recording("p", "", "", "gyro", times, rotation(times, 9)),
    ]
    assert_same_windows(stretches, 5, at_least=6, anti_alias="downsampling")


def test_seconds_since_1970() -> None:
    times = 1.76e9 + jittered(8, 3)
    stretches = [Recording("p", "", "", sensor, times, motion(times - 1.76e9, 3)) for sensor in ("acc", "gyro")]
    assert_same_windows(stretches, 3, at_least=3)


@pytest.mark.ci
@pytest.mark.data
@pytest.mark.parametrize(("name", "client"), [("motionsense", "s01"), ("spsw", "s01_sp")])
def test_a_real_recording(gaitway_data: Path, name: str, client: str) -> None:
    found = recordings(name, gaitway_data, clients=[client])
    acc, gyro = next(found), next(found)
    short = [each._replace(times_s=each.times_s[:3000], values=each.values[:3000]) for each in (acc, gyro)]
    assert_same_windows(short, 5, at_least=8)


def answers_by_node(model: bytes, units: dict[str, str], stretches: list[Recording], seed: int = 1) -> Any:
    request = {"model": base64.b64encode(model).decode(), "units": units, "chunks": chunks(stretches, seed)}
    return by_node("answers_of.mjs", request)


def test_numbers_are_pythons() -> None:
    """A model that answers with a number: in its own unit, and the same words in both languages."""
    says = metadata("linear", labels=("speed (km/h)",), task={"name": "regression", "center": 5.0, "spread": 2.5})
    model, times = model_bytes(says, classes=1), jittered(10, 5)
    values = motion(times, 5)
    stretches = [
        Recording("p", "", "", "acc", times, values),
        Recording("p", "", "", "gyro", times, rotation(times, 5)),
    ]
    found = answers_by_node(model, {"time": "s", "acc": "m/s2", "gyro": "rad/s"}, stretches)["answers"]
    python = Recognizer(Session.load(model))
    answers = python.push(times, values, rotation(times, 5)) + python.flush()
    assert len(answers) > 3
    np.testing.assert_allclose([each["number"] for each in found], [each.number for each in answers], atol=1e-4)
    assert [each["label"] for each in found] == [each.label for each in answers]
    assert {str(each["probabilities"]) for each in found} == {"{}"}


@pytest.mark.ci
@pytest.mark.skipif(not ORT.is_file(), reason="no ONNX Runtime for the web: make phone")
def test_hand_made_features_answer_alike_in_a_browsers_runtime(tmp_path: Path) -> None:
    """`har_features` from raw samples, by ONNX Runtime for the web and by the native one, as torch exported it."""
    torch.manual_seed(0)
    said = metadata("har_features", input=InputSpec.windows((0.0,) * 6, (1.0,) * 6))
    module = build("har_features", classes=len(said.labels))
    export_onnx(module, tmp_path / "model.onnx", metadata=said, examples=generated_windows(256))
    times = jittered(12, 5)
    stretches = [
        Recording("p", "", "", "acc", times, motion(times, 5)),
        Recording("p", "", "", "gyro", times, rotation(times, 5)),
    ]
    found = by_node(
        "answers_by_web_runtime.mjs", {"model": str(tmp_path / "model.onnx"), "chunks": chunks(stretches, 1)}
    )
    python = Recognizer(Session.load(tmp_path / "model.onnx"))
    answers = python.push(times, stretches[0].values, stretches[1].values) + python.flush()
    assert len(answers) > 4
    assert [each["label"] for each in found] == [each.label for each in answers]
    probabilities = [list(each["probabilities"].values()) for each in found]
    np.testing.assert_allclose(probabilities, [each.probabilities for each in answers], atol=1e-4)


@pytest.mark.ci
@pytest.mark.skipif(not ORT.is_file(), reason="no ONNX Runtime for the web: make phone")
def test_minirocket_features_are_equal_in_torch_onnx_and_a_browsers_runtime(tmp_path: Path) -> None:
    """Bit for bit, also with int8 weights: one step beside a bias would be another feature."""
    torch.manual_seed(0)
    said = metadata("har_features", input=InputSpec.windows((0.0,) * 6, (1.0,) * 6))
    module = build("har_features", classes=len(said.labels), features=600).eval()
    x = generated_windows(256, seed=8)
    x[0], x[1, :, 3:] = 0, 0  # one that measures nothing, and one without a gyroscope
    export_onnx(module, tmp_path / "model.onnx", metadata=said, examples=x, int8=True)
    some = x[:24]
    with torch.no_grad():
        wanted = module(torch.from_numpy(some)).features.numpy()
    request = {"model": str(tmp_path / "model.onnx"), "x": some.ravel().tolist(), "shape": list(some.shape)}
    by_web = np.array(by_node("embeddings_by_web_runtime.mjs", request), np.float32).reshape(wanted.shape)
    native, int8 = (Session.load(tmp_path / f"model{end}").predict(some).embedding for end in (".onnx", ".int8.onnx"))
    for found in (by_web, native, int8):
        np.testing.assert_array_equal(found[:, FEATURES:], wanted[:, FEATURES:])
        np.testing.assert_allclose(found[:, :FEATURES], wanted[:, :FEATURES], atol=1e-4)


def test_answers_are_pythons() -> None:
    model = model_bytes()
    times = jittered(10, 5) * 1e3
    values = motion(times / 1e3, 5)
    stretches = [
        Recording("p", "", "", "acc", times, values / 9.80665),
        Recording("p", "", "", "gyro", times, values[:, ::-1] * 10),
    ]
    found = answers_by_node(model, {"time": "ms", "acc": "g", "gyro": "deg/s"}, stretches)
    session = Session.load(model)
    python = Recognizer(session, SampleUnits(time="ms", acc="g", gyro="deg/s"))
    answers = python.push(times, stretches[0].values, stretches[1].values) + python.flush()
    assert len(answers) > 3
    assert found["warnings"] == []
    assert tuple(found["metadata"]["labels"]) == session.metadata.labels
    assert found["metadata"]["input"] == json.loads(session.metadata.to_properties()["input"])
    assert [each["label"] for each in found["answers"]] == [each.label for each in answers]
    probabilities = [list(each["probabilities"].values()) for each in found["answers"]]
    np.testing.assert_allclose(probabilities, [each.probabilities for each in answers], atol=1e-6)
    np.testing.assert_allclose([each["endS"] for each in found["answers"]], [each.end_s for each in answers])


def test_a_model_of_accelerations_alone_needs_no_gyroscope() -> None:
    model = model_bytes(metadata("m", input=ACCELEROMETER_ONLY))
    times = jittered(6)
    found = answers_by_node(model, {}, [Recording("p", "", "", "acc", times, motion(times))])
    assert len(found["answers"]) > 1
    assert found["warnings"] == []


@pytest.mark.parametrize(
    ("acc", "gyro", "words"),
    [(1 / 9.80665, 1.0, "that looks like g"), (1.0, 57.3, "looks like degrees"), (1.0, 0.0, "gives zeros")],
)
def test_wrong_units_are_said_once(acc: float, gyro: float, words: str) -> None:
    times = jittered(8)
    stretches = [
        Recording("p", "", "", "acc", times, motion(times) * acc),
        Recording("p", "", "", "gyro", times, rotation(times, 2) * gyro),
    ]
    (said,) = answers_by_node(model_bytes(), {}, stretches)["warnings"]
    assert words in said


def test_a_clock_that_is_set_back_begins_anew() -> None:
    times = np.concatenate([1000 + np.arange(0, 5, 0.01), 10 + np.arange(0, 5, 0.01)])
    values = motion(times)
    found = by_node(
        "answers_of.mjs",
        {
            "model": base64.b64encode(model_bytes()).decode(),
            "units": {},
            "chunks": [
                {"sensor": sensor, "times": times[part].tolist(), "values": values[part].tolist()}
                for part in (slice(0, 500), slice(500, 1000))
                for sensor in ("acc", "gyro")
            ],
        },
    )
    assert [round(each["startS"], 6) for each in found["answers"]] == [1000.0, 1001.28, 10.0, 11.28]
    assert found["warnings"] == ["the sensor's clock went back: answers begin anew from there"]
