"""What an operator gets wrong is answered by one sentence, with what to do, and exit code 2; never by a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from typer.testing import CliRunner

from aggregator_api.cli.app import app
from aggregator_api.core.settings import sqlite_url
from tests.live.real_parts import Postgres
from tests.ports import free_port


def refused(*words: str, said: str) -> str:
    """Run a command in this process, and check that it ends as it should; returns its only line."""
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    told = " ".join(result.stderr.split())
    assert (result.exit_code, told.startswith("error: "), said in told) == (2, True, True), result.output
    assert "Traceback" not in result.output
    assert told.count("error: ") == 1
    return told


@pytest.fixture
def start(tmp_path: Path) -> list[str]:
    return ["serve", "--port", str(free_port()), "--data-dir", str(tmp_path / "data")]


@pytest.mark.parametrize("command", ["serve", "migrate", "keys list", "tokens create --federation f", "gc"])
def test_a_data_dir_that_is_a_file(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    port = ["--port", str(free_port())] if command == "serve" else []
    told = refused(*command.split(), "--data-dir", str(tmp_path / "file"), *port, said=str(tmp_path / "file"))
    assert "is a file" in told or "is this the server's data_dir" in told


def test_a_data_dir_that_cannot_be_made(start: list[str]) -> None:
    refused(*start[:-1], "/proc/gaitway", said="mount what is missing")


@pytest.mark.parametrize("command", ["keys list", "keys create --name n --scope read", "tokens create --federation f"])
def test_a_wrong_folder_gets_no_new_database(command: str, tmp_path: Path) -> None:
    refused(*command.split(), "--data-dir", str(tmp_path / "typo"), said="is this the server's data_dir")
    assert not (tmp_path / "typo").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_data_dir_of_another_user(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    code = f"""
import os; from pathlib import Path; from aggregator_api.storage.outages import require_folder; os.setuid(65534)
require_folder(Path({str(folder)!r}), "data_dir")"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "cannot be written by the user nobody" in done.stderr or "cannot be made" in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("DATABASE_URL", "gaitway", "database_url is not a URL; expected postgresql+psycopg://"),
        ("DATABASE_URL", "mysql://u:secret@h/d", "'mysql', which is not supported"),
        ("DATABASE_URL", "postgresql+psycopg://u:secret@127.0.0.1:1/d", "is PostgreSQL running"),
        ("DATABASE_URL", "postgresql+psycopg://u:secret@gaitway.invalid/d", "check the host in database_url"),
        ("BLOB_URL", "nosuch://models", "blob_url nosuch://models"),
        ("BLOB_URL", "file:///proc/gaitway/models", "check blob_url"),
        ("MQTT_CA_FILE", "none.pem", "mqtt_ca_file"),
        ("MQTT_CA_FILE", "notes.txt", "mqtt_ca_file"),
        ("IDENTITY_FILE", "notes.txt", "restore it from a backup"),
    ],
)
def test_a_wrong_setting(
    variable: str, value: str, said: str, start: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("no PEM")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"GAITWAY_{variable}", value)
    assert "secret" not in refused(*start, said=said)


def test_a_password_file_that_is_missing(start: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAITWAY_MQTT_USERNAME", "server")
    monkeypatch.setenv("GAITWAY_MQTT_PASSWORD_FILE", "/none")
    refused(*start, said="the password in /none cannot be read")


@pytest.mark.parametrize(("content", "said"), [(None, "there is no"), ("port 8080", "cannot be read as TOML")])
def test_a_wrong_config_file(content: str | None, said: str, tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    if content is not None:
        config.write_text(content)
    refused("serve", "--config", str(config), said=said)


def test_a_database_that_is_none_or_of_a_newer_program(start: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    database = folder / "gaitway.sqlite3"
    database.write_bytes(b"no database" * 1000)
    refused(*start, said="restore it from a backup")
    database.unlink()
    assert CliRunner().invoke(app, ["migrate", "--data-dir", str(folder)]).exit_code == 0
    engine = create_engine(sqlite_url(database))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    refused(*start, said="is of a newer version of this program")


@pytest.mark.parametrize(
    ("user", "database", "said"),
    [("nobody", "postgres", "does not exist"), ("gaitway", "nowhere", "create it (docs/operations.md")],
)
def test_postgresql_says_what_is_wrong(
    user: str, database: str, said: str, cluster: Postgres, start: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"postgresql+psycopg://{user}@127.0.0.1:{cluster.port}/{database}"
    monkeypatch.setenv("GAITWAY_DATABASE_URL", url)
    refused(*start, said=said)
    refused("keys", "list", said=said)


@pytest.fixture
def guarded(cluster: Postgres) -> Iterator[str]:
    """The database as a user who needs a password, which is in no environment and no file."""
    rules = cluster.folder / "data" / "pg_hba.conf"
    before, admin = rules.read_text(), create_engine(cluster.url("postgres"), isolation_level="AUTOCOMMIT")
    rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{before}")
    with admin.connect() as connection:
        connection.execute(text("CREATE ROLE guarded LOGIN PASSWORD 'right'"))
        connection.execute(text("SELECT pg_reload_conf()"))
    yield f"127.0.0.1:{cluster.port}/postgres"
    rules.write_text(before)
    with admin.connect() as connection:
        connection.execute(text("DROP ROLE guarded"))
        connection.execute(text("SELECT pg_reload_conf()"))
    admin.dispose()


@pytest.mark.parametrize(
    ("password", "said"),
    [(":wrong", "password authentication failed for user"), ("", "no password supplied")],
)
def test_postgresql_with_a_wrong_password_or_none(
    password: str, said: str, guarded: str, start: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAITWAY_DATABASE_URL", f"postgresql+psycopg://guarded{password}@{guarded}")
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    for command in (start, ["keys", "list"], ["migrate"]):
        told = refused(*command, said=said)
        assert "PGPASSFILE" in told
        assert "wrong" not in told.replace("what is wrong", "")


@pytest.mark.parametrize("words", [("broker", "--host"), ("serve", "--embedded-broker", "--broker-host")])
def test_the_broker_of_trials_listens_on_loopback_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("GAITWAY_DATA_DIR", str(tmp_path))
    refused(*words, "0.0.0.0", said="it can't listen on 0.0.0.0; use Mosquitto")
