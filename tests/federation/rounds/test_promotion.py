"""Whether a version may bear a name: how many must have measured it, what counts as worse, and what is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from federation.plan import PromotionSettings
from federation.rounds.promotion import Bar, Decision, PromotionVerdict, VersionComparison, judge, needed_devices
from gaitway.tasks import metric_of

MACRO_F1, MSE = metric_of("macro_f1"), metric_of("mse")


def judged(
    found: VersionComparison, *, needed: int = 2, devices: int = 3, other: str | None = "version 1"
) -> PromotionVerdict:
    return judge(found, Bar(needed, devices, margin=0.02, metric=MACRO_F1), other=other, trained=True)


@pytest.mark.parametrize(
    ("devices", "cohort", "needed"),
    [(0, None, 1), (1, None, 1), (2, None, 2), (3, None, 2), (20, None, 2), (100, None, 10), (1000, 10, 2), (3, 5, 2)],
)
def test_by_default_a_tenth_of_those_who_can_must_have_measured_it(
    devices: int, cohort: int | None, needed: int
) -> None:
    assert needed_devices(PromotionSettings(), devices, cohort) == needed
    assert needed_devices(PromotionSettings(min_devices=5), devices, cohort) == 5


def test_too_few_measures_are_said_and_that_there_are_too_few_devices_for_the_setting() -> None:
    few = judged(VersionComparison(1, 1, 0.5))
    assert few == PromotionVerdict(Decision.UNDECIDED, "1 of the 2 devices that are needed has measured it")
    assert judged(VersionComparison(3, 3, 0.5), needed=5).reason == (
        "3 of the 5 devices that are needed have measured it; the federation has only 3 devices: lower "
        "promotion.min_devices, or wait for more"
    )
    other = judged(VersionComparison(3, 1, 0.5))
    assert other.reason == "1 of the 2 devices that are needed has measured both it and version 1"


def test_within_the_margin_it_is_as_good_and_beyond_it_is_worse() -> None:
    assert judged(VersionComparison(2, 2, -0.02)).decision is Decision.BETTER
    worse = judged(VersionComparison(3, 2, -0.758))
    assert worse == PromotionVerdict(
        Decision.WORSE,
        "it is worse: −75.80 points of macro-F1 against version 1, on 2 devices that measured both; down to "
        "−2.00 points is allowed",
    )


def test_what_replaces_nothing_or_a_model_that_was_never_trained_needs_no_pair() -> None:
    assert judged(VersionComparison(2), other=None) == PromotionVerdict(Decision.BETTER, "2 devices measured it")
    found = judge(VersionComparison(2), Bar(2, 2, margin=0.0, metric=MSE), other="version 0", trained=False)
    assert found.decision is Decision.BETTER


@given(st.integers(0, 20), st.integers(0, 20), st.floats(-1, 1), st.integers(1, 20), st.floats(0, 1))
def test_it_moves_only_to_what_enough_have_measured_and_is_not_worse(
    measured: int, paired: int, gain: float, needed: int, margin: float
) -> None:
    found = VersionComparison(measured, min(paired, measured), gain)
    decision = judge(found, Bar(needed, 20, margin, MACRO_F1), other="version 1", trained=True).decision
    enough = found.measured >= needed and found.paired >= needed
    assert (decision is Decision.BETTER) == (enough and gain >= -margin)
    assert (decision is Decision.WORSE) == (enough and gain < -margin)


@pytest.mark.parametrize("settings", [{"min_devices": 0}, {"margin": -0.1}, {"k": 3}])
def test_settings_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        PromotionSettings.model_validate(settings)
