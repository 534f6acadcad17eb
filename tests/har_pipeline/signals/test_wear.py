"""Devices that lie, and people that sit: signals made by physics, and real recordings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from har_pipeline import default_cache_dir, prepare
from har_pipeline.recording import STANDARD_GRAVITY
from har_pipeline.signals.wear import STILL_S, WearDetector

RATE_HZ, WINDOW, STEP = 50, 128, 64
STEP_S = STEP / RATE_HZ
DATA = Path(os.environ.get("GAITWAY_DATA", "../shared/data"))


def lying(seconds: float, noise_mg: float = 1.5, *, has_gyroscope: bool = True, seed: int = 0) -> np.ndarray:
    """A phone on a table: gravity, white noise, a slow drift with the temperature."""
    generator, count = np.random.default_rng(seed), int(seconds * RATE_HZ)
    x = np.zeros((count, 6))
    x[:, :3] = generator.normal((0.3, -0.2, STANDARD_GRAVITY), noise_mg / 1000 * STANDARD_GRAVITY, (count, 3))
    x[:, :3] += np.linspace(0, 0.0005 * STANDARD_GRAVITY, count)[:, None] / max(1.0, seconds / 60)
    if has_gyroscope:
        x[:, 3:] = generator.normal(0.001, 0.001 * noise_mg, (count, 3))
    return x


def wave(x: np.ndarray, mg: float, hz: float) -> np.ndarray:
    """The same with a movement of this amplitude and rate."""
    moved, t = x.copy(), np.arange(len(x)) / RATE_HZ
    moved[:, :3] += (mg / 1000 * STANDARD_GRAVITY * np.sin(2 * np.pi * hz * t))[:, None]
    return moved


def worn(x: np.ndarray, detector: WearDetector | None = None, begin_s: float = 0.0) -> Iterator[bool]:
    detector = detector or WearDetector()
    for first in range(0, len(x) - WINDOW + 1, STEP):
        yield detector.is_worn(x[first : first + WINDOW].astype(np.float32), begin_s + first / RATE_HZ)


@pytest.mark.parametrize("noise_mg", [0.5, 1.5, 4.0, 8.0])
@pytest.mark.parametrize("has_gyroscope", [True, False])
def test_a_device_on_a_table_is_not_worn_within_thirty_seconds(noise_mg: float, has_gyroscope: bool) -> None:
    noise = min(noise_mg, 1.5) if has_gyroscope else noise_mg
    for seed in range(10):
        found = list(worn(lying(60, noise, has_gyroscope=has_gyroscope, seed=seed)))
        assert found.index(False) * STEP_S + WINDOW / RATE_HZ <= 30.0
        assert not any(found[found.index(False) :])


def test_a_device_is_worn_again_within_one_window() -> None:
    detector = WearDetector()
    assert not list(worn(lying(60), detector))[-1]
    walks = wave(lying(10, seed=1), 300, 2.0)
    assert all(worn(walks, detector, begin_s=60.0))


@pytest.mark.parametrize(
    ("mg", "hz"), [(3.0, 0.25), (6.0, 0.2), (40.0, 12.0), (20.0, 1.0)], ids=["breath", "deep", "car", "pulse"]
)
def test_a_body_or_a_car_moves_it(mg: float, hz: float) -> None:
    assert all(worn(wave(lying(120), mg, hz)))


def test_stillness_ends_with_the_recording_and_with_its_session() -> None:
    for begin_s, session in ((3600.0, 0), (60.0, 1)):
        detector = WearDetector()
        assert not list(worn(lying(60), detector))[-1]
        assert detector.is_worn(lying(3)[:WINDOW], begin_s, session)
    broken = np.full((WINDOW, 6), np.nan)
    assert WearDetector().is_worn(broken, 0.0)


def test_a_camera_that_sees_nothing_move_is_worn() -> None:
    detector, scene = WearDetector(), np.full((3, 32, 32), 0.5, np.float32)
    assert all(detector.is_worn(scene, 1.0 * second) for second in range(60))


def test_a_shorter_stay_is_not_called_not_worn() -> None:
    assert all(worn(lying(STILL_S)))


@pytest.mark.data
@pytest.mark.parametrize(
    ("dataset", "activities"), [("motionsense", ("sit", "std")), ("ucihar", ("SITTING", "STANDING", "LAYING"))]
)
def test_nobody_of_the_data_sets_is_called_not_worn_at_rest(dataset: str, activities: tuple[str, ...]) -> None:
    if not DATA.is_dir():
        pytest.skip(f"no recordings in {DATA} (GAITWAY_DATA)")
    found = prepare(dataset, DATA, cache_dir=default_cache_dir())
    wanted = [found.labels.index(name) for name in activities]
    answers = []
    for client in found.clients.values():
        detector = WearDetector()
        rows = np.flatnonzero(np.isin(client.y, wanted))
        answers += [detector.is_worn(client.x[i], float(client.start_s[i]), int(client.session[i])) for i in rows]
    assert np.mean(answers) >= 0.99
