"""`python -m edge_agent windows` and `label`: list, export, delete and label what the device has collected."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from edge_agent.cli.command import (
    NO_DATE,
    YEAR_2000_S,
    ConfigOption,
    cli_errors,
    duration_s,
    moment,
    open_windows,
    shown,
)
from edge_agent.errors import AgentError, LabelError
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
from edge_agent.storage.window_listing import ClassRow, Selection, by_class, by_day, delete, export, name_of
from edge_agent.storage.window_store import UNLABELLED, WindowStore
from gaitway.terminal import Console

DAY_S = 86_400.0


class WindowOptions(NamedTuple):
    """Which windows a command is about."""

    activity: Annotated[str | None, typer.Option(help="Only this activity.")] = None
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="Only those without an activity.")] = False
    from_: Annotated[str | None, typer.Option("--from", help="Only from this time on: 14:05, 2026-11-21T14:05.")] = None
    to: Annotated[str | None, typer.Option(help="Only before this time.")] = None

    def selection(self, now: datetime) -> Selection:
        """Read its times, which may be of today.

        Raises:
            AgentError: if a time can't be read, or the options exclude each other.
        """
        if self.unlabelled and self.activity is not None:
            raise AgentError("--activity and --unlabelled exclude each other")
        return Selection(
            UNLABELLED if self.unlabelled else self.activity,
            None if self.from_ is None else moment(self.from_, now),
            None if self.to is None else moment(self.to, now),
        )


ALL = WindowOptions()


def windows(
    config: ConfigOption,
    wanted: WindowOptions = ALL,
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
        chosen = wanted.selection(datetime.now())
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
        table.add_row(day if day >= "2000" else NO_DATE, *(str(counts.get(name, 0)) for name in names))
    console.print(table)


def _classes(rows: list[ClassRow]) -> Table:
    table = Table(title="by activity", title_justify="left")
    for heading in ("activity", "source", "windows", "MB", "first", "last", "age"):
        table.add_column(heading, justify="left" if heading in ("activity", "source") else "right")
    for row in rows:
        days = max(0.0, time.time() - row.last_s) / DAY_S
        age = f"{days:.1f} days" if row.last_s >= YEAR_2000_S else "–"
        size = f"{row.bytes / 1e6:.2f}"
        span = (shown(row.first_s), shown(row.last_s))
        table.add_row(name_of(row.activity), row.origin, str(row.windows), size, *span, age)
    return table


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
            _show_unlabelled(unlabelled(store))
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


def _show_unlabelled(stretches: list[Stretch]) -> None:
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
