"""What every test may use: the folder of real recordings, and one thread per process."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch or numpy is imported, and inherited by the processes that tests start: sums in one order on any machine.
os.environ["OMP_NUM_THREADS"] = "1"
# Devices that tests start share a busy machine, and train on it whatever its load, battery and temperature.
os.environ["GAITWAY_EDGE_CONDITIONS_IGNORE"] = '["all"]'

import pytest
from hypothesis import HealthCheck, settings

# a busy machine is slow, which says nothing about the code
settings.register_profile("gaitway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gaitway")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def gaitway_data() -> Path:
    """Folder of real recordings: GAITWAY_DATA, else ../shared/data beside the repository."""
    folder = Path(os.environ.get("GAITWAY_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no recordings: {folder} is not a folder; set GAITWAY_DATA")
    return folder
