"""A server with a small federation, waiting for devices or collecting their updates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .bench import Bench
from .devices import tiny_plan


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Bench]:
    """A server with a federation of two devices, two rounds and no device yet."""
    bench = Bench(tmp_path / "data", tiny_plan())
    yield bench
    bench.runtime.stop()


@pytest.fixture
def collecting(waiting: Bench) -> Bench:
    """The same, with round 1 open for devices a and b."""
    waiting.say("a", "ready")
    waiting.say("b", "ready")
    return waiting
