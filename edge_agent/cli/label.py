"""`python -m edge_agent label`: give windows an activity, take that back, list what has none."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from edge_agent.cli.command import ConfigOption, cli_errors, duration_s, moment, open_windows, shown
from edge_agent.errors import LabelError
from edge_agent.storage.labels import (
    RecordingSession,
    Stretch,
    known_activity,
    label_file,
    label_sessions,
    label_span,
    sessions,
    undo,
    unlabelled,
    vocabulary,
)
from edge_agent.storage.window_store import WindowStore
from gaitway.terminal import Console

MAX_SHOWN = 50
MAX_SESSIONS = 1000


def label(
    config: ConfigOption,
    activity: Annotated[
        str | None, typer.Option(help="One of the federation's labels; only --list, --sessions and --undo do without.")
    ] = None,
    from_: Annotated[str | None, typer.Option("--from", help="14:05, or 2026-11-21T14:05.")] = None,
    to: Annotated[str | None, typer.Option(help="As --from; none: now.")] = None,
    last: Annotated[str | None, typer.Option(help="Instead of --from: so long until now, such as 10m or 1h.")] = None,
    file: Annotated[str | None, typer.Option(help="Instead of a time: a whole recorded file, by its name.")] = None,
    session: Annotated[
        str | None, typer.Option(help="Instead of a time: a session by its number, or several, such as 12 or 12-15.")
    ] = None,
    list_sessions: Annotated[
        bool, typer.Option("--sessions", help="List the sessions and the files they are of.")
    ] = False,
    undo_last: Annotated[bool, typer.Option("--undo", help="Take the last label command back.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the stretches of time that have no label.")] = False,
) -> None:
    """Say what was done in a span of time, a recorded file or a session: its windows get that activity.

    Only labelled windows are trained on. A window belongs to a span if half of it lies in it. It works while the
    agent runs; a span holds also for windows that are still to come from that time. Nothing leaves the device.

    Examples:

    python -m edge_agent label --config agent.toml --list

    python -m edge_agent label --config agent.toml --last 10m --activity walking

    python -m edge_agent label --config agent.toml --from 14:05 --to 14:20 --activity sitting

    python -m edge_agent label --config agent.toml --file monday/walk1.csv --activity walking

    python -m edge_agent label --config agent.toml --session 12-15 --activity sitting

    python -m edge_agent label --config agent.toml --undo
    """
    with cli_errors(), open_windows(config) as store:
        if undo_last:
            done = undo(store)
            typer.echo(f"taken back: {done.activity}; {done.windows} windows are as before")
        elif listing:
            _show(unlabelled(store))
        elif list_sessions:
            _show_sessions(sessions(store))
        elif file is not None or session is not None:
            if {from_, to, last} != {None}:
                raise LabelError("say either a time, or a file or session")
            _label_part(store, activity, file, session)
        else:
            _label(store, activity, _span(from_, to, last, datetime.now()))


def _span(from_: str | None, to: str | None, last: str | None, now: datetime) -> tuple[float, float]:
    if (from_ is None) == (last is None):
        raise LabelError(
            "say when: --last 10m, or --from 14:05 --to 14:20; or --file or --session; --list shows what has no label"
        )
    end_s = now.timestamp() if to is None else moment(to, now)
    return (moment(from_, now) if from_ is not None else end_s - duration_s(last or ""), end_s)


def _label_part(store: WindowStore, activity: str | None, file: str | None, session: str | None) -> None:
    known = _known(store, activity)
    if file is not None and session is not None:
        raise LabelError("say either a file or a session")
    done = label_sessions(store, _numbers(session), known) if file is None else label_file(store, file, known)
    typer.echo(f"{done.windows} windows are now {done.activity}; `label --undo` takes it back")


def _numbers(text: str | None) -> list[int]:
    match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", text or "")
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not first <= last < first + MAX_SESSIONS:
        most = f"with at most {MAX_SESSIONS} sessions"
        raise LabelError(f"{text!r} is no session; expected a number, or a first and last one, as 12-15, {most}")
    return list(range(first, last + 1))


def _known(store: WindowStore, activity: str | None) -> str:
    labels = vocabulary(store)
    if activity is None:
        raise LabelError(f"say what: --activity with one of {', '.join(labels)}")
    return known_activity(activity, labels)


def _label(store: WindowStore, activity: str | None, span: tuple[float, float]) -> None:
    done = label_span(store, *span, _known(store, activity))
    where = f"from {shown(span[0])} to {shown(span[1])}"
    none = "; none lies there yet, those to come will have it" if not done.windows else ""
    typer.echo(f"{done.windows} windows {where} are now {done.activity}{none}; `label --undo` takes it back")


def _show_sessions(found: list[RecordingSession]) -> None:
    table = Table(title="sessions", title_justify="left")
    for heading in ("session", "of", "from", "to", "windows", "without a label"):
        table.add_column(heading, justify="left" if heading == "of" else "right", overflow="fold")
    for session in found[-MAX_SHOWN:]:
        times = (shown(session.from_s), shown(session.to_s))
        table.add_row(str(session.number), session.file, *times, str(session.windows), str(session.unlabelled))
    Console().print(table)
    if len(found) > MAX_SHOWN:
        typer.echo(f"and {len(found) - MAX_SHOWN} earlier ones")


def _show(stretches: list[Stretch]) -> None:
    if not stretches:
        typer.echo("every window has a label")
        return
    table = Table(title="without a label", title_justify="left")
    for heading in ("from", "to", "windows"):
        table.add_column(heading, justify="right")
    for stretch in stretches[-MAX_SHOWN:]:
        table.add_row(shown(stretch.from_s), shown(stretch.to_s), str(stretch.windows))
    Console().print(table)
    if len(stretches) > MAX_SHOWN:
        typer.echo(f"and {len(stretches) - MAX_SHOWN} earlier ones")
