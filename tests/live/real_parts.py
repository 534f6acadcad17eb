"""The real parts for tests: Mosquitto with the generated configuration, and PostgreSQL; each on a free loopback port.

Both refuse to be root, or warn about it: PostgreSQL runs as `postgres` or `nobody` where the tests are root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import httpx
import pytest
from sqlalchemy import NullPool, create_engine

from aggregator_api.core.settings import Settings, load
from aggregator_api.storage.db.database import Database
from aggregator_api.transport.mqtt.mosquitto import folders
from aggregator_api.transport.mqtt.mosquitto.dynamic_security import DynamicSecurity
from edge_agent.storage.credentials import Login
from tests.ports import free_port

SYSTEM = f"/usr/sbin{os.pathsep}{os.environ.get('PATH', '')}"
START_S = 120.0
PATIENT = ("-t", "600")
"""How long `pg_ctl` waits; by itself it gives up after a minute."""


def bearer(key_file: Path) -> Callable[[httpx.Request], httpx.Request]:
    """Return what shows the key in a file, once a server has written it, with every request of a client."""

    def show(request: httpx.Request) -> httpx.Request:
        if key_file.is_file():
            request.headers["Authorization"] = f"Bearer {key_file.read_text().strip()}"
        return request

    return show


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path, *, within_s: float = START_S) -> None:
    """Wait until a program listens; one of ours imports torch first, which takes long on a busy machine."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        else:
            return


class Mosquitto:
    """A Mosquitto that runs with what `broker-config` wrote; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._binary = shutil.which("mosquitto", path=SYSTEM)
        if self._binary is None:
            pytest.skip("there is no mosquitto on this machine")
        self.folder, self.port = folder, free_port()
        self.log = folder / "mosquitto.log"
        root = "root" if os.geteuid() == 0 else None
        folders.create(
            folders.Installation(
                folder / "broker", ("127.0.0.1", "localhost"), self.port, "127.0.0.1", plugin_path(), 2, root
            )
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def ca(self) -> Path:
        """The authority that clients trust."""
        return self.folder / "broker" / "ca.pem"

    @property
    def server_toml(self) -> Path:
        """The server's settings for this broker."""
        return self.folder / "broker" / "server" / "server.toml"

    def settings(self) -> Settings:
        """Return the server's settings for this broker."""
        return load(self.server_toml)

    def accounts(self) -> DynamicSecurity:
        """Return who gives devices their accounts here."""
        login = self.settings().broker_admin_login
        assert login is not None
        return DynamicSecurity("127.0.0.1", self.port, login)

    def start(self) -> None:
        """Run it; returns once it listens."""
        configuration = str(self.folder / "broker" / "broker" / "mosquitto.conf")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([str(self._binary), "-c", configuration], stdout=log, stderr=log)
        wait_for_port(self.port, self._process, self.log)

    def stop(self, *, kill: bool = False) -> None:
        """End it, with its data saved, or with kill -9."""
        if self._process is not None:
            (self._process.kill if kill else self._process.terminate)()
            self._process.wait(START_S)
            self._process = None


def plugin_path() -> PurePosixPath:
    """Find the dynamic security plugin, or skip the test."""
    for place in ("/usr/lib", "/usr/local/lib"):
        for found in Path(place).glob("**/mosquitto_dynamic_security.so"):
            return PurePosixPath(found)
    pytest.skip("Mosquitto's dynamic security plugin is not on this machine")


@contextmanager
def mosquitto(folder: Path) -> Iterator[Mosquitto]:
    """Run a Mosquitto over a folder."""
    broker = Mosquitto(folder)
    try:
        yield broker
    finally:
        broker.stop()


class Given:
    """A device's name and password that stay as they are."""

    def __init__(self, who: Login) -> None:
        self.who, self.claim_problem = who, ""

    def login(self) -> Login:
        return self.who

    def taken(self) -> None:
        """Nothing follows from it."""

    def login_refused(self, who: Login) -> bool:
        return False


class Postgres:
    """A PostgreSQL cluster of its own; every test gets a fresh database in it.

    Databases are copies of one that is migrated once, which takes a tenth of the time.
    """

    def __init__(self, folder: Path, programs: Path, user: str) -> None:
        self.folder, self._programs, self._user = folder, programs, user
        self.port = free_port()
        self._made = 0

    def start(self) -> None:
        """Make the cluster and run it; durability is off, as a test's machine does not lose power."""
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", "gaitway", "-A", "trust", "-N", "-E", "UTF8", "--no-locale")
        self.resume()

    def resume(self) -> None:
        """Run it, or run it again after `stop`."""
        data = str(self.folder / "data")
        listen = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c fsync=off -c shared_buffers=16MB"
        self._run("pg_ctl", "-D", data, "-w", *PATIENT, "-l", str(self.folder / "log"), "-o", listen, "start")

    def stop(self) -> None:
        """End it without ceremony."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", *PATIENT, "stop")

    def new_database(self, *, empty: bool = False) -> str:
        """Make a database with the newest schema, or an empty one, and return its URL."""
        if self._made == 0:
            self._sql("CREATE DATABASE migrated")
            database = Database(self.url("migrated"))
            database.migrate()
            database.close()
        self._made += 1
        name = f"test{self._made}"
        self._sql(f"CREATE DATABASE {name} TEMPLATE {'template0' if empty else 'migrated'}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever still uses it."""
        self._sql(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def url(self, name: str) -> str:
        """Return a database's URL."""
        return f"postgresql+psycopg://gaitway@127.0.0.1:{self.port}/{name}"

    def _sql(self, statement: str) -> None:
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def _run(self, program: str, *words: str) -> None:
        command = [str(self._programs / program), *words]
        user = self._user if os.geteuid() == 0 else None
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", user=user, check=False)
        assert done.returncode == 0, done.stderr


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a PostgreSQL in a short-lived folder that its user may enter."""
    programs = _postgres_programs()
    user = _unprivileged()
    with tempfile.TemporaryDirectory(prefix="gaitway-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, user)
        running = Postgres(folder, programs, user)
        running.start()
        try:
            yield running
        finally:
            running.stop()


def _postgres_programs() -> Path:
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places:
        pytest.skip("there is no PostgreSQL on this machine")
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    return places[-1]


def _unprivileged() -> str:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
