"""The stream equals the batch for any chunking, and deals with what real recordings bring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from har_pipeline import PipelineSettings, SettingsError, SignalError, StreamPipeline, prepare, recordings
from har_pipeline.recording import Categorical
from tests.har_pipeline.streams import LABELS, assert_same, both, cut, record, run


def wander(seed: int, seconds: float, rate_hz: float, *, jitter: float = 0.1, gaps: int = 0, bursts: bool = False):
    """Jittered recording of a random smooth signal plus noise: times (n,), values (n, 3)."""
    random = np.random.default_rng(seed)
    times = np.arange(0.3, seconds, 1 / rate_hz)
    times = np.sort(times + random.uniform(-jitter, jitter, len(times)) / rate_hz)
    if bursts:
        times = np.where(random.random(len(times)) < 0.3, np.round(times, 2), times)
        times = np.sort(times)
    for start in random.uniform(0, seconds, gaps):
        times = times[(times < start) | (times > start + random.uniform(0.05, 0.6))]
    shape = np.sin(2 * np.pi * times[:, None] * random.uniform(0.5, 8, 3)) * 5
    return times, shape + random.normal(0, 0.5, (len(times), 3))


@hypothesis_settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rates=st.tuples(st.sampled_from([48.0, 50.0, 103.0, 210.0]), st.sampled_from([50.0, 99.0, 200.0])),
    gaps=st.integers(0, 4),
    bursts=st.booleans(),
    largest=st.sampled_from([3, 40, 400]),
    step=st.sampled_from([16, 64, 200]),
)
def test_any_chunking_gives_the_windows_of_the_batch(seed, rates, gaps, bursts, largest, step):
    random = np.random.default_rng(seed)
    settings = PipelineSettings(stride=step)
    pieces, whole = [], []
    for index, (sensor, rate_hz) in enumerate(zip(("acc", "gyro"), rates, strict=True)):
        times, values = wander(seed + index, 14.0, rate_hz, gaps=gaps, bursts=bursts)
        activity = np.where(times < 7, "walk", "sit")
        recording = record(1.6e9 + times, values, sensor, activity=activity)
        whole.append(recording)
        edges = np.cumsum(random.integers(1, largest + 1, len(times)))
        pieces += cut(recording, edges[edges < len(times)].tolist())
    if random.random() < 0.7:
        pieces.sort(key=lambda piece: piece.times_s[0])
    assert_same(run(whole, settings), run(pieces, settings))


def test_whole_recordings_replayed_give_bit_identical_windows_to_prepare():
    options = {"subjects": 1, "phones": 2, "minutes": 1.0}
    dataset = prepare("synthetic", None, options=options)
    for client, expected in dataset.clients.items():
        windows = run(recordings("synthetic", None, clients=[client], options=options), labels=dataset.labels)
        assert len(windows) == len(expected) > 0
        for index, window in enumerate(windows):
            assert window.x.tobytes() == expected.x[index].tobytes()
            assert (window.y, window.start_s, window.session) == (
                expected.y[index],
                expected.start_s[index],
                expected.session[index],
            )


def test_windows_on_a_regular_50_hz_grid_start_at_the_first_sample_and_advance_by_the_step():
    times = 5 + np.arange(128 + 2 * 64) / 50
    windows = run(both(times, np.ones((len(times), 3))))
    assert [w.start_s for w in windows] == pytest.approx([5, 5 + 1.28, 5 + 2.56])
    assert {w.session for w in windows} == {0}
    np.testing.assert_allclose(windows[0].x, 1, atol=1e-6)
    assert windows[0].x.dtype == np.float32
    assert windows[0].x.shape == (128, 6)


def test_a_window_comes_out_as_soon_as_its_kernel_and_the_reorder_time_have_passed():
    times = np.arange(400) / 50
    stream = StreamPipeline(PipelineSettings(), LABELS)
    acc, gyro = both(times, np.zeros((400, 3)))
    arrived = []
    for low, high in zip(cut(acc, range(1, 400)), cut(gyro, range(1, 400)), strict=True):
        arrived += [(float(low.times_s[0]), w) for w in stream.push(low) + stream.push(high)]
    end_s = 127 / 50
    assert end_s + 0.23 < arrived[0][0] <= end_s + 0.23 + 0.05


def test_the_grid_is_that_of_the_overlap_of_both_sensors():
    acc = record(np.arange(0, 10, 0.02), np.full((500, 3), 1.0), "acc")
    gyro = record(np.arange(1.234, 8, 0.01), np.full((677, 3), 2.0), "gyro")
    windows = run([acc, gyro])
    assert windows[0].start_s == pytest.approx(1.234)
    assert windows[-1].start_s + 127 / 50 <= 8
    np.testing.assert_allclose(windows[0].x, np.tile([1, 1, 1, 2, 2, 2], (128, 1)), atol=1e-5)


@pytest.mark.parametrize("sensor", ["acc", "gyro"])
@pytest.mark.parametrize(("gap_s", "segments"), [(0.099, 1), (0.101, 2)])
def test_a_gap_over_100_ms_in_either_sensor_splits(sensor, gap_s, segments):
    times = np.concatenate([np.arange(300) / 50, 299 / 50 + gap_s + np.arange(300) / 50])
    values = np.ones((600, 3))
    full = np.arange(0, times[-1], 0.01)
    other = "gyro" if sensor == "acc" else "acc"
    windows = run([record(times, values, sensor), record(full, np.ones((len(full), 3)), other)])
    assert len({w.session for w in windows}) == segments
    if segments == 2:
        inside = [w for w in windows if w.start_s <= 299 / 50 < w.start_s + 127 / 50]
        assert not inside
        later = min(w.start_s for w in windows if w.session == 1)
        assert later == pytest.approx(299 / 50 + gap_s)


def test_a_bridged_gap_is_interpolated_without_overshoot():
    times = np.concatenate([np.arange(200) / 50, 199 / 50 + 0.095 + np.arange(200) / 50])
    windows = run(both(times, np.sin(2 * np.pi * times)[:, None] * np.ones(3)))
    for window in windows:
        truth = np.sin(2 * np.pi * (window.start_s + np.arange(128) / 50))
        assert np.abs(window.x[:, 0] - truth).max() < 0.05


def test_a_burst_weighs_no_more_than_the_time_it_covers():
    times = np.arange(400) / 50
    burst = np.sort(np.concatenate([times, 4.0 + np.arange(1, 20) * 1e-4]))
    wave = np.sin(2 * np.pi * 1.5 * burst)[:, None] * np.ones(3)
    with_burst = run(both(burst, wave))
    without = run(both(times, np.sin(2 * np.pi * 1.5 * times)[:, None] * np.ones(3)))
    for one, other in zip(with_burst, without, strict=True):
        assert np.abs(one.x - other.x).max() < 0.01


def test_duplicates_change_nothing_and_bursts_on_one_time_are_averaged():
    times, values = wander(3, 8, 100)
    plain = run(both(times, values))
    assert_same(plain, run(both(np.repeat(times, 2), np.repeat(values, 2, axis=0))))
    spread = np.repeat(values, 2, axis=0) + np.tile([[0.5], [-0.5]], (len(times), 1))
    assert_same(plain, run(both(np.repeat(times, 2), spread)))


def bursts(times: np.ndarray, *, seed: int = 0, most: int = 15) -> np.ndarray:
    """Stamps of samples that are delivered some at a time, under the time of the last."""
    random = np.random.default_rng(seed)
    ends = np.cumsum(random.integers(3, most, len(times)))
    return times[np.minimum(ends[np.searchsorted(ends, np.arange(len(times)), side="right")] - 1, len(times) - 1)]


@pytest.mark.parametrize("rate_hz", [50.0, 100.0])
def test_samples_that_come_in_bursts_get_their_times_back(rate_hz):
    """Of bursts of up to 0.28 s at 50 Hz, nearly no stretch was without a gap."""
    times, values = wander(3, 30, rate_hz, jitter=0.0)
    stamps = bursts(times)
    found = run(both(stamps, values))
    # the first bursts become one sample each, since it takes some to tell
    since = times >= found[0].start_s
    true = run([each._replace(times_s=times[since], values=values[since]) for each in both(times, values)])
    assert len(found) == len(true) >= 20
    for one, other in zip(found[1:], true[1:], strict=True):
        np.testing.assert_allclose(one.x, other.x, atol=1e-3)


def test_any_chunking_of_bursts_gives_the_windows_of_the_batch():
    for seed in range(5):
        random = np.random.default_rng(seed)
        times, values = wander(seed, 20, 50)
        whole = both(bursts(times, seed=seed), values)
        edges = np.cumsum(random.integers(1, 30, len(times)))
        pieces = [part for each in whole for part in cut(each, edges[edges < len(times)].tolist())]
        assert_same(run(whole), run(pieces))


def test_a_lost_burst_does_not_stretch_the_one_after_it_and_a_sensor_at_rest_keeps_its_bursts():
    times, values = wander(3, 30, 50, jitter=0.0)
    values[times > 15] = values[-1]
    stamps = bursts(times)
    lost = np.unique(stamps)[30]
    kept = stamps != lost
    windows = run([each._replace(times_s=stamps[kept], values=values[kept]) for each in both(times, values)])
    true = run(both(times, values))
    assert len(windows) >= len(true) - 4
    assert len({w.session for w in windows}) == 2


def test_rows_that_are_written_three_times_are_no_burst():
    times, values = wander(3, 8, 25)
    assert_same(run(both(times, values)), run(both(np.repeat(times, 3), np.repeat(values, 3, axis=0))))


def test_unsorted_recordings_are_sorted_whole_and_within_the_reorder_window_of_a_stream():
    random = np.random.default_rng(0)
    times, values = wander(4, 8, 100)
    order = random.permutation(len(times))
    plain = run(both(times, values))
    assert_same(plain, run(both(times[order], values[order])))
    order = np.argsort(times + random.uniform(0, 0.08, len(times)))
    shuffled = [piece for each in both(times[order], values[order]) for piece in cut(each, range(5, len(times), 5))]
    assert_same(plain, run(shuffled))


def test_samples_beyond_the_reorder_window_are_refused_with_file_and_line_or_dropped():
    times, values = wander(5, 8, 100)
    late = record([times[100]], [values[100]], source="walk.csv", line=77)
    stream = StreamPipeline(PipelineSettings(), LABELS)
    stream.push(record(times, values))
    with pytest.raises(SignalError, match=r"walk\.csv, line 77: the sample at .* sort the recording"):
        stream.push(late)
    stream = StreamPipeline(PipelineSettings(late="drop"), LABELS)
    stream.push(record(times, values))
    stream.push(late)
    assert stream.dropped == 1


def test_nan_rows_count_as_lost_samples_and_a_long_stretch_of_them_splits():
    times = np.arange(600) / 50
    values = np.ones((600, 3))
    values[100, 1] = np.nan
    assert len({w.session for w in run(both(times, values))}) == 1
    values[300:306] = np.nan
    windows = run(both(times, values))
    assert len({w.session for w in windows}) == 2
    assert all(np.isfinite(w.x).all() for w in windows)


def test_infinite_values_standing_clocks_and_wrong_shapes_are_refused_with_file_and_line():
    times, values = np.arange(100) / 50, np.ones((100, 3))
    values[7, 2] = np.inf
    with pytest.raises(SignalError, match=r"a\.csv, line 9: infinite"):
        run([record(times, values, source="a.csv", line=2)])
    values[7, 2] = -1e30
    with pytest.raises(SignalError, match=r"a\.csv, line 9: .* beyond 1,000,000 m/s²"):
        run([record(times, values, source="a.csv", line=2)])
    with pytest.raises(SignalError, match=r"a\.csv, line 2: more than 64 samples carry the same time"):
        run([record(np.full(100, 1.4e9), np.ones((100, 3)), source="a.csv", line=2)])
    with pytest.raises(SignalError, match=r"expected times \(n,\) and values \(n, 3\)"):
        run([record(times, np.ones((100, 2)))])


def test_a_clock_that_stands_still_is_also_refused_in_small_chunks():
    stream = StreamPipeline(PipelineSettings(), LABELS)
    for _ in range(64):
        stream.push(record([5.0], [[1, 2, 3]]))
    with pytest.raises(SignalError, match="carry the same time"):
        stream.push(record([5.0], [[1, 2, 3]]))


def test_sessions_do_not_join_even_without_a_gap_between_them():
    times = np.arange(300) / 50
    first = both(times, np.zeros((300, 3)), session="a")
    second = both(6 + times, np.ones((300, 3)), session="b")
    windows = run(first + second)
    assert sorted({w.session for w in windows}) == [0, 1]
    assert all(len(np.unique(np.round(w.x, 3))) == 1 for w in windows)


def test_labels_follow_the_majority_and_weak_majorities_are_dropped():
    times = np.arange(128) / 50
    for sits, share, expected in [(63, 0.5, ["walk"]), (65, 0.5, ["sit"]), (65, 0.6, []), (40, 0.6, ["walk"])]:
        activity = np.array(["walk"] * (128 - sits) + ["sit"] * sits)
        windows = run(both(times, np.zeros((128, 3)), activity=activity), PipelineSettings(label_share=share))
        assert [LABELS[w.y] for w in windows] == expected


def test_unlabelled_windows_are_dropped_unless_they_are_asked_for():
    times = np.arange(128) / 50
    silent = both(times, np.zeros((128, 3)), activity="null")
    assert run(silent) == []
    assert [w.y for w in run(silent, PipelineSettings(keep_unlabelled=True))] == [-1]


def test_coded_words_are_the_words_themselves():
    times = np.arange(256) / 50
    activity = np.array(["walk"] * 100 + ["null"] * 28 + ["sit"] * 128)
    words = Categorical.of(activity)
    assert np.asarray(words).tolist() == activity.tolist()
    assert np.asarray(words[90:130]).tolist() == activity[90:130].tolist()
    plain, coded = (run(both(times, np.zeros((256, 3)), activity=each)) for each in (activity, words))
    assert_same(plain, coded)
    assert [w.y for w in coded] == [0, 1, 1]
    unknown = record(
        times, np.zeros((256, 3)), activity=Categorical(np.array(["sit", "wlak"]), 1 * (times > 3)), line=2
    )
    with pytest.raises(SettingsError, match="line 153: activity 'wlak' isn't a label; did you mean 'walk'"):
        run([unknown])
    with pytest.raises(SignalError, match="256 samples but 255 activities"):
        run([record(times, np.zeros((256, 3)), activity=words[:255])])


def test_an_unknown_activity_or_sensor_names_the_nearest_known_one():
    with pytest.raises(SettingsError, match="'wlak' isn't a label; did you mean 'walk'"):
        run([record([0.0], [[0, 0, 0]], activity="wlak")])
    with pytest.raises(SettingsError, match="expected 'acc' or 'gyro'"):
        run([record([0.0], [[0, 0, 0]], "magnetometer")])


def test_a_sensor_that_falls_silent_does_not_fill_the_memory():
    stream = StreamPipeline(PipelineSettings(max_lag_s=5), LABELS)
    times = np.arange(600) / 50
    with pytest.raises(SignalError, match="s behind acc"):
        stream.push(record(times, np.zeros((600, 3))))


@pytest.mark.parametrize("pause_s", [60.0, 5 * 3600.0, 1e6])
@pytest.mark.parametrize("largest", [7, 400, 10_000])
def test_a_pause_of_both_sensors_however_long_parts_two_segments_and_loses_no_window(pause_s, largest):
    times = np.concatenate([np.arange(300) / 50, 6 + pause_s + np.arange(300) / 50])
    random = np.random.default_rng(0)
    edges = np.cumsum(random.integers(1, largest + 1, 600))
    pieces = [part for each in both(times, np.ones((600, 3))) for part in cut(each, edges[edges < 600].tolist())]
    pieces.sort(key=lambda piece: piece.times_s[0])
    for settings in (PipelineSettings(), PipelineSettings(max_lag_s=30, late="drop")):
        windows = run(pieces, settings)
        assert [w.session for w in windows] == [0, 0, 0, 1, 1, 1]
        assert [w.start_s for w in windows[::3]] == pytest.approx([0, 6 + pause_s])


def test_pauses_of_one_sensor_do_not_hide_that_the_other_is_silent():
    stream = StreamPipeline(PipelineSettings(max_lag_s=30), LABELS)
    pieces = [record(start + np.arange(100) / 50, np.zeros((100, 3))) for start in range(0, 3000, 60)]
    with pytest.raises(SignalError, match="s behind acc"):
        [stream.push(piece) for piece in pieces]
    assert stream.buffered[0] < 2000


def test_buffers_of_a_running_stream_stay_short():
    stream = StreamPipeline(PipelineSettings(), LABELS)
    for start in range(0, 60):
        times = start + np.arange(100) / 100
        for each in both(times, np.zeros((100, 3))):
            stream.push(each)
    samples, rows = stream.buffered
    assert samples < 120
    assert rows < 128 + 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stride": 0}, "stride is 0"),
        ({"label_share": 1.5}, "label_share"),
        ({"max_gap_s": 0.2}, "half_width_s .* must exceed max_gap_s"),
        ({"reorder_s": -1.0}, "reorder_s"),
        ({"late": "ignore"}, "expected 'refuse' or 'drop'"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(SettingsError, match=message):
        PipelineSettings(**changes)


def test_settings_travel_as_json_and_an_unknown_key_names_the_nearest():
    settings = PipelineSettings(stride=16, label_share=0.7)
    assert PipelineSettings.from_json(settings.to_json()) == settings
    with pytest.raises(SettingsError, match="did you mean 'window'"):
        PipelineSettings.from_json({"windows": 3})


def told(recordings) -> list[str]:
    words: list[str] = []
    stream = StreamPipeline(PipelineSettings(), LABELS, report=words.append)
    for each in recordings:
        stream.push(each)
    stream.flush()
    return words


def lying(scale: float = 9.80665) -> np.ndarray:
    return np.random.default_rng(0).normal([0, 0, scale], 0.005 * scale, (1500, 3))


def test_what_is_odd_about_samples_is_told_once_and_nothing_of_sound_ones():
    times = np.arange(1500) / 50
    gyro = record(times, np.random.default_rng(1).normal(0, 0.01, (1500, 3)), "gyro")
    assert told([record(times, lying()), gyro]) == []
    in_g = told([*cut(record(times, lying(1.0)), range(100, 1500, 100)), gyro])
    assert len(in_g) == 1
    assert "set the unit of the acceleration to g" in in_g[0]
    (alone,) = told([record(times, lying())])
    assert "the gyroscope has no samples" in alone
    lost = told([record(times, np.full((1500, 3), np.nan)), gyro])
    assert any("lack a number" in words for words in lost)
    assert any("the accelerometer has no samples" in words for words in lost)


@pytest.mark.parametrize("dates", ["datetime64[ns]", "object"])
def test_dates_are_refused_with_how_seconds_are_made_of_them(dates):
    times = np.datetime64("2026-11-28T12:00:00", "ns") + (np.arange(100) * 20_000_000).astype("timedelta64[ns]")
    recording = record(np.arange(100), np.ones((100, 3)))._replace(times_s=times.astype(dates))
    with pytest.raises(SignalError, match=r"times are .*; expected numbers, times in seconds: of dates, \(times"):
        StreamPipeline(PipelineSettings(), LABELS).push(recording)
