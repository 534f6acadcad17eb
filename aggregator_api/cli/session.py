"""What commands on the server's database share: options, a session, the audit log, and error messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from aggregator_api.core.errors import BrokerError, ConfigError, NotFoundError, UnavailableError
from aggregator_api.core.settings import ADDRESS_FILE, Settings, load
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.database import Database, opened
from aggregator_api.storage.db.models import FederationRow
from gaitway.command_line import CommandLine
from gaitway.errors import ExitCode, GaitwayError, first_problem
from gaitway.terminal import Console, print_error

DAY_S = 24 * 3600

FederationOption = Annotated[str, typer.Option("--federation", help="The federation.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file of settings, overridden by the environment, such as GAITWAY_PORT (default: none).",
    ),
]
DataOption = Annotated[Path | None, typer.Option("--data-dir", help="The server's folder (default runs/server).")]


class ServerPlace(NamedTuple):
    """A command's server: its folder and its settings."""

    data_dir: DataOption = None
    config: ConfigOption = None

    def settings(self, **given: Any) -> Settings:
        """Read the settings; `given` ones override the file's.

        Raises:
            ConfigError: if they can't be read or are wrong.
        """
        return load(self.config, data_dir=self.data_dir, **given)

    def url(self, port: int | None) -> str:
        """Return the running server's address: at `port`, else where it has noted, else that of the settings."""
        settings = self.settings(port=port)
        with suppress(OSError, ValueError):
            if port is None and (noted := (settings.data_dir / ADDRESS_FILE).read_text("ascii").strip()):
                return noted
        return settings.own_url


HERE = ServerPlace()


def new_app(about: str = "") -> CommandLine:
    """Make a group of commands."""
    return CommandLine(help=about or None, rich_markup_mode="markdown")


@contextmanager
def cli_errors() -> Iterator[None]:
    """End the program with an error message for bad input or a bad state."""
    try:
        yield
    except ValidationError as error:
        raise fail(first_problem(error)) from error
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise fail(f"can't use the database: {reason}; check database_url and the password") from error
    except (GaitwayError, OSError) as error:
        raise fail(str(error)) from error


@contextmanager
def database_of(settings: Settings) -> Iterator[Database]:
    """Open the database of a server, which may be running, for a command."""
    database = opened(settings)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def writing(place: ServerPlace) -> Iterator[Session]:
    """Open a transaction on the server's database; errors end the program with a message."""
    with cli_errors(), database_of(place.settings()) as database, database.write() as session:
        yield session


@contextmanager
def reading(place: ServerPlace) -> Iterator[Session]:
    """Open a read-only session; errors end the program with a message."""
    with cli_errors(), database_of(place.settings()) as database, database.read() as session:
        yield session


def note(session: Session, action: str, *, federation: str = "", device: str = "", detail: str = "") -> None:
    """Record a command in the audit log, with the user who runs it."""
    actor = audit.operating_user()
    audit.record(session, action, actor=actor, federation=federation, device=device, detail=detail)


def get_federation(session: Session, name: str) -> FederationRow:
    """Return a federation.

    Raises:
        NotFoundError: if there is none of that name.
    """
    from aggregator_api.storage.db import repositories  # torch takes a second, and --help doesn't need it

    row = repositories.find_federation(session, name)
    if row is None:
        raise NotFoundError(f"there is no federation {name[:80]!r} on this server")
    return row


def revoke_accounts(settings: Settings, federation: str, devices: Iterable[str], *, done: str, remedy: str) -> None:
    """Delete devices' accounts at the broker, after their rows.

    Raises:
        UnavailableError: if the broker fails; it says what is nevertheless `done`, and the `remedy`.
    """
    from aggregator_api.devices.service import username
    from aggregator_api.transport.mqtt.mosquitto.dynamic_security import accounts_of

    try:
        broker = accounts_of(settings)
        for device in devices:
            broker.revoke(username(federation, device))
    except BrokerError as error:
        raise UnavailableError(f"{done}, but the broker did not delete every account: {error}; {remedy}") from error


def fail(words: str) -> typer.Exit:
    """Print an error, and return the exception that ends the program."""
    print_error(words)
    return typer.Exit(ExitCode.REFUSED)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows with a header."""
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console(soft_wrap=True).print(table)


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], formats: Mapping[str, Callable[[Any], str]]
) -> None:
    """Print the keys `columns` of rows as a table."""
    print_table([*columns.values()], [[formats.get(key, str)(row[key]) for key in columns] for row in rows])


def date(when: float | None) -> str:
    """Return a time for a table, in UTC."""
    return "–" if when is None else datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M")


def moment(text: str, now: float) -> float:
    """Parse a time: `2026-11-01`, `2026-11-01T08:30`, both in UTC, or an age: `90m`, `12h`, `7d`.

    Raises:
        ConfigError: if it is none of them.
    """
    units = {"m": 60, "h": 3600, "d": DAY_S}
    if text[-1:] in units and text[:-1].isdecimal():
        return now - int(text[:-1]) * units[text[-1]]
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} isn't a time; give 2026-11-01, 2026-11-01T08:30 (UTC), or 90m, 12h, 7d") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
