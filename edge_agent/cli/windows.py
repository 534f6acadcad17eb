"""`python -m edge_agent windows` and `label`: list, export, delete and label the device's windows."""

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
    """The windows that a command selects."""

    activity: Annotated[str | None, typer.Option(help="Only this activity.")] = None
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="Only windows without an activity.")] = False
    from_: Annotated[str | None, typer.Option("--from", help="Only from this time on: 14:05, 2026-11-21T14:05.")] = None
    to: Annotated[str | None, typer.Option(help="Only before this time.")] = None

    def selection(self, now: datetime) -> Selection:
        """Parse the times.

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
        Path | None, typer.Option("--export", help="Write the windows to this .npz file (default: only count them).")
    ] = None,
    delete_them: Annotated[bool, typer.Option("--delete", help="Delete the windows permanently.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --delete: don't ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the stored windows by activity, with their days and size.

    Examples:

    python -m edge_agent windows --config agent.toml

    python -m edge_agent windows --config agent.toml --activity walking --export walking.npz

    python -m edge_agent windows --config agent.toml --unlabelled --to 2026-11-01T00:00 --delete
    """
    with cli_errors(), open_windows(config) as store:
        chosen = wanted.selection(datetime.now())
        if export_to is not None:
            typer.echo(f"{export(store, chosen, export_to)} windows written to {export_to}")
        if delete_them:
            _delete(store, chosen, yes)
        elif as_json:
            typer.echo(json.dumps(_summary(store, chosen), indent=2))
        elif export_to is None:
            _show(store, chosen)


def _delete(store: WindowStore, chosen: Selection, yes: bool) -> None:
    count = sum(row.windows for row in by_class(store, chosen))
    if count and not yes:
        typer.confirm(f"Permanently delete {count} windows?", abort=True)
    typer.echo(f"{delete(store, chosen)} windows deleted")


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
        str | None,
        typer.Option(help="One of the federation's labels; needed except with --list, --sessions and --undo."),
    ] = None,
    from_: Annotated[str | None, typer.Option("--from", help="14:05, or 2026-11-21T14:05.")] = None,
    to: Annotated[str | None, typer.Option(help="Like --from (default: now).")] = None,
    last: Annotated[str | None, typer.Option(help="Instead of --from: the last 10m, 1h or similar.")] = None,
    file: Annotated[str | None, typer.Option(help="Instead of a time: a whole recorded file, by its name.")] = None,
    session: Annotated[
        str | None, typer.Option(help="Instead of a time: a session's number or a range, such as 12 or 12-15.")
    ] = None,
    list_sessions: Annotated[bool, typer.Option("--sessions", help="List the sessions and their files.")] = False,
    undo_last: Annotated[bool, typer.Option("--undo", help="Undo the last label command.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the time spans without a label.")] = False,
) -> None:
    """Label the windows of a time span, a recorded file or a session with an activity.

    Training uses only labelled windows. A window belongs to a span if at least half of it lies within. This works while
    the agent runs, and a span also applies to its windows that are still to come. Nothing leaves the device.

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
            typer.echo(f"undone: {done.activity}; {done.windows} windows have their earlier labels")
        elif listing:
            _show_unlabelled(unlabelled(store))
        elif list_sessions:
            _show_sessions(sessions(store))
        elif file is not None or session is not None:
            if {from_, to, last} != {None}:
                raise LabelError("give either a time, or a file or session")
            _label_part(store, activity, file, session)
        else:
            _label(store, activity, _span(from_, to, last, datetime.now()))


def _span(from_: str | None, to: str | None, last: str | None, now: datetime) -> tuple[float, float]:
    if (from_ is None) == (last is None):
        raise LabelError(
            "give a time (--last 10m, or --from 14:05 --to 14:20), --file or --session; --list shows what has no label"
        )
    end_s = now.timestamp() if to is None else moment(to, now)
    return (moment(from_, now) if from_ is not None else end_s - duration_s(last or ""), end_s)


def _label_part(store: WindowStore, activity: str | None, file: str | None, session: str | None) -> None:
    known = _known(store, activity)
    if file is not None and session is not None:
        raise LabelError("give either a file or a session")
    done = label_sessions(store, _numbers(session), known) if file is None else label_file(store, file, known)
    typer.echo(f"{done.windows} windows are now {done.activity}; `label --undo` undoes this")


def _numbers(text: str | None) -> list[int]:
    match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", text or "")
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not first <= last < first + MAX_SESSIONS:
        most = f"with at most {MAX_SESSIONS} sessions"
        raise LabelError(f"{text!r} isn't a session; expected a number or a range such as 12-15, {most}")
    return list(range(first, last + 1))


def _known(store: WindowStore, activity: str | None) -> str:
    labels = vocabulary(store)
    if activity is None:
        raise LabelError(f"give --activity with one of {', '.join(labels)}")
    return known_activity(activity, labels)


def _label(store: WindowStore, activity: str | None, span: tuple[float, float]) -> None:
    done = label_span(store, *span, _known(store, activity))
    where = f"from {shown(span[0])} to {shown(span[1])}"
    none = "; there are none yet, and those to come will get it" if not done.windows else ""
    typer.echo(f"{done.windows} windows {where} are now {done.activity}{none}; `label --undo` undoes this")


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
