"""Federations reach the scores that they reached when these bands were measured: a broken training step cannot.

Each band is the range over seeds 0 to 4 (`python -m tests.learning.measure`, 2026-11-22), widened by three standard
deviations, at least two points. Below it something learns worse; above it, too well to be true (a leak), or better, and
then the band is to be measured again. Every score is printed (`pytest -rP`, and at the end of a run), so that a slow
decline is seen as well.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from federation.methods import METHODS
from tests.learning.bands import BROKEN, FEDERATIONS, Federation, federation_of
from tests.learning.federations import loaded, scores


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name, one in FEDERATIONS.items() if one.needs_data])
def test_score_on_real_data_lies_in_its_band(name: str, gaitway_data: Path, learnt: list[str]) -> None:
    check(name, gaitway_data, learnt)


@pytest.mark.parametrize("name", [name for name, one in FEDERATIONS.items() if not one.needs_data])
def test_score_on_generated_recordings_lies_in_its_band(name: str, learnt: list[str]) -> None:
    check(name, None, learnt)


def test_every_method_has_a_band() -> None:
    assert {one.options["method"] for one in FEDERATIONS.values()} >= METHODS.keys()


def test_no_band_admits_what_a_broken_step_reaches() -> None:
    assert [name for name, one in FEDERATIONS.items() if one.main_band.low <= BROKEN] == []


def check(name: str, root: Path | None, learnt: list[str]) -> None:
    federation: Federation = federation_of(name)
    settings = federation.settings(seed=0)
    found = scores(settings, loaded(settings, root, federation.clients))
    line = f"{name}: " + ", ".join(
        f"{score} {found[score]:.1f} (band {band.low:.1f} to {band.high:.1f})"
        for score, band in federation.bands.items()
    )
    learnt.append(line)
    print(line)
    for score, band in federation.bands.items():
        assert band.low <= found[score] <= band.high, line
