"""`python -m edge_agent label`: give windows an activity, take that back, list what has none."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from edge_agent.cli.command import ConfigOption, cli_errors, duration_s, moment, open_windows, shown
from edge_agent.errors import LabelError
from edge_agent.storage.labels import Stretch, known_activity, label_span, undo, unlabelled, vocabulary
from edge_agent.storage.window_store import WindowStore

MOST_SHOWN = 50


def label(
    config: ConfigOption,
    activity: Annotated[str | None, typer.Option(help="One of the federation's labels.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="14:05, or 2026-11-21T14:05.")] = None,
    to: Annotated[str | None, typer.Option(help="As --from; none: now.")] = None,
    last: Annotated[str | None, typer.Option(help="Instead of --from: so long until now, such as 10m or 1h.")] = None,
    undo_last: Annotated[bool, typer.Option("--undo", help="Take the last label command back.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the stretches of time that have no label.")] = False,
) -> None:
    """Say what was done in a span of time: every window of which half lies in it gets that activity.

    Only labelled windows are trained on. It works while the agent runs, and holds for windows that are still to come
    from that time. Nothing leaves the device.

    Examples:

    python -m edge_agent label --config agent.toml --list

    python -m edge_agent label --config agent.toml --last 10m --activity walking

    python -m edge_agent label --config agent.toml --from 14:05 --to 14:20 --activity sitting

    python -m edge_agent label --config agent.toml --undo
    """
    with cli_errors(), open_windows(config) as store:
        if undo_last:
            done = undo(store)
            typer.echo(f"taken back: {done.activity}; {done.windows} windows are as before")
        elif listing:
            _show(unlabelled(store))
        else:
            _label(store, activity, _span(from_, to, last, datetime.now()))


def _span(from_: str | None, to: str | None, last: str | None, now: datetime) -> tuple[float, float]:
    if (from_ is None) == (last is None):
        raise LabelError("say when: --last 10m, or --from 14:05 --to 14:20; --list shows what has no label")
    end_s = now.timestamp() if to is None else moment(to, now)
    return (moment(from_, now) if from_ is not None else end_s - duration_s(last or ""), end_s)


def _label(store: WindowStore, activity: str | None, span: tuple[float, float]) -> None:
    labels = vocabulary(store)
    if activity is None:
        raise LabelError(f"say what: --activity with one of {', '.join(labels)}")
    done = label_span(store, *span, known_activity(activity, labels))
    where = f"from {shown(span[0])} to {shown(span[1])}"
    none = "; none lies there yet, those to come will have it" if not done.windows else ""
    typer.echo(f"{done.windows} windows {where} are now {done.activity}{none}; `label --undo` takes it back")


def _show(stretches: list[Stretch]) -> None:
    if not stretches:
        typer.echo("every window has a label")
        return
    table = Table(title="without a label", title_justify="left")
    for heading in ("from", "to", "windows"):
        table.add_column(heading, justify="right")
    for each in stretches[-MOST_SHOWN:]:
        table.add_row(shown(each.from_s), shown(each.to_s), str(each.windows))
    Console().print(table)
    if len(stretches) > MOST_SHOWN:
        typer.echo(f"and {len(stretches) - MOST_SHOWN} earlier ones")
