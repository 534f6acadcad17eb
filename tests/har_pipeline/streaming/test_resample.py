"""What the filter passes and stops, measured with tones through the whole stream."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import freqz, kaiserord

from har_pipeline import PipelineSettings
from har_pipeline.streaming import resample
from har_pipeline.streaming.resample import kernel_table, low_pass_at, trapezoid_widths
from tests.har_pipeline.streams import both, run


def response(tone_hz: float, rate_hz: float, *, jitter_s: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Windows' samples of a unit tone (n,) complex, away from the ends, and the true tone at their times."""
    times = 1e9 + np.arange(0, 12, 1 / rate_hz)
    random = np.random.default_rng(1)
    times = times + random.uniform(-jitter_s, jitter_s, len(times))
    phase = 2 * np.pi * tone_hz * (times - 1e9)
    values = np.stack([np.cos(phase), np.sin(phase), 0 * phase], axis=1)
    windows = run(both(times, values), PipelineSettings(stride=128))[1:-1]
    out = np.concatenate([window.x[:, 0] + 1j * window.x[:, 1] for window in windows]).astype(complex)
    at = np.concatenate([window.start_s - 1e9 + np.arange(128) / 50 for window in windows])
    return out, np.exp(2j * np.pi * tone_hz * at)


@pytest.mark.parametrize("rate_hz", [100, 200, 150, 210])
@pytest.mark.parametrize("tone_hz", [30, 40, 60])
def test_tones_above_the_new_band_are_attenuated_by_40_db(tone_hz, rate_hz):
    out, _ = response(tone_hz, rate_hz)
    assert np.abs(out).max() < 0.01


@pytest.mark.parametrize("rate_hz", [50, 100, 200, 150, 210, 48.7])
@pytest.mark.parametrize("tone_hz", [0.5, 1, 2, 5, 10, 15])
def test_tones_to_15_hz_pass_within_5_percent_in_amplitude_and_phase(tone_hz, rate_hz):
    out, truth = response(tone_hz, rate_hz)
    assert np.abs(out - truth).max() < 0.05


@pytest.mark.parametrize("rate_hz", [100, 200])
@pytest.mark.parametrize("tone_hz", [1, 5, 10, 15])
def test_tones_pass_within_5_percent_of_rms_under_jitter_of_a_tenth_of_the_period(tone_hz, rate_hz):
    out, truth = response(tone_hz, rate_hz, jitter_s=0.1 / rate_hz)
    assert np.sqrt(np.mean(np.abs(out - truth) ** 2)) < 0.05
    assert abs(np.vdot(truth, out) / len(out)) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("tone_hz", [30, 40, 60])
def test_tones_above_the_band_stay_attenuated_by_26_db_of_rms_under_jitter(tone_hz):
    out, _ = response(tone_hz, 200, jitter_s=0.1 / 200)
    assert np.sqrt(np.mean(np.abs(out) ** 2)) < 0.05


def test_the_kernel_is_a_kaiser_design_with_its_stop_band_from_30_hz():
    settings = PipelineSettings()
    rate_hz = 2000.0
    half = int(settings.half_width_s * rate_hz)
    share = np.linspace(0, 1, len(kernel_table(settings.cutoff_hz, settings.half_width_s, settings.kaiser_beta)))
    table = kernel_table(settings.cutoff_hz, settings.half_width_s, settings.kaiser_beta)
    taps = np.interp(np.abs(np.arange(-half, half + 1)) / half, share, table) / rate_hz
    frequencies, gain = freqz(taps, worN=np.linspace(0, 200, 800), fs=rate_hz)
    assert 20 * np.log10(np.abs(gain[frequencies >= 30]).max()) < -55
    assert np.abs(np.abs(gain[frequencies <= 15]) - 1).max() < 0.01
    # scipy's design rule agrees that this length is what 60 dB over a transition of 14 Hz costs.
    length, beta = kaiserord(60, 14 / (rate_hz / 2))
    assert 2 * half + 1 == pytest.approx(length, rel=0.02)
    assert beta == pytest.approx(settings.kaiser_beta, abs=0.01)


def test_a_quadratic_is_reproduced_at_irregular_times():
    random = np.random.default_rng(2)
    times = np.sort(random.uniform(0, 2, 160))
    grid = np.arange(0.2, 1.8, 0.02)
    values = np.stack([np.full_like(times, 3.0), 2 * times - 1, 4 * (times - 1) ** 2], axis=1)
    out = low_pass_at(times, values, grid, PipelineSettings())
    truth = np.stack([np.full_like(grid, 3.0), 2 * grid - 1, 4 * (grid - 1) ** 2], axis=1)
    np.testing.assert_allclose(out, truth, atol=0.02)


def test_samples_are_weighted_by_the_time_that_they_cover():
    np.testing.assert_allclose(trapezoid_widths(np.array([0.0, 1.0, 1.5, 4.5])), [0.5, 0.75, 1.75, 1.5])
    assert trapezoid_widths(np.array([7.0])).tolist() == [1.0]


def by_definition(times: np.ndarray, values: np.ndarray, at_s: float, settings: PipelineSettings) -> np.ndarray:
    """The module's formula for one grid point, sample by sample, with the fit as a linear system a channel."""
    table = kernel_table(settings.cutoff_hz, settings.half_width_s, settings.kaiser_beta)
    near = np.flatnonzero(np.abs(times - at_s) <= settings.half_width_s)
    u = (times[near] - at_s) / settings.half_width_s
    width = trapezoid_widths(times)[near]
    h = table[np.rint(np.abs(u) * (len(table) - 1)).astype(int)]
    powers = np.stack([u**0, u, u**2], axis=1)
    normal = powers.T * (width * np.cos(np.pi / 2 * u) ** 2) @ powers
    right = powers.T * (width * np.cos(np.pi / 2 * u) ** 2) @ values[near]
    normal[1, 1] += 1e-3 * normal[0, 0]
    normal[2, 2] += 1e-3 * normal[0, 0]
    q = np.linalg.solve(normal, right)
    return q[0] + (width * h) @ (values[near] - powers @ q)


@pytest.mark.parametrize(("rate_hz", "start_s"), [(50, 0.0), (200, 1.4e9), (1000, 3.0)])
def test_every_grid_point_is_what_the_definition_says(rate_hz, start_s):
    random = np.random.default_rng(rate_hz)
    times = start_s + np.sort(random.uniform(0, 4, 4 * rate_hz))
    lost = np.concatenate([[False], np.diff(times) < 0]) | (np.abs(times - start_s - 2) < 0.045)
    times = times[~lost]
    values = random.normal(9, 5, (len(times), 3))
    grid = times[0] + np.arange(0, int((times[-1] - times[0]) * 50)) / 50
    grid = grid[[np.abs(times - each).min() < 0.1 for each in grid]]
    expected = np.stack([by_definition(times, values, each, PipelineSettings()) for each in grid])
    np.testing.assert_allclose(low_pass_at(times, values, grid, PipelineSettings()), expected, rtol=0, atol=1e-9)


def test_blocks_of_grid_points_are_seams_that_nobody_sees(monkeypatch):
    random = np.random.default_rng(4)
    times = np.sort(random.uniform(0, 8, 1200))
    values, grid = random.normal(size=(1200, 3)), np.arange(0.5, 7.5, 0.02)
    whole = low_pass_at(times, values, grid, PipelineSettings())
    for pairs, piece in ((1, 1), (700, 7), (1 << 20, 1 << 20)):
        monkeypatch.setattr(resample, "PAIRS", pairs)
        monkeypatch.setattr(resample, "PIECE", piece)
        np.testing.assert_allclose(low_pass_at(times, values, grid, PipelineSettings()), whole, rtol=0, atol=1e-12)
    assert low_pass_at(times, values, grid[:0], PipelineSettings()).shape == (0, 3)


def test_positions_are_those_of_searchsorted(monkeypatch):
    times = np.repeat(np.arange(50.0), 2)
    at = np.sort(np.random.default_rng(1).integers(-5, 60, 333).astype(float))
    for piece in (1, 10, 1000):
        monkeypatch.setattr(resample, "PIECE", piece)
        for side in ("left", "right"):
            assert resample.positions(times, at, side).tolist() == np.searchsorted(times, at, side).tolist()
