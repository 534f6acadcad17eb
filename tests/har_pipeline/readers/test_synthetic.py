"""The synthetic recordings are seeded per client, physical, and as unequal as real ones."""

from __future__ import annotations

import numpy as np
import pytest

from har_pipeline import SettingsError, device_of, prepare, recordings, subject_of
from har_pipeline.readers.synthetic import PHONES, PLACES, RATE_HZ, move, segment_readings

G = 9.80665


def gathered(client: str, options: dict) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    parts: dict[str, list] = {"acc": [], "gyro": []}
    for each in recordings("synthetic", None, clients=[client], options=options):
        parts[each.sensor].append((each.times_s, each.values, each.activity))
    return {name: tuple(np.concatenate(column) for column in zip(*rows, strict=True)) for name, rows in parts.items()}


def test_adding_subjects_phones_or_places_changes_no_other_client():
    small = {"subjects": 1, "phones": 1, "places": ["waist"], "minutes": 0.5}
    large = {"subjects": 2, "phones": 2, "places": ["thigh", "waist"], "minutes": 0.5}
    few, many = prepare("synthetic", None, options=small), prepare("synthetic", None, options=large)
    assert len(few.clients) == 1
    assert len(many.clients) == 8
    for client, windows in few.clients.items():
        assert windows.x.tobytes() == many.clients[client].x.tobytes()
    reseeded = prepare("synthetic", None, options={**small, "seed": 1})
    client = next(iter(few.clients))
    assert reseeded.clients[client].x.tobytes() != few.clients[client].x.tobytes()
    assert (subject_of(client), device_of(client)) == ("s00", "phone100-waist")


def test_native_rates_span_50_to_210_hz_with_jitter_and_gaps():
    assert {phone.rate_hz for phone in PHONES.values()} == {50, 100, 150, 200, 210}
    options = {"subjects": 1, "phones": 5, "minutes": 4}
    gaps = 0
    for name, phone in PHONES.items():
        for times, _, _ in gathered(f"s00_{name}-waist", options).values():
            steps = np.diff(times)
            assert (steps > 0).all()
            assert np.median(steps) == pytest.approx(1 / phone.rate_hz, rel=0.05)
            assert 0.5 * phone.jitter < np.std(steps[steps < 2 / phone.rate_hz]) * phone.rate_hz < 2 * phone.jitter
            gaps += int((steps > 0.1).sum())
    assert gaps > 3


def test_gravity_depends_on_the_place_and_each_phone_has_its_own_bias():
    options = {"subjects": 1, "phones": 2, "places": len(PLACES), "minutes": 2}
    means = {}
    for place in PLACES:
        _, values, activity = gathered(f"s00_phone100-{place}", options)["acc"]
        means[place] = values[activity == "standing"].mean(axis=0) if (activity == "standing").any() else None
    known = np.stack([mean for mean in means.values() if mean is not None])
    assert len(known) > 3
    np.testing.assert_allclose(np.linalg.norm(known, axis=1), G, rtol=0.1)
    directions = known / np.linalg.norm(known, axis=1, keepdims=True)
    angles = np.degrees(np.arccos(np.clip(directions @ directions.T, -1, 1)))
    assert np.median(angles[np.triu_indices(len(known), 1)]) > 20


def test_activities_differ_as_real_ones_do():
    dataset = prepare("synthetic", None, options={"subjects": 1, "phones": 1, "minutes": 6})
    windows = next(iter(dataset.clients.values()))
    energy = {
        label: windows.x[windows.y == index, :, :3].std(axis=1).mean() for index, label in enumerate(dataset.labels)
    }
    assert energy["running"] > 1.5 * energy["walking"] > 5 * energy["standing"]
    walking = windows.x[windows.y == dataset.labels.index("walking"), :, 0]
    spectrum = np.abs(np.fft.rfft(walking - walking.mean(axis=1, keepdims=True), n=512)).mean(axis=0)
    peak_hz = np.fft.rfftfreq(512, 1 / 50)[spectrum.argmax()]
    assert 0.7 < peak_hz < 2.6


def test_the_gyroscope_reads_the_rate_at_which_gravity_turns():
    times = np.arange(2000) / RATE_HZ
    angles = np.stack([0.3 * np.sin(3 * times), 0.5 * np.sin(2 * times + 1), 0.2 * np.sin(times)])
    force, rate = segment_readings(np.zeros((3, len(times))), angles)
    turning = np.gradient(force, 1 / RATE_HZ, axis=0)
    np.testing.assert_allclose(turning[5:-5], -np.cross(rate, force)[5:-5], atol=0.01)


def test_motion_is_drawn_at_its_rate_and_stays_within_human_bounds():
    motion = move(np.random.default_rng(0), np.random.default_rng(1), "shin", 60.0)
    assert len(motion.times_s) == len(motion.force) == len(motion.rate) == len(motion.activity) == 60 * RATE_HZ + 1
    assert np.abs(motion.force).max() < 80
    assert np.abs(motion.rate).max() < 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phones": 9}, "from 1 to 5 are known"),
        ({"places": ["pocket"]}, "option places: unknown 'pocket'"),
        ({"minutes": 0}, "minutes is 0"),
        ({"subject": 3}, "did you mean 'subjects'"),
    ],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        prepare("synthetic", None, options=options)
