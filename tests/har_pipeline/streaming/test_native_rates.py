"""Sensors of any rate: what comes out is the analytic tone, without images, however the stream is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.signal import resample_poly

from har_pipeline import PipelineSettings, StreamPipeline, Window
from har_pipeline.streaming.interpolate import interpolate_at
from har_pipeline.streaming.sensor_buffer import native_rate
from tests.har_pipeline.streaming.test_stream import wander
from tests.har_pipeline.streams import LABELS, both, cut, run

SLOW_HZ = (12.5, 20.0, 25.0, 31.25, 40.0)
FAST_HZ = (50.0, 100.0, 200.0, 400.0)
START_S = 1.6e9


def jittered(rate_hz: float, seconds: float = 24.0, share: float = 0.2) -> np.ndarray:
    random = np.random.default_rng(3)
    times = np.arange(0, seconds, 1 / rate_hz)
    return START_S + times + random.uniform(-share, share, len(times)) / rate_hz


def tone(tone_hz: float, times: np.ndarray, **options) -> tuple[np.ndarray, np.ndarray]:
    """The windows' grid (n,) in seconds and what became of a unit tone (n,) complex, without the recording's ends."""
    phase = 2 * np.pi * tone_hz * (times - START_S)
    settings = PipelineSettings(stride=128, **options)
    windows = run(both(times, np.stack([np.cos(phase), np.sin(phase), 0 * phase], axis=1)), settings)
    inner = windows[1:-1]
    assert len({window.session for window in windows}) == 1
    at = np.concatenate([window.start_s - START_S + np.arange(128) / 50 for window in inner])
    return at, np.concatenate([window.x[:, 0] + 1j * window.x[:, 1] for window in inner]).astype(complex)


def amplitudes(at: np.ndarray, out: np.ndarray, tones_hz: list[float]) -> np.ndarray:
    """Complex amplitudes of tones by least squares."""
    basis = np.exp(2j * np.pi * np.outer(at, tones_hz))
    return np.linalg.lstsq(basis, out, rcond=None)[0]


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2, 0.3, 0.4])
@pytest.mark.parametrize("jitter", [0.0, 0.2])
@pytest.mark.parametrize("rate_hz", SLOW_HZ)
def test_tones_to_two_fifths_of_a_slow_rate_come_out_right_and_their_images_40_db_down(rate_hz, jitter, share):
    hz = share * rate_hz
    at, out = tone(hz, jittered(rate_hz, share=jitter))
    # An image that falls onto the tone itself on the grid of 50 Hz cannot be told from it.
    others = [hz + k * rate_hz for k in (-2, -1, 1, 2) if (k * rate_hz) % 50]
    images = list({round((other + 25) % 50 - 25, 6) for other in others} - {round(hz, 6)})
    found = amplitudes(at, out, [hz, *images])
    assert abs(found[0] - 1) < 0.015  # amplitude and phase
    assert np.abs(found[1:]).max(initial=0) < 0.01  # 40 dB
    assert np.sqrt(np.mean(np.abs(out - np.exp(2j * np.pi * hz * at)) ** 2)) < 0.015


@pytest.mark.parametrize("hz", [1, 5, 10, 15])
@pytest.mark.parametrize("rate_hz", FAST_HZ)
def test_tones_to_15_hz_of_fast_sensors_come_out_right(rate_hz, hz):
    at, out = tone(hz, jittered(rate_hz, share=0.0))
    assert abs(amplitudes(at, out, [hz])[0] - 1) < 0.03
    assert np.abs(out - np.exp(2j * np.pi * hz * at)).max() < 0.05


@pytest.mark.parametrize("hz", [30, 35, 40])
@pytest.mark.parametrize("rate_hz", [100.0, 200.0, 400.0])
def test_what_the_grid_cannot_hold_is_40_db_down(rate_hz, hz):
    _, out = tone(hz, jittered(rate_hz, share=0.0))
    assert np.abs(out).max() < 0.01


@pytest.mark.parametrize(("hz", "always", "where_the_rate_falls"), [(15, 1.0, 1.0), (18, 0.92, 1.0), (22, 0.5, 0.95)])
@pytest.mark.parametrize("jitter", [0.0, 0.2])
def test_a_sensor_of_the_grids_rate_keeps_its_tones_unless_it_is_always_low_passed(
    jitter, hz, always, where_the_rate_falls
):
    """As the unit tone has it: 8 % less at 18 Hz and half at 22 Hz by the filter, 1 % and 7 % at most without."""
    kept = {}
    for anti_alias in ("always", "downsampling"):
        at, out = tone(hz, jittered(50.0, share=jitter), anti_alias=anti_alias)
        kept[anti_alias] = abs(amplitudes(at, out, [hz])[0])
    assert kept["always"] == pytest.approx(always, abs=0.02)
    assert kept["downsampling"] == pytest.approx(where_the_rate_falls, abs=0.035)


@pytest.mark.parametrize("hz", [35, 45])
@pytest.mark.parametrize("rate_hz", [56.0, 100.0, 210.0])
def test_a_faster_sensor_is_anti_aliased_either_way(rate_hz, hz):
    if hz > rate_hz / 2:
        return
    always, falling = (tone(hz, jittered(rate_hz), anti_alias=each)[1] for each in ("always", "downsampling"))
    assert np.array_equal(always, falling)


def test_the_polyphase_filter_of_scipy_agrees_on_25_hz():
    random = np.random.default_rng(0)
    times = np.arange(1500) / 25
    hz, phase = random.uniform(0.2, 9.5, 30), random.uniform(0, 2 * np.pi, 30)
    signal = np.cos(2 * np.pi * np.outer(times, hz) + phase).sum(axis=1)
    ours = interpolate_at(times, signal[:, None], np.arange(3000) / 50, 25.0, 22.0)[:, 0]
    theirs = resample_poly(signal, 2, 1, window=("kaiser", 8.0))
    inner = slice(200, -200)
    assert np.sqrt(np.mean((ours - theirs)[inner] ** 2)) < 0.02 * signal.std()


def test_gravity_stays_as_it_is_to_the_ends_of_a_slow_recording():
    times = jittered(12.5)
    windows = run(both(times, np.tile([0.0, -9.80665, 3.0], (len(times), 1))))
    assert len(windows) > 10
    for window in windows:
        np.testing.assert_allclose(window.x, np.tile([0, -9.80665, 3], (128, 2)), atol=1e-5)


def motion_error(times: np.ndarray) -> tuple[float, list[Window]]:
    phase = 2 * np.pi * 1.5 * (times - START_S)
    windows = run(both(times, np.stack([np.cos(phase), np.sin(phase), 0 * phase], axis=1)))
    worst = 0.0
    for window in windows:
        truth = np.cos(2 * np.pi * 1.5 * (window.start_s - START_S + np.arange(128) / 50))
        worst = max(worst, float(np.abs(window.x[:, 0] - truth).max()))
    return worst, windows


def test_bursts_of_a_slow_sensor_weigh_no_more_than_others():
    times = np.sort(np.concatenate([jittered(25, share=0.0), START_S + 8 + np.arange(1, 40) * 1e-4]))
    worst, windows = motion_error(times)
    assert len({window.session for window in windows}) == 1
    assert worst < 0.02


@pytest.mark.parametrize(("missing", "segments"), [(3, 1), (5, 2)])
@pytest.mark.parametrize("rate_hz", [12.5, 25.0, 40.0])
def test_a_slow_sensors_gap_of_five_steps_is_bridged_and_a_longer_one_splits(rate_hz, missing, segments):
    times = jittered(rate_hz, share=0.0)
    middle = len(times) // 2
    worst, windows = motion_error(np.delete(times, np.arange(middle, middle + missing)))
    assert len({window.session for window in windows}) == segments
    assert worst < (0.1 if rate_hz == 12.5 else 0.02)


def exactly_the_same(one: list[Window], other: list[Window]) -> bool:
    same = [
        left.x.tobytes() == right.x.tobytes() and left[1:] == right[1:] for left, right in zip(one, other, strict=True)
    ]
    return all(same)


@pytest.mark.ci
@hypothesis_settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rates=st.tuples(st.sampled_from([5.0, 12.5, 20.0, 31.25, 44.0]), st.sampled_from([12.5, 25.0, 40.0])),
    gaps=st.integers(0, 4),
    bursts=st.booleans(),
    largest=st.sampled_from([1, 3, 40, 400]),
    interleaved=st.booleans(),
)
def test_any_chunking_of_slow_sensors_gives_the_windows_of_the_batch_to_the_last_bit(
    seed, rates, gaps, bursts, largest, interleaved
):
    random = np.random.default_rng(seed)
    pieces, whole = [], []
    for index, rate_hz in enumerate(rates):
        times, values = wander(seed + index, 20.0, rate_hz, jitter=0.2, gaps=gaps, bursts=bursts)
        recording = both(START_S + times, values)[index]
        whole.append(recording)
        edges = np.cumsum(random.integers(1, largest + 1, len(times)))
        pieces += cut(recording, edges[edges < len(times)].tolist())
    if interleaved:
        pieces.sort(key=lambda piece: piece.times_s[0])
    settings = PipelineSettings(stride=16)
    assert exactly_the_same(run(whole, settings), run(pieces, settings))


def test_the_native_rate_leaves_gaps_out_and_is_not_fooled_by_bursts():
    regular = np.arange(50) / 25
    assert native_rate(regular) == pytest.approx(25)
    assert native_rate(np.concatenate([regular[:25], regular[25:] + 0.8])) == pytest.approx(25)
    assert native_rate(np.concatenate([regular, regular + 3600])) == pytest.approx(25)
    bursts = (np.arange(40)[:, None] * 0.05 + np.arange(5) * 1e-4).ravel()
    assert native_rate(bursts) == pytest.approx(100, rel=0.03)
    assert native_rate(np.arange(5) / 25) == np.inf  # too few to tell: the settings' own filter
    assert native_rate(np.arange(20) / 2) == 5.0


def test_a_sensor_that_slows_down_without_a_gap_gets_the_filter_of_its_new_rate_within_ten_seconds():
    times = START_S + np.concatenate([np.arange(0, 20, 0.01), np.arange(20, 60, 0.08)])
    phase = 2 * np.pi * 4 * (times - START_S)
    windows = run(both(times, np.stack([np.cos(phase), np.sin(phase), 0 * phase], axis=1)))
    assert {window.session for window in windows} == {0, 1}
    late = [window for window in windows if window.session == 1][1:-1]
    assert 30 < late[0].start_s - START_S < 35
    for window in late:
        truth = np.cos(2 * np.pi * 4 * (window.start_s - START_S + np.arange(128) / 50))
        assert np.abs(window.x[:, 0] - truth).max() < 0.05


def test_a_live_slow_sensor_gives_its_windows_after_its_reach_and_keeps_few_samples():
    times = np.arange(0, 60, 0.08)
    stream = StreamPipeline(PipelineSettings(), LABELS)
    acc, gyro = both(times, np.ones((len(times), 3)))
    arrived = []
    for low, high in zip(cut(acc, range(1, len(times))), cut(gyro, range(1, len(times))), strict=True):
        arrived += [(float(low.times_s[0]), window) for window in stream.push(low) + stream.push(high)]
        assert stream.buffered[0] < 60
    assert arrived[0][0] < 127 / 50 + 10.25 * 0.08 + 0.1 + 0.2


def stamped_late(rate_hz: float, late: float, seconds: float = 60.0) -> tuple[np.ndarray, np.ndarray]:
    """Stamps of which one in 97 is so many steps late, and 25 m/s² of movement (n, 3) at the true times."""
    true_s = np.arange(0, seconds, 1 / rate_hz)
    stamps, shifted = true_s.copy(), np.arange(40, len(true_s) - 40, 97)
    stamps[shifted] += late / rate_hz
    return stamps, motion(true_s)


def motion(times_s: np.ndarray) -> np.ndarray:
    phase = 2 * np.pi * 2.1 * times_s
    return np.stack([9.81 + 15 * np.sin(phase), 10 * np.cos(phase), 3 * np.sin(2 * phase)], axis=1)


@pytest.mark.parametrize("late", [0.5, 0.7, 0.9, 0.98, -0.9])
@pytest.mark.parametrize("rate_hz", [20.0, 25.0, 40.0])
def test_a_sample_that_is_stamped_late_does_not_swing_the_signal(rate_hz, late):
    stamps, values = stamped_late(rate_hz, late)
    windows = run(both(START_S + stamps, values))
    x = np.concatenate([window.x for window in windows])
    truth = np.concatenate([motion(window.start_s - START_S + np.arange(128) / 50) for window in windows])
    assert np.abs(x[:, :3]).max() < 1.03 * np.abs(values).max()
    half_a_step = 15 * 2 * np.pi * 2.1 * 0.5 / rate_hz
    assert np.abs(x[:, :3] - truth).max() < half_a_step  # as they stand, up to 40


@pytest.mark.parametrize("rate_hz", [15.0, 20.0, 40.0])
def test_no_stamps_make_the_signal_leave_the_range_of_its_neighbors_by_more_than_its_overshoot(rate_hz):
    random = np.random.default_rng(0)
    true_s = np.arange(0, 60, 1 / rate_hz)
    stamps = np.sort(true_s + (random.random(len(true_s)) < 0.3) * random.uniform(0, 0.97, len(true_s)) / rate_hz)
    values = np.sin(2 * np.pi * 0.4 * rate_hz * true_s)[:, None] * np.ones(3)
    x = np.concatenate([window.x for window in run(both(START_S + stamps, values))])
    assert np.abs(x).max() < 1 + 2 * 0.15 + 1e-3


@hypothesis_settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), rate_hz=st.sampled_from([12.5, 20.0, 40.0]), largest=st.sampled_from([1, 7, 90]))
def test_any_chunking_of_late_stamps_gives_the_windows_of_the_batch_to_the_last_bit(seed, rate_hz, largest):
    random = np.random.default_rng(seed)
    true_s = np.arange(0, 15, 1 / rate_hz)
    stamps = np.sort(true_s + (random.random(len(true_s)) < 0.4) * random.uniform(0, 0.99, len(true_s)) / rate_hz)
    whole = both(START_S + stamps, motion(true_s))
    edges = np.cumsum(random.integers(1, largest + 1, len(stamps)))
    pieces = [part for each in whole for part in cut(each, edges[edges < len(stamps)].tolist())]
    pieces.sort(key=lambda piece: piece.times_s[0])
    assert exactly_the_same(run(whole), run(pieces))
