"""What other phones do to windows, by hand and by physics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from federation.records import Examples
from sim.data.federated_data import ClientData
from sim.data.other_phones import NOISE, raw_windows, ways_to_carry, with_phone, worse_sensors
from sim.data.selection import CARRIED, WORSE
from sim.run import load_data, resolve
from tests.sim.small_runs import settings_for

HZ, SAMPLES = 50.0, 128


def tone(frequency_hz: float, amplitude: float) -> torch.Tensor:
    """Return windows (2, 128, 6) with one tone in every channel."""
    wave = amplitude * np.sin(2 * np.pi * frequency_hz * np.arange(SAMPLES) / HZ)
    return torch.from_numpy(np.broadcast_to(wave[None, :, None], (2, SAMPLES, 6)).astype(np.float32).copy())


def changed(way: str, raw: torch.Tensor) -> torch.Tensor:
    examples = Examples(raw, torch.zeros(len(raw), dtype=torch.int64))
    return worse_sensors({"ann": ClientData(examples, examples)}, 3)[way][0]["ann"](raw)


def middle(raw: torch.Tensor) -> float:
    """Return the largest value away from a window's ends."""
    return float(raw[:, 20:-20].abs().max())


def test_a_phone_upside_down_has_the_same_windows_with_x_and_y_the_other_way(tmp_path: Path) -> None:
    """By hand on normalized windows of a client's own statistics: the mean turns too, so two channels change signs."""
    both = load_data(resolve(settings_for(holdout="leave-subjects-out:1")), None, tmp_path, None)
    name, bob = next(iter(both.new_clients.items()))
    turn = ways_to_carry(both.new_clients, 0)["upside_down"][0][name]
    upside_down = with_phone(bob, turn, both.new_statistics[name], by_own_statistics=True)
    signs = torch.tensor([-1.0, -1.0, 1.0, -1.0, -1.0, 1.0])
    assert torch.allclose(upside_down.test.x, bob.test.x * signs, atol=1e-4)
    assert torch.equal(upside_down.test.y, bob.test.y)
    raw = raw_windows(bob.test, both.new_statistics[name])
    assert float(raw[..., :3].norm(dim=2).mean()) == pytest.approx(9.8, abs=1.5)
    shared = with_phone(bob, turn, both.new_statistics[name], by_own_statistics=False)
    assert torch.allclose(raw_windows(shared.test, both.new_statistics[name]), raw * signs, atol=1e-3)


def test_a_sensor_at_25_hz_leaves_slow_motion_and_knows_no_fast_one() -> None:
    slow, fast, still = tone(5.0, 2.0), tone(20.0, 2.0), torch.full((2, SAMPLES, 6), 9.81)
    assert middle(changed("slow", slow) - slow) < 0.02
    assert middle(changed("slow", fast)) < 0.1
    assert float((changed("slow", still) - still).abs().max()) < 0.05  # the ends, too


def test_without_a_gyroscope_its_channels_are_zero_as_the_pipeline_has_them() -> None:
    raw = tone(2.0, 3.0)
    found = changed("no_gyroscope", raw)
    assert torch.equal(found[..., :3], raw[..., :3])
    assert not found[..., 3:].any()


def test_a_small_range_cuts_off_at_two_g_and_250_degrees_a_second() -> None:
    found = changed("clipped", tone(2.0, 40.0))
    assert float(found[..., :3].max()) == pytest.approx(2 * 9.80665)
    assert float(found[..., 3:].min()) == pytest.approx(-np.pi * 250 / 180)
    assert torch.equal(changed("clipped", tone(2.0, 4.0)), tone(2.0, 4.0))


def test_noise_has_its_deviation_and_is_the_same_again() -> None:
    raw = torch.zeros(200, SAMPLES, 6)
    found = changed("noisy", raw)
    np.testing.assert_allclose(found.std((0, 1)).numpy(), NOISE, rtol=0.02)
    assert torch.equal(found, changed("noisy", raw))


def test_tables_name_every_way() -> None:
    ann = {"ann": ClientData(*[Examples(torch.zeros(0, SAMPLES, 6), torch.zeros(0, dtype=torch.int64))] * 2)}
    assert ways_to_carry(ann, 0).keys() == CARRIED.keys()
    assert worse_sensors(ann, 0).keys() == WORSE.keys()
