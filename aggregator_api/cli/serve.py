"""Commands that run the server, and those on its database and documents as a whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from aggregator_api.cli.session import HERE, ServerPlace, cli_errors, database_of, fail
from aggregator_api.core.errors import ConfigError
from aggregator_api.core.ports import is_loopback, require_free
from aggregator_api.core.settings import Settings
from aggregator_api.storage.db.database import Database
from aggregator_api.transport.mqtt.embedded_broker import BrokerThread, LocalAccounts, run_broker
from aggregator_api.transport.mqtt.mosquitto.roles import SERVER_ROLE
from gaitway.logs import JsonLines, TextLines

HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on (default 127.0.0.1).")]


def serve(
    host: HostOption = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of the REST interface (default 8080).")] = None,
    place: ServerPlace = HERE,
    broker_host: Annotated[str | None, typer.Option("--broker-host", help="MQTT broker (default 127.0.0.1).")] = None,
    broker_port: Annotated[int | None, typer.Option("--broker-port", help="The broker's port (default 1883).")] = None,
    embedded_broker: Annotated[
        bool | None,
        typer.Option(
            "--embedded-broker/--no-embedded-broker",
            help="Run the broker inside the server, on loopback (default off).",
        ),
    ] = None,
) -> None:
    """Run the server until SIGTERM or Ctrl-C; it resumes where it stopped, and waits for its broker.

    Every request needs a key. The first start writes an operator's key to `operator.key` in the data folder, and
    `login-link` opens the operator's pages without typing it.

    Example, with the small broker for trials: `python -m aggregator_api serve --embedded-broker --data-dir runs/server`
    """
    from aggregator_api.http.serving import run_server  # torch takes a second, and --help doesn't need it
    from aggregator_api.maintenance.backup import refuse_backup

    with cli_errors():
        settings = place.settings(
            host=host, port=port, broker_host=broker_host, broker_port=broker_port, embedded_broker=embedded_broker
        )
        refuse_backup(settings.data_dir)
        if settings.plain_http:
            require_free(settings.host, settings.port)
        if settings.tls_cert_file is not None:
            require_free(*settings.https_address, "--port" if settings.https_port is None else "https_port")
        if settings.embedded_broker:
            if not is_loopback(settings.broker_host):
                words = f"the embedded broker has no TLS, so it can't listen on {settings.broker_host}; use Mosquitto"
                raise ConfigError(words)
            require_free(settings.broker_host, settings.broker_port, "--broker-port")
    _configure_log(settings.log_level, settings.log_format)
    try:
        with _embedded_broker(settings) as (settings, accounts):
            run_server(settings, accounts)
    except ConfigError as error:  # any other error that ends the server is shown with its traceback
        raise fail(str(error)) from error


def broker(
    host: Annotated[str, typer.Option("--host", help="Loopback address, such as ::1.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65_535, help="Port of MQTT.")] = 1883,
) -> None:
    """Run a small MQTT broker for demos and tests: anonymous, in memory; production uses Mosquitto.

    Example: `python -m aggregator_api broker --port 1883`
    """
    with cli_errors():
        if not is_loopback(host):
            raise ConfigError(
                f"this broker has no passwords, so it can't listen on {host}; use Mosquitto (broker-config)"
            )
        require_free(host, port)
        _configure_log("WARNING", "text")
        asyncio.run(run_broker(host, port, lambda: typer.echo(f"MQTT broker on {host}:{port}")))


def migrate(place: ServerPlace = HERE) -> None:
    """Migrate the database to this program's schema; `serve` does this too.

    Example: `python -m aggregator_api migrate --data-dir runs/server`
    """
    with cli_errors():
        database = Database(place.settings().database)
        database.migrate()
        database.close()
    typer.echo(f"{database.name} is up to date")


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    place: ServerPlace = HERE,
) -> dict[str, int]:
    """Remove unreferenced blobs that are older than `gc_grace_s`; the server does this too.

    Example: `python -m aggregator_api gc --dry-run --data-dir runs/server`
    """
    from aggregator_api.storage.blobs import BlobStore
    from aggregator_api.storage.garbage_collection import collect

    with cli_errors():
        settings = place.settings()
        with database_of(settings) as database:
            found = collect(database, BlobStore(settings.blobs), grace_s=settings.gc_grace_s, dry_run=dry_run)
    typer.echo(f"{found.blobs} blobs of {found.size:,} bytes {'would be' if dry_run else 'were'} removed")
    return {"blobs": found.blobs, "bytes": found.size}


OutOption = Annotated[Path | None, typer.Option("--out", help="File to write (default: the terminal).")]


def openapi(out: OutOption = None) -> None:
    """Print the OpenAPI document of the REST interface, identical to docs/openapi.json.

    Example: `python -m aggregator_api openapi --out docs/openapi.json`
    """
    from aggregator_api.http import app as application  # torch takes a second, and --help doesn't need it
    from aggregator_api.http.api.openapi import text

    _write(text(application.create_app(Settings())), out)


def asyncapi(out: OutOption = None) -> None:
    """Print the AsyncAPI document of the devices' protocol, identical to docs/asyncapi.json.

    Example: `python -m aggregator_api asyncapi --out docs/asyncapi.json`
    """
    from aggregator_api.transport.asyncapi import text

    _write(text(), out)


def _write(document: str, out: Path | None) -> None:
    if out is None:
        typer.echo(document, nl=False)
        return
    with cli_errors():
        out.write_text(document)


@contextmanager
def _embedded_broker(settings: Settings) -> Iterator[tuple[Settings, LocalAccounts | None]]:
    """Run the broker if it is enabled; it has accounts if devices must enrol."""
    if not settings.embedded_broker:
        yield settings, None
        return
    accounts = None
    if settings.enrolled_only:
        name = settings.mqtt_username or SERVER_ROLE
        accounts = LocalAccounts(name)
        login = {"mqtt_username": name, "mqtt_password": SecretStr(accounts.server_password)}
        settings = settings.model_copy(update=login)
    thread = BrokerThread(settings.broker_host, settings.broker_port, accounts)
    thread.start()
    try:
        yield settings, accounts
    finally:
        thread.stop()


def _configure_log(level: str, kind: str) -> None:
    """Log to standard error: this package from `level` up, all others from warnings up."""
    handler = logging.StreamHandler()
    text = TextLines("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if kind == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("aggregator_api").setLevel(level.upper())
