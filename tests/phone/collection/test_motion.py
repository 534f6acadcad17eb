"""Events of a browser's motion sensors become the windows that har_pipeline makes of the same samples, and its CSV."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from har_pipeline import PipelineSettings, Recording, StreamPipeline, recordings
from har_pipeline.recording import Categorical
from tests.export.test_recognizer import jittered, motion, rotation
from tests.phone.test_javascript import HERE, why_not
from tests.repository.imports import REPOSITORY

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "node is here")

TOLERANCE = 1e-5
OFFSET_MS = 1.79e12
ANDROID = "Mozilla/5.0 (Linux; Android 15; Pixel 9) AppleWebKit/537.36 Chrome/140.0 Mobile Safari/537.36"
IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 Version/18.5 Mobile/15E148 Safari"


def by_node(request: dict[str, Any]) -> Any:
    command = ["node", "--import", str(HERE / "register.mjs"), str(Path(__file__).parent / "windows_of.mjs")]
    said = json.dumps(request)
    ran = subprocess.run(command, input=said, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


def events_of(times_ms: np.ndarray, acc: np.ndarray, degrees: np.ndarray) -> list[dict[str, Any]]:
    rows = zip(times_ms.tolist(), acc.tolist(), degrees.tolist(), strict=True)
    return [{"timeStamp": time, "acceleration": one, "rotation": other} for time, one, other in rows]


def a_walk(seconds: float = 14, gap_at_s: float = 7.1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sixty events a second, with a gap as when the page was hidden, rounded as browsers round."""
    times = jittered(seconds, 3, 60.0, gap_at_s)
    return (5 + times) * 1e3, np.round(motion(times, 3), 1), np.round(np.degrees(rotation(times, 4)), 1)


@pytest.mark.parametrize("agent", [ANDROID, IPHONE])
def test_windows_are_har_pipelines(agent: str) -> None:
    times, acc, degrees = a_walk()
    sign = -1 if agent == IPHONE else 1
    found = by_node(
        {"events": events_of(times, sign * acc, degrees), "agent": agent, "offsetMs": OFFSET_MS, "changes": []}
    )
    stream = StreamPipeline(PipelineSettings(keep_unlabelled=True), ())
    expected = stream.push(Recording("p", "", "", "acc", times / 1e3, acc))
    expected += stream.push(Recording("p", "", "", "gyro", times / 1e3, np.radians(degrees)))
    expected += stream.flush()
    assert len(expected) >= 6
    x = np.array([each["x"] for each in found["windows"]]).reshape(-1, 128, 6)
    np.testing.assert_allclose(x, np.stack([each.x for each in expected]), rtol=0, atol=TOLERANCE)
    starts = [each["start_ms"] - OFFSET_MS for each in found["windows"]]
    np.testing.assert_allclose(starts, [1e3 * each.start_s for each in expected], atol=1e-3)


def test_an_axis_that_the_browser_leaves_out_is_a_lost_sample() -> None:
    times, acc, degrees = a_walk(gap_at_s=0)
    events = events_of(times, acc, degrees)
    for event in events[300:360]:  # a second
        event["rotation"] = [None, 0, 0]
    found = by_node({"events": events, "agent": ANDROID, "offsetMs": 0, "changes": []})["windows"]
    assert all(each["start_ms"] + 2560 < times[302] or each["start_ms"] > times[358] for each in found)
    assert len(found) > 4


def test_a_label_holds_from_its_tap_on_and_a_file_brings_all_of_it_back(tmp_path: Path) -> None:
    """The file has each sample once, and is what the description in docs/phones.md says it is."""
    times, acc, degrees = a_walk()
    changes = [[OFFSET_MS + 5000, "walking"], [OFFSET_MS + 9500, None], [OFFSET_MS + 15_000, "sitting"]]
    request = {"events": events_of(times, acc, degrees), "agent": ANDROID, "offsetMs": OFFSET_MS, "changes": changes}
    found = by_node(request)
    windows, again = found["windows"], found["again"]
    middles = [each["start_ms"] + 1280 - OFFSET_MS for each in windows]
    labels = ["walking" if at < 9500 else None if at < 15_000 else "sitting" for at in middles]
    assert [each["label"] for each in windows] == labels
    assert set(labels) == {"walking", None, "sitting"}
    assert [{**each, "start_ms": 0} for each in again] == [{**each, "start_ms": 0} for each in windows]
    starts = [each["start_ms"] for each in windows]
    np.testing.assert_allclose([each["start_ms"] for each in again], starts, atol=1e-2)
    rows = [line.split(",") for line in found["file"].splitlines()[1:]]
    assert len({row[0] for row in rows}) == len(rows) < 128 * len(windows)

    (tmp_path / "phone-1.csv").write_text(found["file"])
    text = (REPOSITORY / "docs/phones.md").read_text()
    (description,) = re.findall(r"```toml\n(files = .*?)```", text, re.DOTALL)
    options = tomllib.loads(description)
    read = list(recordings("described", tmp_path, options=options))
    assert sum(len(each.times_s) for each in read if each.sensor == "acc") == len(rows)
    names = [name for each in read if isinstance(each.activity, Categorical) for name in each.activity.names.tolist()]
    assert set(names) == {"walking", "", "sitting"}
    assert {each.client for each in read} == {"phone-1"}
