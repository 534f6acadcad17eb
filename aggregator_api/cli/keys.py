"""`python -m aggregator_api keys …` and `tokens …`: on the database itself, for who has no key yet."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.table import Table

from aggregator_api.api.schemas.credentials import NewKey, NewToken
from aggregator_api.auth import api_keys
from aggregator_api.auth.server_identity import Identity
from aggregator_api.cli.session import DAY_S, ConfigOption, DataOption, date, federation_named, note, reading, writing
from aggregator_api.devices import enrolment_tokens
from aggregator_api.errors import NotFoundError
from aggregator_api.settings import load
from gaitway.terminal import Console

FederationOption = Annotated[str | None, typer.Option("--federation", help="Only for this one; else the whole server.")]

keys_app = typer.Typer(help="API keys of the server.", no_args_is_help=True, rich_markup_mode="markdown")
tokens_app = typer.Typer(
    help="Tokens that let devices in, once each.", no_args_is_help=True, rich_markup_mode="markdown"
)


@keys_app.command("list")
def list_keys(data_dir: DataOption = None, config: ConfigOption = None) -> None:
    """List the keys, without their secrets.

    Example: `python -m aggregator_api keys list`
    """
    table = Table("id", "name", "scopes", "federation", "made", "used", "ends", box=None)
    with reading(data_dir, config) as session:
        for row, federation in api_keys.every(session):
            ends = "revoked" if row.revoked_at else date(row.expires_at)
            where = federation or "all"
            scopes = " ".join(row.scopes)
            table.add_row(row.prefix, row.name, scopes, where, date(row.created_at), date(row.used_at), ends)
    Console(soft_wrap=True).print(table)


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Option("--name", help="Whose key it is, for you.")],
    scope: Annotated[list[str], typer.Option("--scope", help="operator, read or device; may be repeated.")],
    federation: FederationOption = None,
    days: Annotated[int | None, typer.Option("--days", min=1, help="Ends after so many days; else never.")] = None,
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a key and print it; it is shown only now.

    Example: `python -m aggregator_api keys create --name grafana --scope read --days 90`
    """
    with writing(data_dir, config) as session:
        lifetime = None if days is None else days * DAY_S
        new = NewKey.model_validate({"name": name, "scopes": scope, "federation": federation, "lifetime_s": lifetime})
        row = federation_named(session, federation) if federation else None
        expires_at = None if lifetime is None else time.time() + lifetime
        made, key = api_keys.make(session, new.name, new.scopes, federation=row, expires_at=expires_at)
        said = f"key {made.prefix} of {new.name}: {' '.join(new.scopes)}"
        note(session, "keys.create", federation=federation or "", detail=said)
    typer.echo(key)


@keys_app.command("revoke")
def revoke_key(
    id: Annotated[str, typer.Argument(help="The part of the key between `gw_` and its secret.")],
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Let a key open nothing any more, at once.

    Example: `python -m aggregator_api keys revoke 0a1b2c3d4e5f`
    """
    with writing(data_dir, config) as session:
        row = api_keys.named(session, id)
        if row is None:
            raise NotFoundError(f"there is no key {id[:40]!r}; `keys list` shows them")
        api_keys.revoke(row)
        note(session, "keys.revoke", detail=f"key {id} of {row.name}")
    typer.echo(f"{id} is revoked")


@tokens_app.command("create")
def create_token(
    federation: Annotated[str, typer.Option("--federation", help="The federation that the device comes into.")],
    device: Annotated[str | None, typer.Option("--device", help="Only a device of this name; else of any.")] = None,
    auto_approve: Annotated[bool, typer.Option("--auto-approve", help="Let it in without a further look.")] = False,
    hours: Annotated[int, typer.Option("--hours", min=1, help="Ends after so many hours.")] = 24,
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Make an enrolment token and print it; it is shown only now.

    Example: `python -m aggregator_api tokens create --federation walks --device phone1`
    """
    with writing(data_dir, config) as session:
        server = Identity(load(config, data_dir=data_dir).identity)
        given = {"device": device, "auto_approve": auto_approve, "lifetime_s": hours * 3600}
        new = NewToken.model_validate(given)
        made, token = enrolment_tokens.make(
            session,
            federation_named(session, federation),
            device=new.device,
            auto_approve=new.auto_approve,
            lifetime_s=new.lifetime_s,
            server_key=server.public_key,
        )
        about = {"federation": federation, "device": device or "", "detail": f"token {made.id}"}
        note(session, "enrolment-tokens.create", **about)
    typer.echo(token)
