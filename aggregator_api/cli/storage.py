"""Commands on stored data: check, back up, restore, collect garbage, list versions and apply retention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from sqlalchemy import select

from aggregator_api.cli.session import (
    HERE,
    FederationOption,
    ServerPlace,
    cli_errors,
    database_of,
    date,
    get_federation,
    new_app,
    note,
    print_rows,
    reading,
    revoke_accounts,
    writing,
)
from aggregator_api.core.errors import ConfigError, UnavailableError
from aggregator_api.core.settings import Settings
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.models import ModelVersionRow
from gaitway.command_line import JsonOption
from gaitway.errors import ExitCode

if TYPE_CHECKING:
    from aggregator_api.maintenance.revocations import ReplayResult

EpochOption = Annotated[
    int | None,
    typer.Option("--epoch", min=2, help="The epoch to begin, where this machine's clock is wrong; else by the clock."),
]


def backup(
    out: Annotated[Path, typer.Option("--out", help="Folder for the copy; used again, it gets only what is new.")],
    with_authority_keys: Annotated[
        bool,
        typer.Option(
            "--with-authority-keys",
            help="Copy the operator's first key and the broker authority's key too; whoever reads the backup then "
            "rules the server.",
        ),
    ] = False,
    place: ServerPlace = HERE,
) -> dict[str, Any]:
    """Copy a server's data, which may be running, into a folder that `restore` brings a server back from.

    It holds the database (SQLite, or a dump of PostgreSQL by pg_dump), the models, and the key that the server signs
    with: keep it as safe as the server. Files are for their owner alone.

    Example: `python -m aggregator_api backup --data-dir runs/server --out backup`
    """
    from aggregator_api.maintenance.backup import back_up

    with cli_errors():
        copied = back_up(place.settings(), out, authority_keys=with_authority_keys)
    keys = f"the keys {', '.join(copied.keys)}" if copied.keys else "no key, as the server has none yet"
    typer.echo(f"{out}: the database, {keys}, and {copied.blobs} new blobs ({copied.bytes:,} bytes)")
    return {"folder": str(out), "keys": [*copied.keys], "blobs": copied.blobs, "bytes": copied.bytes}


def restore(
    source: Annotated[Path, typer.Option("--from", help="Folder that `backup` has written.")],
    epoch: EpochOption = None,
    place: ServerPlace = HERE,
) -> None:
    """Bring a server back from a backup, into a folder (and on PostgreSQL a database) that holds no data yet.

    A new epoch begins: devices that trained on after the backup learn by it that they must train again what the server
    asks for. Then `serve` with the same settings as before. What came after the backup is lost: rounds, and devices and
    keys that were new. What was revoked, used up or deleted after it stays so, by the ledger in `ledger_dir`; without
    the ledger every key, token and device waits until you confirm it.

    Example: `python -m aggregator_api restore --from backup --data-dir runs/server`
    """
    from aggregator_api.maintenance.restore import restore as bring_back

    with cli_errors():
        settings = place.settings()
        restored = bring_back(settings, source, epoch)
        _tell(settings, restored.replayed)
    typer.echo(f"{settings.data_dir}: restored with {restored.blobs} blobs; epoch {restored.epoch} has begun")
    fsck(repair=False, place=place)


def new_epoch(epoch: EpochOption = None, place: ServerPlace = HERE) -> None:
    """Begin a new epoch on a database that was brought back without `restore`, such as by pg_restore or a snapshot.

    Stop the server before. Nothing is lost by an epoch too many: devices train the open round once more.

    Example: `python -m aggregator_api new-epoch --data-dir runs/server`
    """
    from aggregator_api.maintenance.restore import begin_epoch

    with cli_errors():
        settings = place.settings()
        begun = begin_epoch(settings, epoch)
        _tell(settings, begun.replayed)
    typer.echo(f"epoch {begun.epoch} has begun; devices learn of it when the server runs")


def new_ledger(place: ServerPlace = HERE) -> None:
    """Begin a new ledger of revocations, where the old one is lost and the database is the newest, not a copy.

    A backup from before can still be restored; then every key, token and device waits until you confirm it.

    Example: `python -m aggregator_api new-ledger --data-dir runs/server`
    """
    from aggregator_api.maintenance.revocations import renew_ledger
    from aggregator_api.storage.db.ledger import Ledger

    with cli_errors():
        settings = place.settings()
        ledger = Ledger(settings.ledger)
        with database_of(settings) as database:
            renew_ledger(database, ledger)
    typer.echo(f"{ledger.path}: begun; make a backup now, as older ones cannot be held against it")


def _tell(settings: Settings, replayed: ReplayResult) -> None:
    """Say what has ended since the backup, and what the operator has to do about it; tell the broker, too."""
    typer.echo(f"since the backup: {replayed}")
    if replayed.reason:
        typer.echo(
            f"to do: if the ledger is not in {settings.ledger}, set `ledger_dir` to its folder, and restore again into "
            "an empty data_dir; without it, confirm what the backup holds"
        )
        typer.echo(
            "to do: `keys create --scope operator` makes a key; `keys list`, `keys confirm`, `tokens confirm` and "
            "`devices approve` let those in again of which you know that they were not put out"
        )
        return
    for federation in sorted({federation for federation, _ in replayed.devices}):
        devices = [device for home, device in replayed.devices if home == federation]
        remedy = "the server takes nothing of them; `devices revoke` tries it again"
        try:
            revoke_accounts(settings, federation, devices, done="they are void here", remedy=remedy)
        except UnavailableError as error:
            typer.echo(f"to do: {error}")


def fsck(
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Delete uploads that cannot be resumed, and take others' rights to keys."),
    ] = False,
    as_json: JsonOption = False,
    place: ServerPlace = HERE,
) -> None:
    """Check the database, every blob that it needs, open rounds and partial uploads; ends with 1 for problems.

    Example: `python -m aggregator_api fsck --data-dir runs/server`
    """
    from aggregator_api.maintenance.fsck import check
    from aggregator_api.storage.findings import Severity

    findings = []
    with cli_errors():
        for finding in check(place.settings(), repair=repair):
            findings.append(finding)
            todo = f"; {finding.advice}" if finding.advice else ""
            if not as_json:
                typer.echo(f"{finding.level:<8} {finding.message}{todo}")
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in findings], indent=2, ensure_ascii=False))
    problems = sum(finding.level is Severity.PROBLEM for finding in findings)
    if problems:
        typer.echo(f"{problems} problems were found", err=True)
        raise typer.Exit(ExitCode.FAILED)


retention_app = new_app("What is removed by age: keep_versions, update_retention_days, event_retention_days.")
versions_app = new_app("Versions of a federation's model: list them, delete old ones.")
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
BY_HAND = "delete it there (`mosquitto_ctrl dynsec deleteClient FEDERATION~DEVICE`)"


@retention_app.command("apply")
def apply_retention(dry_run: DryRunOption = False, place: ServerPlace = HERE) -> dict[str, int]:
    """Remove now what the settings keep no longer; a running server does it once a day. `gc` then frees the disk.

    Example: `python -m aggregator_api retention apply --dry-run --config server.toml`
    """
    from aggregator_api.maintenance import retention

    with cli_errors():
        settings = place.settings()
        with database_of(settings) as database, database.write() as session:
            retired = retention.apply(session, settings, actor=audit.operating_user(), dry_run=dry_run)
    typer.echo(f"{retired} {'would be' if dry_run else 'were'} removed")
    return retired._asdict()


@versions_app.command("list")
def list_versions(federation: FederationOption, place: ServerPlace = HERE) -> list[dict[str, Any]]:
    """List the versions of a model, and why those must stay that cannot be deleted.

    Example: `python -m aggregator_api versions list --federation walk`
    """
    from aggregator_api.maintenance import retention as stored

    rows = []
    with reading(place) as session:
        row = get_federation(session, federation)
        needed = stored.needed_for(session, row)
        query = select(ModelVersionRow).where(ModelVersionRow.federation_id == row.id)
        for version in session.scalars(query.order_by(ModelVersionRow.version)):
            size = version.broadcast_size if version.deleted_at is None else None
            made = {"version": version.version, "round": version.round_number, "created_at": version.created_at}
            rows.append({**made, "bytes": size, "needed_for": needed.get(version.id, "")})
    shown = {"version": "version", "round": "round", "created_at": "made (UTC)", "bytes": "bytes"}
    formats = {"created_at": date, "bytes": lambda size: "deleted" if size is None else f"{size:,}"}
    print_rows(rows, {**shown, "needed_for": "stays because"}, formats)
    return rows


@versions_app.command("delete")
def delete_versions(
    versions: Annotated[list[int], typer.Argument(help="Numbers of versions.", metavar="VERSION…", min=0)],
    federation: FederationOption,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    place: ServerPlace = HERE,
) -> None:
    """Delete the bytes of versions, of all or of none; refused: the newest, and what a name, round or rollout needs.

    Example: `python -m aggregator_api versions delete 3 4 --federation walk`
    """
    from aggregator_api.maintenance import retention as stored

    wanted = sorted(set(versions))
    with reading(place) as session:
        stored.deletable(session, get_federation(session, federation), wanted)
    confirm_deletion({"model_versions": len(wanted)}, f"{_numbers(wanted)} of {federation!r}", dry_run=dry_run, yes=yes)
    with writing(place) as session:
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
    place: ServerPlace = HERE,
) -> None:
    """Delete a device with all that it said, sent and measured, and its account; the audit's entries stay.

    Example: `python -m aggregator_api devices delete phone1 --federation walk`
    """
    from aggregator_api.devices import service
    from aggregator_api.maintenance import retention as stored
    from aggregator_api.maintenance.deletion import forget_kept_uploads
    from aggregator_api.storage.blobs import BlobStore

    with reading(place) as session:
        rows = stored.remove_device(session, *service.find(session, federation, device), dry_run=True)
    confirm_deletion(rows, f"device {device!r} of {federation!r}", dry_run=dry_run, yes=yes)
    with writing(place) as session:
        found = service.find(session, federation, device)
        stored.require_no_open_part(session, *found)
        forget_kept_uploads(session, BlobStore(place.settings().blobs), found[0], device)
        rows = stored.remove_device(session, *found, dry_run=False)
        note(session, "devices.delete", federation=federation, device=device, detail=in_words(rows))
    with cli_errors():
        settings = place.settings()
        revoke_accounts(settings, federation, [device], done="it is deleted here", remedy=BY_HAND)
    typer.echo(f"{device}: {in_words(rows)} deleted")


def in_words(rows: dict[str, int]) -> str:
    """List how many rows of each table there are."""
    return ", ".join(f"{count} {table.replace('_', ' ')}" for table, count in rows.items()) or "nothing"


def confirm_deletion(rows: dict[str, int], what: str, *, dry_run: bool, yes: bool) -> None:
    typer.echo(f"{what}: {in_words(rows)}{' would be deleted' if dry_run else ''}")
    if dry_run:
        raise typer.Exit
    if not yes and not typer.confirm(
        "Delete all this? Only a backup has it then, and `restore` deletes devices again."
    ):
        with cli_errors():
            raise ConfigError("nothing was deleted")
