"""`backup`, `restore`, `new-epoch` and `fsck`: they keep a server's data, bring it back, and say if it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggregator_api.cli.session import ConfigOption, DataOption, cli_errors, database_of, revoke_accounts
from aggregator_api.core.errors import UnavailableError
from aggregator_api.core.settings import Settings, load
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
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Copy a server's data, which may be running, into a folder that `restore` brings a server back from.

    It holds the database (SQLite, or a dump of PostgreSQL by pg_dump), the models, and the key that the server signs
    with: keep it as safe as the server. Files are for their owner alone.

    Example: `python -m aggregator_api backup --data-dir runs/server --out backup`
    """
    from aggregator_api.maintenance.backup import back_up

    with cli_errors():
        copied = back_up(load(config, data_dir=data_dir), out, authority_keys=with_authority_keys)
    keys = f"the keys {', '.join(copied.keys)}" if copied.keys else "no key, as the server has none yet"
    typer.echo(f"{out}: the database, {keys}, and {copied.blobs} new blobs ({copied.bytes:,} bytes)")


def restore(
    source: Annotated[Path, typer.Option("--from", help="Folder that `backup` has written.")],
    epoch: EpochOption = None,
    data_dir: DataOption = None,
    config: ConfigOption = None,
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
        settings = load(config, data_dir=data_dir)
        restored = bring_back(settings, source, epoch)
        _tell(settings, restored.replayed)
    typer.echo(f"{settings.data_dir}: restored with {restored.blobs} blobs; epoch {restored.epoch} has begun")
    fsck(repair=False, data_dir=data_dir, config=config)


def new_epoch(epoch: EpochOption = None, data_dir: DataOption = None, config: ConfigOption = None) -> None:
    """Begin a new epoch on a database that was brought back without `restore`, such as by pg_restore or a snapshot.

    Stop the server before. Nothing is lost by an epoch too many: devices train the open round once more.

    Example: `python -m aggregator_api new-epoch --data-dir runs/server`
    """
    from aggregator_api.maintenance.restore import begin_epoch

    with cli_errors():
        settings = load(config, data_dir=data_dir)
        begun = begin_epoch(settings, epoch)
        _tell(settings, begun.replayed)
    typer.echo(f"epoch {begun.epoch} has begun; devices learn of it when the server runs")


def new_ledger(data_dir: DataOption = None, config: ConfigOption = None) -> None:
    """Begin a new ledger of revocations, where the old one is lost and the database is the newest, not a copy.

    A backup from before can still be restored; then every key, token and device waits until you confirm it.

    Example: `python -m aggregator_api new-ledger --data-dir runs/server`
    """
    from aggregator_api.maintenance.revocations import renew_ledger
    from aggregator_api.storage.db.ledger import Ledger

    with cli_errors():
        settings = load(config, data_dir=data_dir)
        ledger = Ledger(settings.ledger)
        with database_of(settings) as database:
            renew_ledger(database, ledger)
    typer.echo(f"{ledger.path}: begun; make a backup now, as older ones cannot be held against it")


def _tell(settings: Settings, replayed: ReplayResult) -> None:
    """Say what has ended since the backup, and what the operator has to do about it; tell the broker, too."""
    typer.echo(f"since the backup: {replayed}")
    if replayed.reason:
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
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Check the database, every blob that it needs, the open rounds and the partial uploads; ends with 1 for problems.

    Example: `python -m aggregator_api fsck --data-dir runs/server`
    """
    from aggregator_api.maintenance.fsck import check
    from aggregator_api.storage.fsck_result import Severity

    problems = 0
    with cli_errors():
        for finding in check(load(config, data_dir=data_dir), repair=repair):
            problems += finding.level is Severity.PROBLEM
            todo = f"; {finding.advice}" if finding.advice else ""
            typer.echo(f"{finding.level:<8} {finding.message}{todo}")
    if problems:
        typer.echo(f"{problems} problems were found", err=True)
        raise typer.Exit(ExitCode.FAILED)
