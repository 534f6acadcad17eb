"""`python -m edge_agent windows`: what is kept, as a table or a file; deleting it."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from edge_agent.cli.command import ConfigOption, cli_errors, moment, open_windows, shown
from edge_agent.errors import AgentError
from edge_agent.storage.window_listing import ClassRow, Selection, by_class, by_day, delete, export, name_of
from edge_agent.storage.window_store import UNLABELLED, WindowStore
from gaitway.terminal import Console

DAY_S = 86_400.0


def windows(
    config: ConfigOption,
    activity: Annotated[str | None, typer.Option(help="Only this activity.")] = None,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="Only those without an activity.")] = False,
    from_: Annotated[
        str | None, typer.Option("--from", help="Only from this time on: 14:05, 2026-11-21T14:05.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="Only before this time.")] = None,
    export_to: Annotated[
        Path | None, typer.Option("--export", help="Write them to this .npz file; without it they are only counted.")
    ] = None,
    delete_them: Annotated[bool, typer.Option("--delete", help="Delete them for good.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --delete: do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how many windows of which activity are kept, from which days, and how much room they take.

    Examples:

    python -m edge_agent windows --config agent.toml

    python -m edge_agent windows --config agent.toml --activity walking --export walking.npz

    python -m edge_agent windows --config agent.toml --unlabelled --to 2026-11-01T00:00 --delete
    """
    with cli_errors(), open_windows(config) as store:
        now = datetime.now()
        chosen = Selection(
            UNLABELLED if unlabelled else activity,
            None if from_ is None else moment(from_, now),
            None if to is None else moment(to, now),
        )
        if unlabelled and activity is not None:
            raise AgentError("--activity and --unlabelled exclude each other")
        if export_to is not None:
            typer.echo(f"{export(store, chosen, export_to)} windows are in {export_to}")
        if delete_them:
            _delete(store, chosen, yes)
        elif as_json:
            typer.echo(json.dumps(_summary(store, chosen), indent=2))
        elif export_to is None:
            _show(store, chosen)


def _delete(store: WindowStore, chosen: Selection, yes: bool) -> None:
    count = sum(row.windows for row in by_class(store, chosen))
    if count and not yes:
        typer.confirm(f"Delete {count} windows for good?", abort=True)
    typer.echo(f"{delete(store, chosen)} windows are deleted")


def _summary(store: WindowStore, chosen: Selection) -> dict[str, Any]:
    return {"classes": [row._asdict() for row in by_class(store, chosen)], "days": by_day(store, chosen)}


def _show(store: WindowStore, chosen: Selection) -> None:
    rows = by_class(store, chosen)
    if not rows:
        typer.echo("no windows")
        return
    console = Console()
    console.print(_classes(rows))
    table = Table(title="by day", title_justify="left")
    names = list(dict.fromkeys(row.activity for row in rows))
    table.add_column("day")
    for name in names:
        table.add_column(name_of(name), justify="right")
    for day, counts in by_day(store, chosen).items():
        table.add_row(day, *(str(counts.get(name, 0)) for name in names))
    console.print(table)


def _classes(rows: list[ClassRow]) -> Table:
    table = Table(title="by activity", title_justify="left")
    for heading in ("activity", "source", "windows", "MB", "first", "last", "age"):
        table.add_column(heading, justify="left" if heading in ("activity", "source") else "right")
    for row in rows:
        age = f"{max(0.0, time.time() - row.last_s) / DAY_S:.1f} days"
        size = f"{row.bytes / 1e6:.2f}"
        span = (shown(row.first_s), shown(row.last_s))
        table.add_row(name_of(row.activity), row.origin, str(row.windows), size, *span, age)
    return table
