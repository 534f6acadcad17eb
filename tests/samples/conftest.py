"""The samples of each version, and empty databases to load one into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator_api.core.settings import sqlite_url
from aggregator_api.storage.db.database import Database
from tests.samples import FOLDER, VERSIONS


@pytest.fixture(params=VERSIONS)
def sample(request: pytest.FixtureRequest) -> Path:
    """The folder of a version's samples."""
    return FOLDER / str(request.param)


@pytest.fixture
def empty_database(tmp_path: Path) -> Iterator[Database]:
    """An SQLite database without a table."""
    found = Database(sqlite_url(tmp_path / "server.sqlite3"))
    yield found
    found.close()
