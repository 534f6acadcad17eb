"""Recordings that the tests make, and ways to cut them into chunks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from har_pipeline import PipelineSettings, Recording, StreamPipeline, Window

LABELS = ("walk", "sit")


def record(times_s, values, sensor="acc", *, activity="walk", session="0", **rest) -> Recording:
    return Recording("c", session, activity, sensor, np.asarray(times_s, float), np.asarray(values, float), **rest)


def both(times_s, values, *, activity="walk", session="0") -> list[Recording]:
    return [record(times_s, values, sensor, activity=activity, session=session) for sensor in ("acc", "gyro")]


def run(recordings, settings: PipelineSettings | None = None, labels=LABELS) -> list[Window]:
    stream = StreamPipeline(settings or PipelineSettings(), labels)
    return [window for each in recordings for window in stream.push(each)] + stream.flush()


def cut(recording: Recording, edges) -> list[Recording]:
    edges = [0, *edges, len(recording.times_s)]
    pieces = []
    for low, high in pairwise(edges):
        activity = recording.activity if isinstance(recording.activity, str) else recording.activity[low:high]
        number = None if recording.number is None else recording.number[low:high]
        part = recording._replace(activity=activity, times_s=recording.times_s[low:high], number=number)
        pieces.append(part._replace(values=recording.values[low:high]))
    return pieces


def assert_same(one: list[Window], other: list[Window], tolerance: float = 1e-5) -> None:
    assert [(w.y, w.session) for w in one] == [(w.y, w.session) for w in other]
    for left, right in zip(one, other, strict=True):
        assert abs(left.start_s - right.start_s) < 1e-9
        np.testing.assert_allclose(left.x, right.x, rtol=1e-6, atol=tolerance)
