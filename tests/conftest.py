"""What every test may use: the folder of real recordings, one thread per process, and paho without its warnings."""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Generator, Iterator
from datetime import date
from pathlib import Path

# Before torch or numpy is imported, and inherited by the processes that tests start: sums in one order on any machine.
os.environ["OMP_NUM_THREADS"] = "1"
# Devices that tests start share a busy machine, and train on it whatever its load, battery and temperature.
os.environ["GAITWAY_EDGE_CONDITIONS_IGNORE"] = '["all"]'
# A federation's program takes its server some ten seconds of a core, which tests of other things do without.
os.environ["GAITWAY_PROGRAMS"] = "false"

# The windows of real recordings stay prepared from run to run; the user's own are left alone.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / ".cache")

# One day in every process of a run that midnight falls into.
os.environ["GAITWAY_TODAY"] = os.environ.get("GAITWAY_TODAY", str(date.today().toordinal()))

import pytest
from hypothesis import HealthCheck, settings

from tests.browser import browser as browser
from tests.browser import context as context
from tests.browser import faults as faults
from tests.browser import page as page
from tests.browser import screenshots as screenshots
from tests.gaitway.failing_work import restarts_at_once as restarts_at_once

# a busy machine is slow, which says nothing about the code; cases are drawn anew in each run, so a quarter as many do
settings.register_profile("gaitway", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gaitway")

SLOW_S = 3600
"""What a slow test has at the least: it is run by hand, and on a busy machine minutes become tens of minutes."""

TURNS = 4
"""In how many days `make test-ci` comes through its tests: all of them at once take half an hour of two cores."""

REPOSITORY = Path(__file__).resolve().parent.parent
ODD_FOLDER = "Ä b#c%20?d"
"""A name with what URLs, shells, patterns and databases' addresses read as something else."""
READING_PATHS = tuple(
    REPOSITORY / "tests" / part
    for part in (
        *(f"aggregator_api/{part}" for part in ("cli", "db", "observability", "retention", "storage")),
        *(f"edge_agent/{part}" for part in ("cli", "config", "storage")),
        *("export", "gaitway", "har_pipeline", "sim/cli", "sim/results"),
    )
)
"""Tests of what reads a program's paths: they work in a folder of that name."""
DATA = Path(os.environ.get("GAITWAY_DATA") or REPOSITORY.parent / "shared" / "data")


class _Paired(socket.socket):
    """One end of a pair that closes itself without a word."""

    def __del__(self) -> None:
        self.close()


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = (_Paired(fileno=end.detach()) for end in socket.socketpair())
    for end in (ours, theirs):
        end.setblocking(False)
    return ours, theirs


@pytest.fixture(scope="session", autouse=True)
def paho_closes_its_pairs() -> Iterator[None]:
    """Let the pair by which paho wakes its thread go in silence.

    paho closes it when a client is finalized. A client whose callbacks refer to it is garbage in a cycle, where a
    socket may be finalized first: a ResourceWarning in whatever test runs then.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paho.mqtt.client._socketpair_compat", _pair)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """Let os.fsync return at once: no test cuts the power, and what a killed process wrote is in the system's memory.

    A file that is closed is still an error. Programs that a test starts wait for the disk as ever.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", os.fstat)
        yield


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return an empty folder, with an odd name where programs read their paths."""
    if not any(request.path.is_relative_to(part) for part in READING_PATHS):
        return tmp_path
    folder = tmp_path / ODD_FOLDER
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def umask_as_before() -> Iterator[None]:
    """Take back the umask that a command has set, which a test has run in its own process."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def gaitway_data() -> Path:
    """Folder of real recordings: GAITWAY_DATA, else ../shared/data beside the repository."""
    if not DATA.is_dir():
        pytest.skip(f"no recordings: {DATA} is not a folder; set GAITWAY_DATA")
    return DATA


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, nor later what was loaded: a sixth of the time that it takes.

    Then a fifth as often as Python would, which is three hundredths of the tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a worker that has run its tests end in peace.

    execnet interrupts one that takes over five seconds to free what it has loaded, and Python prints where.
    """
    if hasattr(session.config, "workerinput"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make test-ci` leave to other days what other days run."""
    words = f"Run every {TURNS}th file of tests: `today`, which the date chooses, or from 0; `all` runs all."
    parser.addoption("--turn", default="all", choices=["all", "today", *map(str, range(TURNS))], help=words)


def _turn_of(config: pytest.Config) -> int | None:
    said = config.getoption("--turn")
    if said == "all":
        return None
    return int(os.environ["GAITWAY_TODAY"]) % TURNS if said == "today" else int(said)


@pytest.hookimpl(trylast=True)  # after -m and -k: the files of what they leave are divided
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out files of other turns; begin with what may take longest by its own word; give slow tests time."""
    turn = _turn_of(config)
    if turn is not None:
        files = [*dict.fromkeys(item.path for item in items)]
        chosen = set(files[turn::TURNS])
        left = [item for item in items if item.path in chosen or item.get_closest_marker("daily") is not None]
        config.hook.pytest_deselected(items=sorted({*items} - {*left}, key=lambda item: item.nodeid))
        items[:] = left
    items.sort(key=_allowed_s, reverse=True)  # stable: all others keep their order
    for item in items:
        if item.get_closest_marker("slow") is not None and _allowed_s(item) < SLOW_S:
            item.add_marker(pytest.mark.timeout(SLOW_S), append=False)


def _allowed_s(item: pytest.Item) -> float:
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0]) if limit is not None and limit.args else 0.0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was learned, also where it lies in its band: a slow decline is seen by nobody else."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    lines = [value for report in reports for name, value in report.user_properties if name == "score"]
    if lines:
        terminalreporter.section("macro-F1 that federations reached, in percent")
        for line in sorted(set(lines)):
            terminalreporter.write_line(line)
