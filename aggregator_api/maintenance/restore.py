"""Restores a server from a backup: copies everything into an empty place, and begins a new epoch.

Without the epoch the devices, which have gone on since the backup, would neither train for the server nor believe it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import URL, inspect
from sqlalchemy.exc import SQLAlchemyError

from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import DATABASE, Settings, sqlite_url
from aggregator_api.maintenance import backup, revocations
from aggregator_api.maintenance.backup import BLOBS, DUMP, blob_folder, copy_file, plain_file, read_description
from aggregator_api.maintenance.revocations import ReplayResult
from aggregator_api.storage.blobs import sync
from aggregator_api.storage.db import audit, epochs
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.ledger import Ledger
from gaitway.files import private_folder

_SHA256 = re.compile(r"[0-9a-f]{64}")


class RestoreResult(NamedTuple):
    """A restore's result: the new epoch, the number of copied blobs, and the access that ended since the backup."""

    epoch: int
    blobs: int
    replayed: ReplayResult


class NewEpoch(NamedTuple):
    """A new epoch on a database, and the access that ended since it was copied."""

    epoch: int
    replayed: ReplayResult


def restore(settings: Settings, source: Path, epoch: int | None = None) -> RestoreResult:
    """Copy a backup into a place without data, and begin a new epoch, by the clock or the one that is given.

    Raises:
        ConfigError: if `source` is no backup of such a database, there is data already, or the epoch is too low.
    """
    described, database = read_description(source), Database(settings.database)
    database.close()
    if described.database != ("postgresql" if database.shared else "sqlite"):
        raise ConfigError(
            f"{source} is a backup of a server on {described.database}, but this one is on "
            f"{'PostgreSQL' if database.shared else 'SQLite'} ({database.engine.url.render_as_string()}); "
            "set database_url as it was"
        )
    _require_empty(settings, source)
    files = {name: plain_file(source, name) for name in described.keys}
    plain_file(source, DUMP if described.database == "postgresql" else DATABASE)
    private_folder(settings.data_dir)
    blobs = [
        copy_file(plain_file(source, f"{BLOBS}/{sha256[:2]}/{sha256}"), blob_folder(settings) / sha256[:2] / sha256)
        for sha256 in _blobs(source)
    ]
    for name, path in files.items():
        copy_file(path, settings.identity if name == described.identity else settings.data_dir / name)
    begun = _load(settings, source, epoch)
    sync(settings.data_dir)
    return RestoreResult(begun.epoch, len(blobs), begun.replayed)


def _blobs(source: Path) -> list[str]:
    """Return the blobs of a backup; what is not named after a sha256, in the folder of its beginning, is none."""
    found = (path for path in sorted((source / BLOBS).glob("??/*")) if _SHA256.fullmatch(path.name))
    return [path.name for path in found if path.parent.name == path.name[:2]]


def begin_epoch(settings: Settings, epoch: int | None = None) -> NewEpoch:
    """Begin a new epoch on a database that was brought back by other means, such as a snapshot of its disk.

    What access has ended since is ended again, as by `restore`.

    Raises:
        ConfigError: if there is no database, or the epoch is too low.
    """
    path = settings.database_file
    if path is not None and not path.is_file():
        raise ConfigError(f"there is no database {path}; is this the server's data_dir?")
    return _begin(settings.database, Ledger(settings.ledger), epoch)


def _load(settings: Settings, source: Path, epoch: int | None) -> NewEpoch:
    """Bring the database in last, so that a restore that was cut off has none, and can be done again."""
    target = settings.database_file
    if target is None:
        backup.load(settings.database, plain_file(source, DUMP))
        return _begin(settings.database, Ledger(settings.ledger), epoch)
    fresh = target.with_name(f".{target.name}.restored")
    for path in (fresh, *(fresh.with_name(f"{fresh.name}-{end}") for end in ("wal", "shm"))):
        path.unlink(missing_ok=True)
    copy_file(plain_file(source, DATABASE), fresh)
    # closing the last connection writes its log back into the file
    begun = _begin(sqlite_url(fresh), Ledger(settings.ledger), epoch)
    sync(fresh)
    fresh.replace(target)
    return begun


def _begin(database_url: URL, ledger: Ledger, epoch: int | None) -> NewEpoch:
    database = Database(database_url, ledger=ledger)
    try:
        database.migrate()
        with database.write() as session:
            begun = epochs.begin(session, epoch)
            replayed = revocations.replay(session, ledger)
            detail = f"epoch {begun}; {replayed}"
            audit.record(session, "server.restore", actor=audit.operating_user(), detail=detail)
            return NewEpoch(begun, replayed)
    finally:
        database.close()


def _require_empty(settings: Settings, source: Path) -> None:
    """Refuse to mix a backup with other data.

    Raises:
        ConfigError: saying what is there.
    """
    folder = settings.data_dir.resolve()
    if folder == source.resolve():
        raise ConfigError(f"{source} is the backup itself; choose another --data-dir, and the backup stays as it is")
    todo = "move it away first, or choose another --data-dir"
    if settings.database_file is None:
        _require_empty_database(settings.database)
    elif settings.database_file.exists():
        raise ConfigError(f"there is a database already: {settings.database_file}; {todo}")
    if any((folder / "spool").glob("*/*/*")):
        raise ConfigError(f"{folder / 'spool'} holds updates of devices that were under way; {todo}")
    identity, kept = settings.identity, source / read_description(source).identity
    if identity.exists() and kept.exists() and identity.read_bytes() != kept.read_bytes():
        raise ConfigError(f"{identity} is another server's key; devices trust the backup's alone; {todo}")


def _require_empty_database(database_url: URL) -> None:
    database = Database(database_url)
    try:
        tables = inspect(database.engine).get_table_names()
    except SQLAlchemyError as error:
        raise ConfigError(f"{database.engine.url.render_as_string()} cannot be reached: {error}") from error
    finally:
        database.close()
    if tables:
        raise ConfigError(
            f"{database.engine.url.render_as_string()} holds tables already ({', '.join(sorted(tables)[:3])} …); make "
            "an empty database (createdb) and set database_url to it, or drop the old one first"
        )
