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
    typer.Option(
        "--epoch", min=2, help="The epoch to begin (default: from the clock); set it if this machine's clock is wrong."
    ),
]


def backup(
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the copy; an existing backup is updated with what is new.")
    ],
    with_authority_keys: Annotated[
        bool,
        typer.Option(
            "--with-authority-keys",
            help="Also copy the operator's first key and the broker authority's key; anyone who reads the backup then "
            "controls the server.",
        ),
    ] = False,
    place: ServerPlace = HERE,
) -> dict[str, Any]:
    """Back up a server, which may be running, into a folder that `restore` reads.

    It contains the database (SQLite, or a pg_dump of PostgreSQL), the models, and the server's signing key, so keep it
    as safe as the server. Only the owner can read its files.

    Example: `python -m aggregator_api backup --data-dir runs/server --out backup`
    """
    from aggregator_api.maintenance.backup import back_up

    with cli_errors():
        copied = back_up(place.settings(), out, authority_keys=with_authority_keys)
    keys = f"the keys {', '.join(copied.keys)}" if copied.keys else "no key (the server has none yet)"
    typer.echo(f"{out}: the database, {keys}, and {copied.blobs} new blobs ({copied.bytes:,} bytes)")
    return {"folder": str(out), "keys": [*copied.keys], "blobs": copied.blobs, "bytes": copied.bytes}


def restore(
    source: Annotated[Path, typer.Option("--from", help="Folder written by `backup`.")],
    epoch: EpochOption = None,
    place: ServerPlace = HERE,
) -> None:
    """Restore a server from a backup into an empty folder (and, on PostgreSQL, an empty database).

    A new epoch begins, which tells devices that trained after the backup to train again for the server's current round.
    Then run `serve` with the same settings as before. Everything newer than the backup is lost: rounds, and new devices
    and keys. The ledger in `ledger_dir` keeps what was revoked, used up or deleted since; without the ledger every key,
    token and device is on hold until you confirm it.

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
    """Begin a new epoch after a database was restored without `restore`, such as by pg_restore or from a snapshot.

    Stop the server first. An unnecessary epoch loses nothing: devices train the open round again.

    Example: `python -m aggregator_api new-epoch --data-dir runs/server`
    """
    from aggregator_api.maintenance.restore import begin_epoch

    with cli_errors():
        settings = place.settings()
        begun = begin_epoch(settings, epoch)
        _tell(settings, begun.replayed)
    typer.echo(f"epoch {begun.epoch} has begun; devices learn of it when the server runs")


def new_ledger(place: ServerPlace = HERE) -> None:
    """Begin a new ledger of revocations when the old one is lost and the database is current, not a copy.

    An older backup can still be restored, but then every key, token and device is on hold until you confirm it.

    Example: `python -m aggregator_api new-ledger --data-dir runs/server`
    """
    from aggregator_api.maintenance.revocations import renew_ledger
    from aggregator_api.storage.db.ledger import Ledger

    with cli_errors():
        settings = place.settings()
        ledger = Ledger(settings.ledger)
        with database_of(settings) as database:
            renew_ledger(database, ledger)
    typer.echo(f"{ledger.path}: begun; make a backup now, because older ones can't be checked against it")


def _tell(settings: Settings, replayed: ReplayResult) -> None:
    """Report what was revoked since the backup and what the operator must do; update the broker, too."""
    typer.echo(f"since the backup: {replayed}")
    if replayed.reason:
        typer.echo(
            f"to do: if the ledger is not in {settings.ledger}, set `ledger_dir` to its folder, and restore again into "
            "an empty data_dir; without it, confirm what the backup holds"
        )
        typer.echo(
            "to do: `keys create --scope operator` makes a key; `keys list`, `keys confirm`, `tokens confirm` and "
            "`devices approve` re-admit those that you know weren't revoked"
        )
        return
    for federation in sorted({federation for federation, _ in replayed.devices}):
        devices = [device for home, device in replayed.devices if home == federation]
        remedy = "the server accepts nothing from them; `devices revoke` tries again"
        try:
            revoke_accounts(settings, federation, devices, done="they are void here", remedy=remedy)
        except UnavailableError as error:
            typer.echo(f"to do: {error}")


def fsck(
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Delete uploads that can't be resumed, and remove other users' access to keys."),
    ] = False,
    as_json: JsonOption = False,
    place: ServerPlace = HERE,
) -> None:
    """Check the database, every blob that it needs, open rounds and partial uploads; exit with 1 if there are problems.

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
        typer.echo(f"{problems} problems found", err=True)
        raise typer.Exit(ExitCode.FAILED)


retention_app = new_app("Delete old data by keep_versions, update_retention_days and event_retention_days.")
versions_app = new_app("List a federation's model versions, and delete old ones.")
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
BY_HAND = "delete it there (`mosquitto_ctrl dynsec deleteClient FEDERATION~DEVICE`)"


@retention_app.command("apply")
def apply_retention(dry_run: DryRunOption = False, place: ServerPlace = HERE) -> dict[str, int]:
    """Remove expired data now, as a running server does once a day; `gc` then frees the disk.

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
    """List a model's versions, and why some can't be deleted.

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
    versions: Annotated[list[int], typer.Argument(help="The versions' numbers.", metavar="VERSION…", min=0)],
    federation: FederationOption,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    place: ServerPlace = HERE,
) -> None:
    """Delete versions' data, all or none; the newest and those in use by an alias, round or rollout are refused.

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
    """Delete a device with its reports, uploads, scores and account; audit entries stay.

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
    """List the number of rows of each table."""
    return ", ".join(f"{count} {table.replace('_', ' ')}" for table, count in rows.items()) or "nothing"


def confirm_deletion(rows: dict[str, int], what: str, *, dry_run: bool, yes: bool) -> None:
    typer.echo(f"{what}: {in_words(rows)}{' would be deleted' if dry_run else ''}")
    if dry_run:
        raise typer.Exit
    if not yes and not typer.confirm(
        "Delete all this? Only a backup will still have it, and `restore` deletes devices again."
    ):
        with cli_errors():
            raise ConfigError("nothing was deleted")
