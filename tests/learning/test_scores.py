"""Federations reach the scores that they reached when the bands were measured: with a broken training step none can.

A score below its band says that something learns worse; above it, that something learns too well to be true (a leak),
or better, and then the band is to be measured again. Each is printed at the end of a run of pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from federation.methods import METHODS
from tests.conftest import DATA
from tests.learning.bands import BANDS, FEDERATIONS
from tests.learning.scrambled import scramble_convolutions

Record = Callable[[str, object], None]

REAL = [name for name, one in FEDERATIONS.items() if not one.is_generated]
GENERATED = [name for name, one in FEDERATIONS.items() if one.is_generated]
ALWAYS = ("fedavg on MotionSense" if DATA.is_dir() else "fedavg on generated recordings",)
"""The federation of the default run: a convolution in time of eight people, or what a clone without data sees."""
SLOW = ("HART",)
"""CI has the same blocks in HART with ALP; `test_witness` has HART itself beside plain torch."""

# one process reads the recordings, which takes as long as two of these federations
pytestmark = pytest.mark.xdist_group("learning")


KINDS = ("analytic", "fedavg", "scaffold", "fedrep", "fedproto", "fedali")
"""One method of each kind of update: CI watches it on real recordings, the others on generated ones, on real ones where
slow tests run."""


def watched(names: list[str]) -> list[ParameterSet]:
    """Return the names, those that are not always run left to CI or to slow tests."""
    slow = [*SLOW, *(name for name in REAL if name in names and FEDERATIONS[name].method not in KINDS)]
    kinds = {**dict.fromkeys(names, pytest.mark.ci), **dict.fromkeys(slow, pytest.mark.slow)}
    return [pytest.param(name, marks=() if name in ALWAYS else kinds[name]) for name in names]


BOTH_WAYS = ("fedavg", "fedali", "scaffold")
"""Methods whose federations on generated recordings are watched beside the real ones; the others' in their stead."""


@pytest.mark.data
@pytest.mark.timeout(900)  # HART learns for minutes beside other programs
@pytest.mark.parametrize("name", watched(REAL))
def test_scores_on_real_recordings_and_images_lie_in_their_bands(
    name: str, gaitway_data: Path, record_property: Record
) -> None:
    check(name, gaitway_data, record_property)


@pytest.mark.parametrize("name", watched(GENERATED))
def test_scores_on_generated_recordings_lie_in_their_bands(name: str, record_property: Record) -> None:
    method = FEDERATIONS[name].method
    if DATA.is_dir() and method in KINDS and method not in BOTH_WAYS:
        pytest.skip("the same method is watched on real recordings, which are there")
    check(name, None, record_property)


def test_every_method_is_watched_on_real_and_on_generated_recordings() -> None:
    for names in (REAL, GENERATED):
        assert {FEDERATIONS[name].method for name in names} == METHODS.keys()


@pytest.mark.ci
@pytest.mark.data
def test_a_scrambled_step_falls_out_of_its_band(gaitway_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody saw in November 2026, with every other test green: fused Adam on gradients laid out otherwise."""
    scramble_convolutions(monkeypatch)
    found = FEDERATIONS["MotionSense"].scores(0, gaitway_data)
    assert all(found[score] < band.low - 20 for score, band in BANDS["MotionSense"].items()), found


def test_the_band_of_motionsense_begins_at_85_or_above() -> None:
    assert BANDS["MotionSense"]["personalization"].low >= 85


def check(name: str, root: Path | None, record_property: Record) -> None:
    found, bands = FEDERATIONS[name].scores(0, root), BANDS[name]
    assert found.keys() == bands.keys()
    shown = (f"{score} {found[score]:.1f} ({band.low:g} to {band.high:g})" for score, band in bands.items())
    line = f"{name}: {', '.join(shown)}"
    record_property("score", line)
    assert all(band.low <= found[score] <= band.high for score, band in bands.items()), line
