"""`python -m aggregator_api broker-config`, `broker-passwords` and `server-certificate`."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

import typer
from sqlalchemy.exc import SQLAlchemyError

from aggregator_api.cli.session import HERE, ServerPlace, cli_errors, database_of, note, writing
from aggregator_api.core.errors import AggregatorError
from aggregator_api.transport.mqtt.mosquitto import folders
from aggregator_api.transport.mqtt.mosquitto.folders import Limits
from gaitway.terminal import print_warning

OutOption = Annotated[
    Path, typer.Option("--out", help="Folder for the authority, the broker's files and the server's.")
]


class InstallationOptions(NamedTuple):
    """Options of the broker's files."""

    out: OutOption
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Name or address that clients connect to; repeatable. The server uses the first."),
    ] = None
    port: Annotated[int, typer.Option("--port", min=1, max=65_535, help="Port of MQTT over TLS.")] = 8883
    bind: Annotated[str, typer.Option("--bind", help="Address to listen on (default: all).")] = ""
    plugin: Annotated[
        str, typer.Option("--plugin", help="Path of the dynamic security plugin on the broker's machine.")
    ] = str(folders.PLUGIN)
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long the certificate is valid.")] = 397
    user: Annotated[
        str | None,
        typer.Option("--user", help="User that Mosquitto switches to when started as root (default: Mosquitto's own)."),
    ] = None
    broker_dir: Annotated[
        str | None,
        typer.Option(
            "--broker-dir",
            help="Path of OUT/broker as the broker sees it, such as in a container (default: OUT/broker).",
        ),
    ] = None
    server_dir: Annotated[
        str | None, typer.Option("--server-dir", help="Path of OUT/server as the server sees it (default: OUT/server).")
    ] = None
    connections: Annotated[int, typer.Option("--max-connections", min=1, help="Maximum number of clients.")] = (
        Limits.connections
    )
    memory: Annotated[
        int,
        typer.Option(
            "--memory-mb", min=0, help="Value of memory_limit; 0 omits it, because Mosquitto 2.0.11 fails with it."
        ),
    ] = Limits.memory_bytes >> 20

    def installation(self) -> folders.Installation:
        """Describe the files to write."""
        return folders.Installation(
            self.out,
            tuple(self.host or ("localhost", "127.0.0.1")),
            self.port,
            self.bind,
            PurePosixPath(self.plugin),
            self.days,
            self.user,
            PurePosixPath(self.broker_dir) if self.broker_dir else None,
            PurePosixPath(self.server_dir) if self.server_dir else None,
            Limits(connections=self.connections, memory_bytes=self.memory << 20),
        )


def broker_config(
    options: InstallationOptions,
    renew: Annotated[
        bool, typer.Option("--renew", help="Only issue a new certificate from the existing authority.")
    ] = False,
) -> None:
    """Write a Mosquitto configuration with TLS, passwords and access rules, and the server's settings for it.

    Example: `python -m aggregator_api broker-config --out broker --host mqtt.example.org`, then
    `mosquitto -c broker/broker/mosquitto.conf` and `python -m aggregator_api serve --config broker/server/server.toml`.
    Devices need `broker/ca.pem`.
    """
    wanted = options.installation()
    with cli_errors():
        (folders.renew if renew else folders.create)(wanted)
    if renew:
        typer.echo(f"{wanted.broker / 'server.pem'} is new; send Mosquitto SIGHUP to use it")
    else:
        typer.echo(f"broker: {wanted.broker / 'mosquitto.conf'}")
        typer.echo(f"server: {wanted.server / 'server.toml'}")
        typer.echo(f"devices: {options.out / 'ca.pem'}; keep {options.out / 'authority' / 'ca.key'} off both machines")


def server_certificate(
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder from `broker-config`, or a new one, in which an authority is made too."),
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="Name or address that devices and browsers use; repeatable (default: the existing certificate's "
            "names).",
        ),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long the certificate is valid.")] = 397,
) -> None:
    """Write a certificate for HTTPS in `serve`, signed by the installation's authority.

    The same command renews it; a running server uses the new certificate within a minute.

    Example: `python -m aggregator_api server-certificate --out broker --host gaitway.example --host 192.0.2.7`
    """
    with cli_errors():
        made = folders.issue_for_server(out, tuple(host or ()), days=days)
    typer.echo(f"for {', '.join(made.hosts)}; {days} days")
    typer.echo(f'tls_cert_file = "{made.certificate.resolve()}"')
    typer.echo(f'tls_key_file = "{made.key.resolve()}"')
    typer.echo(f"devices and browsers: {out / 'ca.pem'}; keep {out / 'authority' / 'ca.key'} off the server")


def broker_passwords(out: OutOption, place: ServerPlace = HERE) -> None:
    """Set new passwords for the server's two accounts at the running broker, and write them down; then restart it.

    This is recorded in the audit log of the server named by `--config` or `--data-dir`.

    Example: `python -m aggregator_api broker-passwords --out broker --config broker/server/server.toml`
    """
    from aggregator_api.transport.mqtt.mosquitto.dynamic_security import rotate

    named = place._replace(config=place.config or out / "server" / "server.toml")
    if place != HERE:
        with writing(named):
            pass  # fail before the change, not after it
    with cli_errors():
        rotate(out / "server")
    typer.echo("both passwords are new; restart the server")
    try:
        with database_of(named.settings()) as database, database.write() as session:
            note(session, "broker-passwords.change", detail=f"both accounts of the server, in {out / 'server'}")
    except (AggregatorError, OSError, SQLAlchemyError) as error:
        print_warning(f"this isn't in the audit log: {error}; name the server's settings with --config or --data-dir")
