"""PostgreSQL's own programs, `pg_dump` and `pg_restore`, asked without a password on their command line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from sqlalchemy.engine import URL

from aggregator_api.core.errors import ConfigError

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
