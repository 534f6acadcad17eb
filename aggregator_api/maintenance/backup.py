"""Backs up a running server: a snapshot of the database, every blob that it may name, and the server's key.

The order makes it whole: a blob is on disk before a row names it, and one that no row names any more is removed only
after a time. So the blobs are copied before the database and, those that are new, after it: what the copied database
names is there. Half-received updates are left out: their devices send them again.

Keys that give power over others (the operator's, the broker's authority) are left out unless they are asked for: a
backup lies in more places than a server.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from sqlalchemy.engine import URL

from aggregator_api.auth.api_keys import OPERATOR_FILE
from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import DATABASE, Settings
from aggregator_api.operations.health import LAST_BACKUP
from aggregator_api.storage.blobs import folder_of, shown_url, sync
from gaitway.errors import first_problem
from gaitway.files import private_file, private_folder

DUMP, BLOBS = "database.dump", "blobs"
DESCRIPTION = "backup.json"
"""A file in every backup, which describes and identifies it."""
AUTHORITY_KEYS = (OPERATOR_FILE, "authority/ca.key", "broker/authority/ca.key")
"""Files below the data folder that let their holder rule the server, or be a broker."""


class BackupResult(NamedTuple):
    """How much a backup wrote; blobs that an earlier one has left in the same folder are not written again."""

    blobs: int
    bytes: int
    keys: tuple[str, ...]


FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")]
"""Of a file that lies in the backup itself: no folder, nothing hidden, no way out."""
KeyFile = Annotated[str, Field(max_length=128)]
MAX_DESCRIPTION_BYTES = 1 << 16


class BackupDescription(BaseModel):
    """What is in a backup."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    backup_version: Literal[1] = 1
    database: Literal["sqlite", "postgresql"]
    made_at: float
    identity: FileName
    keys: Annotated[tuple[KeyFile, ...], Field(max_length=16)]

    @model_validator(mode="after")
    def _is_of_these(self) -> BackupDescription:
        if unknown := sorted(set(self.keys) - {self.identity, *AUTHORITY_KEYS}):
            raise ValueError(f"keys: {unknown[0]!r} is none of {self.identity}, {', '.join(AUTHORITY_KEYS)}")
        if self.identity in (DATABASE, DUMP, BLOBS, DESCRIPTION):
            raise ValueError(f"identity: {self.identity!r} is the name of another file of a backup")
        return self


def back_up(settings: Settings, out: Path, *, authority_keys: bool = False) -> BackupResult:
    """Back up a server, which may be running, into a folder that `restore` reads.

    Raises:
        ConfigError: for a database that is not there, or a blob store that has its own way of being backed up.
    """
    blobs, database = blob_folder(settings), _database(settings)
    private_folder(out)
    out.chmod(0o700)
    written = _copy_blobs(blobs, out)
    if database is None:
        _dump_database(settings.database, out / DUMP)
    else:
        _copy_database(database, out / DATABASE)
    written += _copy_blobs(blobs, out)
    keys = {settings.identity.name: settings.identity}
    if authority_keys:
        keys |= {name: settings.data_dir / name for name in AUTHORITY_KEYS}
    there = {name: path for name, path in keys.items() if path.is_file()}
    for name, path in there.items():
        copy_file(path, out / name)
    described = BackupDescription(
        database="postgresql" if database is None else "sqlite",
        made_at=time.time(),
        identity=settings.identity.name,
        keys=tuple(there),
    )
    _write(out / DESCRIPTION, described.model_dump_json(indent=2).encode() + b"\n")
    sync(out)
    with suppress(OSError):  # the backup is whole, whatever becomes of the note about it
        (settings.data_dir / LAST_BACKUP).touch(mode=0o600)
    return BackupResult(len(written), sum(written), tuple(there))


def read_description(folder: Path) -> BackupDescription:
    """Return what is in a backup.

    Raises:
        ConfigError: if the folder is none.
    """
    try:
        (folder / DESCRIPTION).lstat()
        with plain_file(folder, DESCRIPTION).open("rb") as file:
            return BackupDescription.model_validate_json(file.read(MAX_DESCRIPTION_BYTES))
    except OSError as error:
        raise ConfigError(
            f"{folder} is no backup: it has no {DESCRIPTION}, which `backup` writes last; a copy that was cut off has "
            "none either"
        ) from error
    except ValidationError as error:
        raise ConfigError(f"{folder / DESCRIPTION} is damaged: {first_problem(error)}") from error


def plain_file(folder: Path, name: str) -> Path:
    """Return a backup's own file of that name: who made the backup must not have its reader follow a link elsewhere.

    Raises:
        ConfigError: if it is missing, it or a folder on the way to it is a link, or it is no file of bytes.
    """
    path = folder
    for part in Path(name).parts:
        path = path / part
        if path.is_symlink():
            raise ConfigError(f"{path} is a link, and a backup has none; it was changed since it was made")
    if not path.exists():
        raise ConfigError(f"{path} is missing; the backup is not whole, or was changed since it was made")
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; the backup was changed since it was made")
    return path


def refuse_backup(folder: Path) -> None:
    """Keep a server from being started in a backup, where devices would neither train for it nor believe it.

    Raises:
        ConfigError: if the folder is a backup.
    """
    if (folder / DESCRIPTION).exists():
        raise ConfigError(
            f"{folder} is a backup; bring the server back with `python -m aggregator_api restore --from {folder} "
            "--data-dir ANOTHER`, which tells the devices that it was restored"
        )


def blob_folder(settings: Settings) -> Path:
    """Return the folder of a server's blobs.

    Raises:
        ConfigError: if they are in no folder.
    """
    folder = folder_of(settings.blobs)
    if folder is None:
        raise ConfigError(f"blobs at {shown_url(settings.blobs)} are no folder; copy them with the store's own means")
    return folder


def copy_file(source: Path, target: Path) -> int:
    """Copy a file whole, for its owner alone; returns its size in bytes."""
    private_folder(target.parent)
    fresh = target.with_name(f".{target.name}.new")
    private_file(fresh)
    shutil.copyfile(source, fresh)
    sync(fresh)
    fresh.replace(target)
    return target.stat().st_size


def _write(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    private_file(fresh)
    fresh.write_bytes(data)
    sync(fresh)
    fresh.replace(path)


def _copy_blobs(source: Path, out: Path) -> list[int]:
    """Copy the blobs that are not there yet; returns their sizes."""
    written = []
    for blob in sorted(source.glob("??/*")):
        target = out / BLOBS / blob.parent.name / blob.name
        try:
            if not target.exists() or target.stat().st_size != blob.stat().st_size:
                written.append(copy_file(blob, target))
        except FileNotFoundError:
            continue  # no row names it any more, and the server has removed it
    return written


def _database(settings: Settings) -> Path | None:
    path = settings.database_file
    if path is not None and not path.is_file():
        raise ConfigError(f"there is no database {path}; is this the server's data_dir?")
    return path


def _dump_database(database_url: URL, target: Path) -> None:
    fresh = target.with_name(f".{target.name}.new")
    private_file(fresh)
    dump(database_url, fresh)
    sync(fresh)
    fresh.replace(target)


def _copy_database(source: Path, target: Path) -> None:
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(fresh)) as copy:
        live.backup(copy)  # one consistent moment, write-ahead log included, while others keep writing
        found = copy.execute("PRAGMA integrity_check").fetchone()[0]
    if found != "ok":
        raise ConfigError(f"the database {source} is damaged: {found}; keep the last backup")
    sync(fresh)
    fresh.replace(target)


_PARAMETERS = {"sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT", "host": "PGHOST", "port": "PGPORT"}


def dump(url: URL, target: Path) -> None:
    """Write the database, as it is at one moment, into an existing file.

    Raises:
        ConfigError: if `pg_dump` is not here, or cannot.
    """
    _run("pg_dump", url, "--format=custom", "--no-owner", "--no-privileges", f"--file={target}")


def load(url: URL, source: Path) -> None:
    """Fill an empty database from what `dump` wrote, all or nothing.

    Raises:
        ConfigError: if `pg_restore` is not here, or cannot.
    """
    whole = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
    _run("pg_restore", url, *whole, f"--dbname={url.database}", str(source))


def _run(program: str, url: URL, *words: str) -> None:
    environment = {
        "PGHOST": url.host,
        "PGPORT": url.port,
        "PGUSER": url.username,
        "PGPASSWORD": url.password,
        "PGDATABASE": url.database,
        **{_PARAMETERS[name]: value for name, value in url.query.items() if name in _PARAMETERS},
    }
    given = {name: str(value) for name, value in environment.items() if value is not None}
    command = [_place_of(program), *words]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = re.sub(r"\s+", " ", done.stderr).strip()
        raise ConfigError(f"{program} of {url.render_as_string()} failed: {text[:1000]}")


def _place_of(program: str) -> str:
    """Find a program on the path, or where Debian keeps those of each version: the newest reads all older ones."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: _version_of(path.parent.name))
    places = [str(folder) for folder in reversed(folders)]
    found = shutil.which(program, path=os.pathsep.join([*places, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise ConfigError(
            f"{program} is not on this machine; install PostgreSQL's client programs (Debian: postgresql-client), or "
            "dump and load the database yourself and begin a new epoch with `new-epoch`"
        )
    return found


def _version_of(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0
