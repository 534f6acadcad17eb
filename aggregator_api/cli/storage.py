"""`backup`, `restore`, `new-epoch` and `fsck`: they keep a server's data, bring it back, and say if it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from aggregator_api.errors import ConfigError
from aggregator_api.settings import load
from gaitway.terminal import Console

CONFIG_ERROR, PROBLEMS = 2, 1
DataOption = Annotated[Path | None, typer.Option("--data-dir", help="The server's folder (default runs/server).")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file of settings, as `serve` takes it; without it the defaults hold."),
]
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
    from aggregator_api.storage.backup import back_up

    with _in_words():
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
    keys that were new.

    Example: `python -m aggregator_api restore --from backup --data-dir runs/server`
    """
    from aggregator_api.storage.restore import restore as bring_back

    with _in_words():
        settings = load(config, data_dir=data_dir)
        restored = bring_back(settings, source, epoch)
    typer.echo(f"{settings.data_dir}: restored with {restored.blobs} blobs; epoch {restored.epoch} has begun")
    fsck(repair=False, data_dir=data_dir, config=config)


def new_epoch(epoch: EpochOption = None, data_dir: DataOption = None, config: ConfigOption = None) -> None:
    """Begin a new epoch on a database that was brought back without `restore`, such as by pg_restore or a snapshot.

    Stop the server before. Nothing is lost by an epoch too many: devices train the open round once more.

    Example: `python -m aggregator_api new-epoch --data-dir runs/server`
    """
    from aggregator_api.storage.restore import begin_epoch

    with _in_words():
        begun = begin_epoch(load(config, data_dir=data_dir), epoch)
    typer.echo(f"epoch {begun} has begun; devices learn of it when the server runs")


def fsck(
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Delete uploads that cannot be gone on with, and take others' rights to keys."),
    ] = False,
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Check the database, every blob that it needs, the open rounds and the partial uploads; ends with 1 for problems.

    Example: `python -m aggregator_api fsck --data-dir runs/server`
    """
    from aggregator_api.storage.fsck import Severity, check

    problems = 0
    with _in_words():
        for finding in check(load(config, data_dir=data_dir), repair=repair):
            problems += finding.level is Severity.PROBLEM
            todo = f"; {finding.todo}" if finding.todo else ""
            typer.echo(f"{finding.level:<8} {finding.found}{todo}")
    if problems:
        typer.echo(f"{problems} problems were found", err=True)
        raise typer.Exit(PROBLEMS)


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except (ConfigError, OSError) as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}")
        raise typer.Exit(CONFIG_ERROR) from error
