"""What a regression learns, from a file's cell to a window: held for 2 s, averaged, and the same for every chunking."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from har_pipeline import (
    ClientWindows,
    PipelineError,
    PipelineSettings,
    Recording,
    SettingsError,
    SignalError,
    StreamPipeline,
    prepare,
    split_client,
)
from har_pipeline.description.model import description_of
from har_pipeline.preparation import dataset_number

RATE_HZ = 100.0
KEEP = PipelineSettings(keep_unlabelled=True)


def recorded(numbers: np.ndarray) -> list[Recording]:
    """Both sensors at 100 Hz, as many samples as there are numbers."""
    times, values = np.arange(len(numbers)) / RATE_HZ, np.random.default_rng(0).normal(size=(len(numbers), 3))
    return [
        Recording("a", "0", "", "acc", times, values, number=numbers),
        Recording("a", "0", "", "gyro", times, values),
    ]


def windows_of(recordings: list[Recording], settings: PipelineSettings = KEEP) -> np.ndarray:
    stream = StreamPipeline(settings, ())
    found = [window for each in recordings for window in stream.push(each)] + stream.flush()
    return np.array([window.number for window in found])


def test_a_window_has_the_mean_of_its_samples_numbers() -> None:
    ramp = np.arange(3000) / RATE_HZ
    found = windows_of(recorded(ramp))
    middles = np.arange(len(found)) * 64 / 50 + 63.5 / 50
    np.testing.assert_allclose(found, middles, atol=0.011)


def test_a_number_holds_until_the_next_but_no_longer_than_two_seconds() -> None:
    """As PAMAP2's heart rate comes: once a second, NaN between; and then the strap slips for 6 s."""
    numbers = np.full(3000, np.nan)
    numbers[::100] = 70.0
    assert (windows_of(recorded(numbers)) == 70).all()
    numbers[1000:1600] = np.nan
    found = windows_of(recorded(numbers))
    starts_s = np.arange(len(found)) * 64 / 50
    held = np.isfinite(found)
    assert held.any()
    assert not held.all()
    inside = (starts_s > 11.0) & (starts_s + 2.56 < 16.0)  # known until 11 s, and again from 16 s on
    assert inside.any()
    assert not held[inside].any()
    assert held[(starts_s + 2.56 < 11.0) | (starts_s > 16.0)].all()


@pytest.mark.parametrize("seed", range(4))
def test_chunks_make_no_difference(seed: int) -> None:
    draw = np.random.default_rng(seed)
    numbers = np.where(draw.uniform(size=2500) < 0.02, draw.normal(100, 20, 2500), np.nan)
    whole = recorded(numbers)
    edges = [0, *sorted(draw.integers(1, 2500, 9).tolist()), 2500]
    chunks = [
        each._replace(
            times_s=each.times_s[low:high],
            values=each.values[low:high],
            number=None if each.number is None else each.number[low:high],
        )
        for low, high in pairwise(edges)
        for each in whole
    ]
    np.testing.assert_allclose(windows_of(chunks), windows_of(whole), equal_nan=True)


def test_a_wrong_count_of_numbers_is_refused() -> None:
    acc, _ = recorded(np.zeros(100))
    with pytest.raises(SignalError, match="100 samples but numbers of shape"):
        StreamPipeline(KEEP, ()).push(acc._replace(number=np.zeros(99)))


def test_numbers_are_targets_and_each_session_is_divided_in_time() -> None:
    """What is learnt stands beside the class: dividing by the numbers themselves would test on nearly every window."""
    number = np.where(np.arange(40) % 4 == 3, np.nan, np.arange(40) / 2)
    session = np.repeat([0, 1], 20)
    windows = ClientWindows("a", np.zeros((40, 2, 6)), np.full(40, -1), 3.0 * np.arange(40), session, number)
    assert windows.targets is windows.y
    learnt = windows.learning_numbers()
    np.testing.assert_array_equal(learnt.targets, number[~np.isnan(number)])
    split = split_client(learnt, test_share=0.2, settings=PipelineSettings())
    test = learnt.select(split.test)
    assert (test.session.tolist(), test.targets.tolist()) == ([0] * 3 + [1] * 3, [8.0, 8.5, 9.0, 18.0, 18.5, 19.0])
    with pytest.raises(PipelineError, match="and target differ in length"):
        ClientWindows("a", np.zeros((2, 2, 6)), np.zeros(2), np.zeros(2), np.zeros(2), target=np.zeros(3))


def test_generated_persons_step_as_people_do(tmp_path: Path) -> None:
    """Physics: nobody steps sitting; walking is 80 to 140 steps a minute, running is faster; and the cache keeps it."""
    options = {"subjects": 2, "minutes": 2.0}
    built, kept = (prepare("synthetic", None, KEEP, options=options, cache_dir=tmp_path) for _ in range(2))
    assert built.number == kept.number == "cadence (steps/min)"
    for client, windows in built.clients.items():
        np.testing.assert_array_equal(windows.number, kept.clients[client].number)
        of = {label: windows.number[windows.y == i] for i, label in enumerate(built.labels)}
        assert np.median(of["sitting"]) == np.median(of["standing"]) == 0
        assert 80 < np.median(of["walking"]) < 140 < np.median(of["running"]) < 210
    assert all(np.isfinite(windows.number).all() for windows in built.numbered().clients.values())


def files_with_a_heart_rate(folder: Path) -> dict[str, object]:
    """A minute at 50 Hz; the strap says a number a second, and 0 where it lost contact."""
    rows = []
    for i in range(3000):
        rate = "" if i % 50 else ("0" if i // 50 == 30 else str(60 + i // 100))
        rows.append(f"{i / 50:.2f},0.1,0.2,9.8,0.0,{0.01 * (i % 7)},0.0,{rate}")
    folder.mkdir()
    (folder / "ann.csv").write_text("\n".join(["t,x,y,z,a,b,c,bpm", *rows]))
    return {
        "time": "t",
        "acceleration": "specific force",
        "acc": {"columns": ["x", "y", "z"]},
        "gyro": {"columns": ["a", "b", "c"]},
        "number": {"column": "bpm", "name": "heart rate", "unit": "beats/min", "min": 20, "max": 250},
    }


def test_a_described_column_is_read_and_what_is_impossible_counts_as_unknown(tmp_path: Path) -> None:
    options = files_with_a_heart_rate(tmp_path / "data")
    assert dataset_number("described", options) == "heart rate (beats/min)"
    dataset = prepare("described", tmp_path / "data", KEEP, options=options)
    windows = dataset.clients["ann"]
    np.testing.assert_allclose(windows.number, 60 + (windows.start_s + 1.28 - 0.25) / 2, atol=0.9)
    assert (dataset.labels, set(windows.y)) == ((), {-1})


def test_a_column_of_numbers_is_checked() -> None:
    base = {"time": "t", "acceleration": "specific force", "acc": {"columns": ["x", "y", "z"]}}
    assert description_of({**base, "number": "bpm"}).number.label == "bpm"
    with pytest.raises(SettingsError, match="min must be below max"):
        description_of({**base, "number": {"column": "bpm", "min": 5, "max": 5}})
    with pytest.raises(SettingsError, match="column is missing"):
        description_of({**base, "number": {"unit": "beats/min"}})
