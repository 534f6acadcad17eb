"""Which model serves: evidence by hand, a prior that a few devices can't steer, classes that are missing, ties."""

from __future__ import annotations

import json

import numpy as np
import pytest

from federation.rounds.serving import (
    MAX_GAIN,
    MAX_PRIOR_WINDOWS,
    MIN_DEVICES,
    SHARED,
    STEPS,
    TIE,
    TYPICAL_VARIANCE,
    TYPICAL_WEIGHT,
    Evidence,
    Prior,
    Rival,
    expected_gains,
    likeliest,
)

ORDER = ("midway", "personalized", "global")
ALL = np.ones(2, bool)


def evidence(
    own: list[int], shared: list[int], y: list[int], session: list[int] | None = None, classes: int = 2
) -> Evidence:
    """What windows say on which a model and the shared one are right (1) or wrong (0)."""
    sessions = np.zeros(len(y), np.int64) if session is None else np.array(session)
    return Evidence.of(np.array(y), np.array(own, float), np.array(shared, float), sessions, classes)


def constant(gain: float, windows: int = 30, classes: int = 2) -> Evidence:
    """A gain that each class has alike, with a sampling variance of 0.01 of the mean."""
    return Evidence(np.full(classes, gain), np.full(classes, 0.01 * classes), windows)


def prior_of(gains: list[float], own: list[int] | None = None) -> Prior | None:
    """The prior of devices with these gains."""
    reports = [constant(gain).report() for gain in gains] + ([own] if own else [])
    return Prior.of(np.sum(reports, axis=0).tolist(), own)


def test_evidence_by_hand() -> None:
    # class 0: differences 1, 0, 0, 0, 0, 0 (mean 1/6); class 1: 1, 1, 1 (mean 1)
    found = evidence([1, 0, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0, 0, 0], [0] * 6 + [1] * 3)
    assert found.gain.tolist() == pytest.approx([1 / 6, 1.0])
    squares = (5 / 6) ** 2 + 5 * (1 / 6) ** 2  # within class 0; class 1 varies in nothing
    spread = (squares + TYPICAL_WEIGHT * TYPICAL_VARIANCE) / (9 - 2 + TYPICAL_WEIGHT)
    assert found.variance.tolist() == pytest.approx([spread / 2, spread])  # six windows count as two, three as one
    assert found.mean == pytest.approx((1 / 6 + 1) / 2)
    assert found.mean_variance == pytest.approx((spread / 2 + spread) / 4)
    missing = evidence([1, 1], [0, 1], [0, 0])
    assert np.isnan(missing.gain[1])
    assert missing.mean == pytest.approx(0.5)


def test_sessions_are_the_unit_where_a_class_has_several() -> None:
    y, right, wrong = [0] * 30, [1, 0] * 15, [0] * 30
    one = evidence(right, wrong, y)
    three = evidence(right, wrong, y, session=[0] * 10 + [1] * 10 + [2] * 10)
    unequal = evidence(right, wrong, y, session=[0] * 28 + [1, 2])
    assert one.variance[0] * 10 == pytest.approx(three.variance[0] * 3)
    assert unequal.variance[0] == pytest.approx(three.variance[0] * 3 / (30**2 / (28**2 + 2)))


def test_a_report_is_clipped_and_the_sampling_variance_is_taken_out() -> None:
    count, total, square, *by_class = constant(0.2).report()
    assert (count, total, square) == (1, 2000, round(STEPS * (0.04 - 0.01)))
    assert by_class == [1, 2000, 1, 2000]
    huge = constant(1.0).report()
    assert huge[1] == STEPS * MAX_GAIN
    assert huge[4] == STEPS * MAX_GAIN


def test_the_prior_has_the_mean_of_the_others_and_their_spread_without_the_sampling_variance() -> None:
    draw = np.random.default_rng(0)
    true = draw.normal(0.1, 0.05, 4000)
    seen = true + draw.normal(0, np.sqrt(0.01), 4000)
    found = prior_of(seen.tolist())
    assert found is not None
    assert found.mean == pytest.approx(0.1, abs=0.003)
    assert found.variance == pytest.approx(0.05**2, rel=0.15)


def test_the_prior_leaves_the_device_out_and_needs_ten_others() -> None:
    own = constant(0.4).report()
    assert prior_of([0.1] * (MIN_DEVICES - 1), own) is None
    found = prior_of([0.1] * MIN_DEVICES, own)
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert found.by_class.tolist() == pytest.approx([0.1, 0.1])


def test_one_device_that_lies_moves_the_mean_of_ten_by_a_twentieth_at_most() -> None:
    honest = prior_of([0.0] * MIN_DEVICES)
    lied = Prior.of(np.sum([constant(g).report() for g in [0.0] * (MIN_DEVICES - 1) + [99.0]], axis=0).tolist())
    assert honest is not None
    assert lied is not None
    assert abs(lied.mean - honest.mean) <= MAX_GAIN / MIN_DEVICES + 1e-9


def test_sums_beyond_what_devices_report_give_no_impossible_prior() -> None:
    found = Prior.of([10, 10**9, -(10**9), 10, 10**9, 10, -(10**9)])
    assert found is not None
    assert abs(found.mean) <= MAX_GAIN
    assert found.variance == 0.0
    assert np.abs(found.by_class).max() <= MAX_GAIN


def test_the_posterior_by_hand_and_one_weight_for_all_candidates() -> None:
    prior = Prior(0.1, 0.02, np.array([0.1, 0.1]))
    other = Prior(0.0, 0.04, np.array([0.0, 0.0]))
    own, between = constant(-0.1, windows=1), constant(0.3, windows=1)
    weight = (0.02 + 0.04) / (0.02 + 0.04 + 0.01 + 0.01)
    gains = expected_gains({"personalized": Rival(own, prior), "midway": Rival(between, other)}, ALL, 0.9)
    assert gains["personalized"] == pytest.approx(weight * -0.1 + (1 - weight) * 0.1)
    assert gains["midway"] == pytest.approx(weight * 0.3)


def test_the_prior_never_outweighs_its_windows() -> None:
    certain = Prior(0.5, 0.0, np.array([0.5, 0.5]))  # all other devices gain exactly this much
    for windows in (0, 20, 180):
        gains = expected_gains({"personalized": Rival(constant(-0.5, windows), certain)}, ALL, 0.9)
        share = windows / (windows + MAX_PRIOR_WINDOWS)
        assert gains["personalized"] == pytest.approx(0.5 - share)


def test_without_a_prior_the_higher_score_wins_and_without_anything_the_shared_model_stays() -> None:
    gains = expected_gains({"personalized": Rival(constant(0.02)), "midway": Rival()}, ALL, 0.9)
    assert gains == pytest.approx({"personalized": 0.02})
    assert likeliest(gains, ORDER) == "personalized"
    assert likeliest({"personalized": -0.02}, ORDER) == SHARED
    assert likeliest({}, ORDER) == SHARED


def test_a_tie_goes_to_the_personal_model_and_a_margin_asks_for_more() -> None:
    assert likeliest({"personalized": 0.0}, ORDER) == "personalized"
    assert likeliest({"personalized": 0.1, "midway": 0.1 - TIE / 2}, ORDER) == "midway"
    assert likeliest({"personalized": 0.1, "midway": 0.09}, ORDER) == "personalized"
    assert likeliest({"personalized": 0.1}, ORDER, margin=0.11) == SHARED
    assert likeliest({"personalized": 0.0}, ORDER, margin=0.01) == SHARED
    assert likeliest({"older": 0.0}, ("newer", "older"), reference="newer") == "newer"


def test_a_class_without_held_out_windows_takes_the_federations_gain_for_it() -> None:
    seen = Evidence(np.array([0.0, np.nan]), np.array([0.01, np.nan]), 1000)
    prior = Prior(0.0, 1.0, np.array([0.0, -0.3]))
    gains = expected_gains({"personalized": Rival(seen, prior)}, ALL, 0.9)
    assert gains["personalized"] == pytest.approx(-0.15, abs=1e-3)
    assert expected_gains({"personalized": Rival(seen)}, ALL, 0.9)["personalized"] == pytest.approx(0.0)


def test_a_class_that_the_device_never_trained_on_counts_as_lost() -> None:
    # 0.2 better on what the device has, but the third class is gone: the shared model recalls 0.8 of it
    seen = Evidence(np.array([0.2, 0.2, np.nan]), np.array([0.01, 0.01, np.nan]), 60)
    trained = np.array([True, True, False])
    gains = expected_gains({"personalized": Rival(seen)}, trained, 0.8)
    assert gains["personalized"] == pytest.approx((0.2 + 0.2 - 0.8) / 3)
    assert likeliest(gains, ORDER) == SHARED
    kept = expected_gains({"personalized": Rival(seen, forgets=False)}, trained, 0.8)
    assert likeliest(kept, ORDER) == "personalized"


def test_one_of_ten_thousand_reports_is_what_json_brings_back() -> None:
    report = evidence([1, 0, 1], [0, 0, 1], [0, 1, 1]).report()
    assert json.loads(json.dumps(report)) == report
    assert all(type(number) is int for number in report)
