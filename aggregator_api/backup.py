"""A copy of a running server's data: the database at one moment, then every blob that it may name, and the keys.

The order makes it whole: a blob is on disk before a row names it, and blobs never change, so what the copied database
names is there when the blobs are copied afterwards. Half-received updates are left out: their devices send them again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse
from urllib.request import url2pathname

from sqlalchemy.engine import make_url

from aggregator_api.blobs import sync
from aggregator_api.errors import ConfigError
from aggregator_api.settings import Settings

DATABASE, BLOBS = "gaitway.sqlite3", "blobs"


class Copied(NamedTuple):
    """How much a backup wrote; blobs that an earlier one has left in the same folder are not written again."""

    blobs: int
    bytes: int


def back_up(settings: Settings, out: Path) -> Copied:
    """Copy a server's data into a folder that is itself a data_dir; the server may be running.

    Raises:
        ConfigError: for a database or a blob store that has its own way of being backed up.
    """
    database, blobs = _database(settings), _blobs(settings)
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)
    _copy_database(database, out / DATABASE)
    for key in (settings.identity, settings.data_dir / "admin.key"):
        if key.is_file():
            _copy(key, out / key.name)
    written = [_copy(blob, out / BLOBS / blob.parent.name / blob.name) for blob in sorted(blobs.glob("??/*"))]
    sync(out)
    new = [size for size in written if size is not None]
    return Copied(len(new), sum(new))


def _database(settings: Settings) -> Path:
    url = make_url(settings.database)
    if url.get_backend_name() != "sqlite" or not url.database:
        raise ConfigError(
            f"{url.render_as_string()} is not a SQLite file; dump it with pg_dump, then copy the blobs "
            "(docs/operations.md)"
        )
    path = Path(url.database)
    if not path.is_file():
        raise ConfigError(f"there is no database {path}; is this the server's data_dir?")
    return path


def _blobs(settings: Settings) -> Path:
    parsed = urlparse(settings.blobs)
    if parsed.scheme not in ("", "file"):
        raise ConfigError(f"blobs at {settings.blobs} are no folder; copy them with the store's own means")
    return Path(url2pathname(parsed.path))


def _copy_database(source: Path, target: Path) -> None:
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(fresh)) as copy:
        live.backup(copy)  # one consistent moment, write-ahead log included, while others go on writing
        found = copy.execute("PRAGMA integrity_check").fetchone()[0]
    if found != "ok":
        raise ConfigError(f"the database {source} is damaged: {found}; keep the last backup")
    sync(fresh)
    fresh.replace(target)


def _copy(source: Path, target: Path) -> int | None:
    """Copy a file whole; None if it is there already."""
    size = source.stat().st_size
    if target.exists() and target.parent.parent.name == BLOBS and target.stat().st_size == size:
        return None
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, fresh)
    fresh.chmod(0o600)
    sync(fresh)
    fresh.replace(target)
    return size
