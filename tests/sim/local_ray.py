"""A Ray cluster of two workers on this machine, for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'gaitway[ray]'")


@contextmanager
def local_cluster() -> Iterator[None]:
    """Start a cluster whose workers import from this checkout, and end it."""
    for attempt in range(3):
        try:
            _start()
            break
        except Exception:  # of no narrower type: Ray gives its own processes 30 s, too few where cores are scarce
            ray.shutdown()
            if attempt == 2:
                raise
    yield
    ray.shutdown()


def _start() -> None:
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}},
    )
