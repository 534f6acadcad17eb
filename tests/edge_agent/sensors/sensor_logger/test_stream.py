"""A phone's messages: what comes out of them in any order, and what is left out and counted."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.config.sensors import PhoneSection
from edge_agent.machine.events import PhoneConditions
from edge_agent.sensors.sensor_logger.inbox import Vocabulary
from edge_agent.sensors.sensor_logger.message import (
    PhoneSamples,
    SampleBatch,
    parse,
    signed,
    wrong_direction,
    wrong_units,
)
from edge_agent.sensors.sensor_logger.stream import MAX_WAITING, PhoneStream
from har_pipeline import Recording, StreamPipeline, Window
from tests.edge_agent.sensors.sensor_logger.phone import (
    BEGAN_S,
    LABELS,
    SETTINGS,
    annotation,
    bodies,
    entries,
    expected_windows,
    messages,
    walk,
)


class Windows:
    """A sink that cuts windows."""

    def __init__(self) -> None:
        self.pipeline, self.found = StreamPipeline(SETTINGS, LABELS), list[Window]()

    def push(self, recording: Recording) -> None:
        self.found += self.pipeline.push(recording)

    def end_session(self) -> None:
        self.found += self.pipeline.flush()


def batches(found: list[dict[str, Any]], platform: str = "android") -> list[SampleBatch]:
    read = [parse(body) for body in bodies(found)]
    return [signed(batch, platform) for batch in read if batch]


def run(found: list[SampleBatch], reorder_s: float = 2.0, **phone: Any) -> tuple[list[Window], PhoneStream]:
    sink = Windows()
    stream = PhoneStream(sink, reorder_s, Vocabulary(PhoneSection(**phone), LABELS).activity_of)
    for batch in found:
        stream.accept(batch)
    stream.finish()
    return sink.found, stream


def assert_same(left: list[Window], right: list[Window]) -> None:
    assert [(w.y, w.session) for w in left] == [(w.y, w.session) for w in right]
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a.x, b.x, atol=2e-5)
        assert abs(a.start_s - b.start_s) < 1e-6


@pytest.mark.parametrize(("platform", "sign"), [("android", 1.0), ("standardised", 1.0), ("ios", -1.0)])
def test_the_windows_are_those_of_total_acceleration_and_gyroscope(platform: str, sign: float) -> None:
    times_s, sensors = walk(12.0)
    found, stream = run(batches(messages(entries(times_s, sensors, sign)), platform))
    assert len(found) == 8
    assert_same(found, expected_windows(times_s, sensors))
    assert not +stream.counts


@cache
def six_seconds() -> tuple[list[SampleBatch], list[Window]]:
    ordered = batches(messages(entries(*walk(6.0)), per_message=30))
    return ordered, run(ordered)[0]


@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_no_order_within_the_reorder_time_changes_anything(seed: int) -> None:
    ordered, expected = six_seconds()
    shuffled = sorted(
        ordered, key=lambda batch: times_of(batch) + random.Random(f"{seed} {batch.number}").random() * 1.8
    )
    found, stream = run(shuffled)
    assert len(expected) == 3
    assert stream.counts["late"] == 0
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.x, b.x)


def times_of(batch: SampleBatch) -> float:
    return min(float(samples.times_s[0]) for samples in batch.motion.values())


def test_a_message_that_comes_too_late_is_dropped_and_counted_and_breaks_the_windows() -> None:
    times_s, sensors = walk(10.0)
    every = batches(messages(entries(times_s, sensors)))
    late = every.pop(20)
    every.insert(34, late)  # 2.8 s after its turn
    found, stream = run(every)
    assert stream.counts["late"] == late.samples == 60
    assert {window.session for window in found} == {0, 1}
    gap = (times_of(late), times_of(late) + 0.2)
    assert all(w.start_s + SETTINGS.window_s <= gap[0] + 0.05 or w.start_s >= gap[1] - 0.05 for w in found)


def test_a_gap_of_100_ms_breaks_windows_and_a_shorter_one_does_not() -> None:
    times_s, sensors = walk(8.0)
    for lost, sessions in ((8, {0}), (12, {0, 1})):
        keep = np.ones(len(times_s), bool)
        keep[400 : 400 + lost] = False
        thinned = {name: values[keep] for name, values in sensors.items()}
        found, _ = run(batches(messages(entries(times_s[keep], thinned))))
        assert {window.session for window in found} == sessions, lost


def test_repeated_messages_are_ignored_and_a_new_session_is_not_a_repetition() -> None:
    times_s, sensors = walk(6.0)
    every = batches(messages(entries(times_s, sensors)))
    found, stream = run([batch for batch in every for _ in range(2)])
    assert stream.counts["duplicates"] == len(every)
    assert_same(found, expected_windows(times_s, sensors))
    again_s, more = walk(6.0, began_s=BEGAN_S + 100)
    both, stream = run(every + batches(messages(entries(again_s, more), session="s2")) + every[:3])
    assert len(both) == 2 * len(found)
    assert stream.counts["late"] == sum(batch.samples for batch in every[:3])


def test_the_rates_of_the_sensors_may_differ_and_gravity_is_interpolated() -> None:
    slow_s, slow = walk(8.0, rate_hz=50.0)
    fast_s, fast = walk(8.0, rate_hz=200.0, seed=1)
    rows = entries(fast_s, {"accelerometer": fast["accelerometer"], "gyroscope": fast["gyroscope"]})
    rows += entries(slow_s, {"gravity": slow["gravity"]})
    rows.sort(key=lambda row: row["time"])
    found, stream = run(batches(messages(rows, per_message=100)))
    # gravity as the formula has it at the accelerometer's own times
    assert_close = expected_windows(fast_s, fast)
    assert len(found) >= len(assert_close) - 1
    np.testing.assert_allclose(found[1].x, assert_close[1].x, atol=0.05)
    assert stream.counts["without gravity"] <= 20


def test_a_phone_without_gravity_gives_nothing_and_total_acceleration_needs_none() -> None:
    times_s, sensors = walk(6.0)
    bare = {name: sensors[name] for name in ("accelerometer", "gyroscope")}
    found, stream = run(batches(messages(entries(times_s, bare))))
    assert (found, stream.counts["without gravity"]) == ([], len(times_s))
    total = {
        "totalacceleration": sensors["accelerometer"] + sensors["gravity"],
        "accelerometer": sensors["accelerometer"],
        "gyroscope": sensors["gyroscope"],
    }
    found, _ = run(batches(messages(entries(times_s, total))))
    assert_same(found, expected_windows(times_s, sensors))


def test_annotations_become_labels() -> None:
    times_s, sensors = walk(20.0)
    rows = entries(times_s, sensors)
    marks = ((5.0, "going up"), (10.0, " SITTING "), (12.0, "a dog!"), (15.0, "stop"))
    for after_s, text in marks:
        rows.append(annotation(BEGAN_S + after_s, text))
    rows.sort(key=lambda row: row["time"])
    found, stream = run(batches(messages(rows)), annotations={"going up": "Upstairs", "x": "Flying"})
    names = np.select([times_s < BEGAN_S + at for at in (5.0, 10.0, 15.0)], ["", "Upstairs", "Sitting"], "")
    assert_same(found, expected_windows(times_s, sensors, names))
    assert {window.y for window in found} == {-1, LABELS.index("Upstairs"), LABELS.index("Sitting")}
    assert stream.counts["unknown annotations"] == 1


def test_a_clock_that_is_set_back_begins_a_new_stretch() -> None:
    times_s, sensors = walk(6.0)
    back_s, more = walk(6.0, began_s=BEGAN_S - 3600)
    first = messages(entries(times_s, sensors))
    second = messages(entries(back_s, more), first=len(first))
    found, stream = run(batches(first + second))
    assert stream.counts["clock jumps"] == 1
    assert len(found) == 2 * len(expected_windows(times_s, sensors))


def test_a_time_from_nowhere_is_left_out() -> None:
    times_s, sensors = walk(6.0)
    rows = entries(times_s, sensors)
    rows[100]["time"] = 4 * 10**18
    rows[200]["values"] = {"x": "much", "y": 1, "z": None}
    rows[300]["values"] = {"x": 1e9, "y": 1, "z": 1}
    rows[400]["values"] = [1, 2]
    found, stream = run(batches(messages(rows)))
    assert stream.counts["broken"] == 4
    assert len(found) == 3


def test_too_many_samples_are_not_kept() -> None:
    times_s, sensors = walk(1.0)
    crowd = {name: PhoneSamples(np.tile(times_s, 60), np.tile(values, (60, 1))) for name, values in sensors.items()}
    sink = Windows()
    stream = PhoneStream(sink, 2.0, lambda text: None)
    for number in range(20):
        stream.accept(SampleBatch("s1", "phone-1", number, crowd))
        assert stream.waiting <= MAX_WAITING
    assert stream.counts["too many samples"] == 1
    assert sink.found == []


@pytest.mark.parametrize(
    ("factor", "sensor", "words"),
    [
        (1 / 9.80665, "gravity", "looks like g.*Standardise"),
        (0.3, "gravity", "no phone at rest"),
        (57.3, "gyroscope", "rad/s"),
    ],
)
def test_wrong_units_are_named(factor: float, sensor: str, words: str) -> None:
    times_s, sensors = walk(2.0)
    right = batches(messages(entries(times_s, sensors)))[0]
    assert wrong_units(right) == ""
    values = 5 * sensors[sensor] if sensor == "gyroscope" else sensors[sensor]
    wrong = batches(messages(entries(times_s, sensors | {sensor: factor * values})))[0]
    assert re.search(words, wrong_units(wrong))


def test_the_calibration_says_which_way_gravity_points() -> None:
    times_s, sensors = walk(1.0)
    android = messages(entries(times_s, sensors))
    iphone = messages(entries(times_s, sensors, -1.0))
    assert wrong_direction(batches(android)[0]) == ""
    assert wrong_direction(batches(iphone, "ios")[0]) == ""
    assert "points the wrong way" in wrong_direction(batches(iphone)[0])
    upright = sensors | {"gravity": sensors["gravity"][:, [0, 2, 1]]}
    assert "lay the phone flat" in wrong_direction(batches(messages(entries(times_s, upright)))[0])


def test_battery_and_network_say_under_what_conditions_the_phone_is() -> None:
    when = round(BEGAN_S * 1e9)
    values = [
        ("battery", {"batteryLevel": 0.75, "batteryState": "charging", "lowPowerMode": False}),
        ("battery", {"batteryLevel": 7, "batteryState": "unknown"}),
        ("network", {"type": "wifi", "isConnectionExpensive": True}),
        ("network", {"type": "cellular"}),
        ("batterytemp", {"temperature": 31.5}),
    ]
    payload = [{"name": name, "time": when, "values": each} for name, each in values]
    (batch,) = batches(messages(payload))
    assert batch.conditions == (
        PhoneConditions(BEGAN_S, charging=True, battery=0.75, low_power_mode=False),
        PhoneConditions(BEGAN_S),
        PhoneConditions(BEGAN_S, unmetered=False),
        PhoneConditions(BEGAN_S, unmetered=False),
        PhoneConditions(BEGAN_S, temperature_c=31.5),
    )
