"""The real recordings, where they are; and archives of any kind made from a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real recordings; skips where there is none."""
    path = Path(os.environ.get("GAITWAY_DATA", ROOT / ".." / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no real recordings under {path}; set GAITWAY_DATA")
    return path
