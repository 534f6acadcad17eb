"""What the commands share: the config option, error messages, and a device's state and windows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.config.settings import Config, load
from edge_agent.errors import AgentError, ConfigError, LabelError
from edge_agent.storage import state_store, window_store
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import WindowStore
from gaitway.errors import ExitCode
from gaitway.terminal import print_error

ConfigOption = Annotated[Path, typer.Option(help="The device's TOML file; write one with example-config.")]


@contextmanager
def cli_errors() -> Iterator[None]:
    """Turn an expected error into a red line and an exit code; see `refused`."""
    try:
        yield
    except (AgentError, OSError) as error:
        raise refused(error) from None


def refused(error: AgentError | OSError) -> typer.Exit:
    """Print an error and end the program; the exit code is 2 for a wrong setting, file or argument, else 1."""
    print_error(str(error))
    return typer.Exit(ExitCode.REFUSED if isinstance(error, ConfigError | LabelError) else ExitCode.FAILED)


@contextmanager
def open_state(config: Path) -> Iterator[tuple[Config, StateStore]]:
    """Open the stored state of a config file's device; works while its agent runs.

    Raises:
        AgentError: if it has not run yet.
    """
    settings = load(config)
    folder = settings.agent.data_dir
    if not (folder / state_store.FILE_NAME).is_file():
        raise AgentError(f"{folder} contains no device yet; start it with `python -m edge_agent run`")
    with closing(StateStore(folder)) as store:
        yield settings, store


@contextmanager
def open_windows(config: Path) -> Iterator[WindowStore]:
    """Open the windows of a config file's device; works while its agent runs.

    Raises:
        AgentError: if there are none yet.
    """
    folder = load(config).agent.data_dir
    if not (folder / window_store.FILE_NAME).is_file():
        raise AgentError(f"{folder} contains no windows yet; start the device with `python -m edge_agent run`")
    with closing(WindowStore(folder)) as store:
        yield store


YEAR_2000_S = 946_684_800.0
NO_DATE = "no date"
UNITS = {"": 60.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
EXPECTED = "expected 14:30, 14:30:15, 2026-11-21T14:30, or seconds since 1970"


def moment(text: str, now: datetime) -> float:
    """Return seconds since 1970; the default date is today, and the default zone is the device's.

    Raises:
        LabelError: if it isn't a time.
    """
    text = text.strip()
    if re.fullmatch(r"\d{9,11}(\.\d+)?", text):
        return float(text)
    if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
        text = f"{now.date().isoformat()}T{text.zfill(len(text) + (text.index(':') == 1))}"
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise LabelError(f"{text!r} isn't a time; {EXPECTED}") from error
    return found.timestamp()


def duration_s(text: str) -> float:
    """Return seconds of 90s, 10m, 2h, 1d; a bare number is minutes.

    Raises:
        LabelError: if it is none of these.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d|)\s*", text)
    if not match:
        raise LabelError(f"{text!r} isn't a duration; expected 90s, 10m, 2h or 1d")
    return float(match[1]) * UNITS[match[2]]


def shown(time_s: float) -> str:
    """Format a time for display, in this device's time zone; one before 2000 isn't a date."""
    if time_s < YEAR_2000_S:
        return NO_DATE
    return datetime.fromtimestamp(time_s).isoformat(sep=" ", timespec="seconds")
