"""`python -m aggregator_api retention|federations|versions …` and `devices delete`: on the server's own database."""

from __future__ import annotations

from typing import Annotated

import typer
from sqlalchemy import select

from aggregator_api.cli.session import (
    ConfigOption,
    DataOption,
    FederationOption,
    cli_errors,
    database_of,
    date,
    get_federation,
    new_app,
    note,
    print_table,
    reading,
    revoke_accounts,
    writing,
)
from aggregator_api.core.errors import ConfigError
from aggregator_api.core.settings import load
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.models import ModelVersionRow

retention_app = new_app("What is removed by age: keep_versions, update_retention_days, event_retention_days.")
federations_app = new_app("Federations: delete one that has ended.")
versions_app = new_app("Versions of a federation's model: list them, delete old ones.")
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
BY_HAND = "delete it there (`mosquitto_ctrl dynsec deleteClient FEDERATION~DEVICE`)"


@retention_app.command("apply")
def apply_retention(dry_run: DryRunOption = False, data_dir: DataOption = None, config: ConfigOption = None) -> None:
    """Remove now what the settings keep no longer; a running server does it once a day. `gc` then frees the disk.

    Example: `python -m aggregator_api retention apply --dry-run --config server.toml`
    """
    from aggregator_api.maintenance.retention import policy  # torch takes a second, which --help need not

    with cli_errors():
        settings = load(config, data_dir=data_dir)
        with database_of(settings) as database, database.write() as session:
            retired = policy.apply(session, settings, actor=audit.operating_user(), dry_run=dry_run)
    typer.echo(f"{retired} {'would be' if dry_run else 'were'} removed")


@federations_app.command("delete")
def delete_federation(
    federation: Annotated[str, typer.Argument(help="A federation that has finished or was stopped.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete a federation that has ended: its devices with their accounts, rounds, models, events; not the audit.

    While the server runs, prefer `DELETE /v1/federations/{name}`, which also clears what the broker retains of it.

    Example: `python -m aggregator_api federations delete walk --dry-run`
    """
    from aggregator_api.maintenance.retention import rows as stored

    with reading(data_dir, config) as session:
        found = stored.remove_federation(session, get_federation(session, federation), dry_run=True)
    _confirm(found.rows, f"federation {federation!r}", dry_run=dry_run, yes=yes)
    with writing(data_dir, config) as session:
        found = stored.remove_federation(session, get_federation(session, federation), dry_run=False)
        note(session, "federations.delete", federation=federation, detail=in_words(found.rows))
    with cli_errors():
        settings = load(config, data_dir=data_dir)
        revoke_accounts(settings, federation, found.devices, done="it is deleted here", remedy=BY_HAND)
    typer.echo(f"{federation}: {in_words(found.rows)} deleted; `gc` frees the disk")


@versions_app.command("list")
def list_versions(
    federation: FederationOption,
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List the versions of a model, and why those must stay that cannot be deleted.

    Example: `python -m aggregator_api versions list --federation walk`
    """
    from aggregator_api.maintenance.retention import rows as stored

    rows = []
    with reading(data_dir, config) as session:
        row = get_federation(session, federation)
        needed = stored.needed_for(session, row)
        query = select(ModelVersionRow).where(ModelVersionRow.federation_id == row.id)
        for version in session.scalars(query.order_by(ModelVersionRow.version)):
            size = f"{version.broadcast_size:,}" if version.deleted_at is None else "deleted"
            rows.append(
                (version.version, version.round_number, date(version.created_at), size, needed.get(version.id, ""))
            )
    print_table(("version", "round", "made (UTC)", "bytes", "stays because"), rows)


@versions_app.command("delete")
def delete_versions(
    versions: Annotated[list[int], typer.Argument(help="Numbers of versions.", metavar="VERSION…", min=0)],
    federation: FederationOption,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete the bytes of versions, of all or of none; refused: the newest, and what a name, round or rollout needs.

    Example: `python -m aggregator_api versions delete 3 4 --federation walk`
    """
    from aggregator_api.maintenance.retention import rows as stored

    wanted = sorted(set(versions))
    with reading(data_dir, config) as session:
        stored.deletable(session, get_federation(session, federation), wanted)
    _confirm({"model_versions": len(wanted)}, f"{_numbers(wanted)} of {federation!r}", dry_run=dry_run, yes=yes)
    with writing(data_dir, config) as session:
        row = get_federation(session, federation)
        stored.retire(session, row, stored.deletable(session, row, wanted))
        note(session, "models.delete", federation=federation, detail=_numbers(wanted))
    typer.echo(f"{federation}: {_numbers(wanted)} deleted; `gc` frees the disk")


def _numbers(versions: list[int]) -> str:
    return f"version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions))}"


def delete_device(
    device: Annotated[str, typer.Argument(help="The device's name.")],
    federation: FederationOption,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete a device with all that it said, sent and measured, and its account; the audit's entries stay.

    Example: `python -m aggregator_api devices delete phone1 --federation walk`
    """
    from aggregator_api.devices import service
    from aggregator_api.maintenance.retention import rows as stored
    from aggregator_api.maintenance.retention.deletion import forget_kept_uploads
    from aggregator_api.storage.blobs import BlobStore

    with reading(data_dir, config) as session:
        rows = stored.remove_device(session, *service.find(session, federation, device), dry_run=True)
    _confirm(rows, f"device {device!r} of {federation!r}", dry_run=dry_run, yes=yes)
    with writing(data_dir, config) as session:
        found = service.find(session, federation, device)
        stored.require_no_open_part(session, *found)
        forget_kept_uploads(session, BlobStore(load(config, data_dir=data_dir).blobs), found[0], device)
        rows = stored.remove_device(session, *found, dry_run=False)
        note(session, "devices.delete", federation=federation, device=device, detail=in_words(rows))
    with cli_errors():
        settings = load(config, data_dir=data_dir)
        revoke_accounts(settings, federation, [device], done="it is deleted here", remedy=BY_HAND)
    typer.echo(f"{device}: {in_words(rows)} deleted")


def in_words(rows: dict[str, int]) -> str:
    """List how many rows of each table there are."""
    return ", ".join(f"{count} {table.replace('_', ' ')}" for table, count in rows.items()) or "nothing"


def _confirm(rows: dict[str, int], what: str, *, dry_run: bool, yes: bool) -> None:
    typer.echo(f"{what}: {in_words(rows)}{' would be deleted' if dry_run else ''}")
    if dry_run:
        raise typer.Exit
    if not yes and not typer.confirm(
        "Delete all this? Only a backup has it then, and `restore` deletes devices again."
    ):
        with cli_errors():
            raise ConfigError("nothing was deleted")
