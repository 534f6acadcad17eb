"""What every test of the simulation has: figures of few pixels, whose painting is a third of what a report takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def small_figures() -> Iterator[None]:
    """Paint at 40 dots an inch; what is laid out, and where, does not depend on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.reports.figures.style.DPI", 40)
        yield
