"""Commands that list the audit log and send a test notification."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from aggregator_api.cli.session import (
    HERE,
    ServerPlace,
    cli_errors,
    date,
    fail,
    moment,
    new_app,
    print_rows,
    reading,
)
from aggregator_api.storage.db import audit
from aggregator_api.storage.db.audit import Filters
from aggregator_api.storage.db.models import AuditRow
from gaitway.errors import ExitCode

audit_app = new_app("The append-only audit log: who did what, from where and when.")


class EntryOptions(NamedTuple):
    """The entries that a command selects."""

    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Start: 2026-11-01, 2026-11-01T08:30 (UTC), or an age: 90m, 12h, 7d (default: all).",
        ),
    ] = None
    actor: Annotated[
        str | None, typer.Option("--actor", help="Only by this actor: a key's id, or `command line (root)`.")
    ] = None
    action: Annotated[
        str | None, typer.Option("--action", help="Only this action, such as keys.create, or this noun, such as keys.")
    ] = None
    federation: Annotated[str | None, typer.Option("--federation", help="Only this federation.")] = None
    device: Annotated[str | None, typer.Option("--device", help="Only devices of this name.")] = None

    def filters(self) -> Filters:
        """Return the filters, with `since` parsed."""
        return Filters(None if self.since is None else moment(self.since, time.time()), *self[1:])


ALL = EntryOptions()


@audit_app.command("list")
def list_entries(
    wanted: EntryOptions = ALL,
    last: Annotated[int, typer.Option("--last", min=1, max=100_000, help="Number of newest entries.")] = 50,
    place: ServerPlace = HERE,
) -> list[dict[str, Any]]:
    """Show the newest entries as a table.

    Example: `python -m aggregator_api audit list --since 7d --action devices`
    """
    rows = []
    with reading(place) as session:
        query = audit.select_entries(wanted.filters())
        for row in reversed(session.scalars(query.order_by(AuditRow.id.desc()).limit(last)).all()):
            detail = f"{row.count} times: {row.detail}" if row.count > 1 else row.detail
            about = {"action": row.action, "federation": row.federation, "device": row.device, "detail": detail}
            rows.append({"at": row.at, "actor": row.actor, "address": row.address, **about})
    same = {name: name for name in ("federation", "device", "detail")}
    shown = {"at": "when (UTC)", "actor": "who", "address": "from", "action": "what", **same}
    print_rows(rows, shown, {"at": date})
    return rows


@audit_app.command("export")
def export_entries(
    wanted: EntryOptions = ALL,
    form: Annotated[Literal["jsonl", "csv"], typer.Option("--format", help="JSON lines, or CSV.")] = "jsonl",
    out: Annotated[Path | None, typer.Option("--out", help="File to write, mode 0600 (default: the terminal).")] = None,
    place: ServerPlace = HERE,
) -> None:
    """Export entries, oldest first, for storage in another system.

    Example: `python -m aggregator_api audit export --since 30d --format csv --out audit.csv`
    """
    with reading(place) as session:
        query = audit.select_entries(wanted.filters()).order_by(AuditRow.id)
        rows = session.scalars(query.execution_options(yield_per=1000))
        if out is None:
            audit.export(rows, sys.stdout, form)
            return
        out.touch(mode=0o600)
        with out.open("w", encoding="utf-8") as stream:
            written = audit.export(rows, stream, form)
    typer.echo(f"{out}: {written} entries")


@audit_app.command()
def verify(
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect-digest",
            help="Also require this digest, which an earlier verify printed.",
        ),
    ] = None,
    place: ServerPlace = HERE,
) -> dict[str, Any]:
    """Check that no entry was changed or removed; exit with 1 if one was.

    Removal of the newest entries can only be detected with a digest that was stored elsewhere. Store the printed
    digest, and pass it next time with --expect-digest.

    Example: `python -m aggregator_api audit verify --expect-digest 5e88…`
    """
    with reading(place) as session:
        found = audit.verify(session, expect)
    if found.error:
        fail(f"{found.error}; the {found.entries} entries before it are intact. Compare with an export or a backup")
        raise typer.Exit(ExitCode.FAILED)
    typer.echo(f"{found.entries} entries are intact; the last is {found.last_id} with the digest {found.digest}")
    return {"entries": found.entries, "last_id": found.last_id, "digest": found.digest}


notify_app = new_app("Notify the operator of what needs attention, by webhook and e-mail.")


@notify_app.callback()
def notify() -> None:
    """Notify the operator of what needs attention, by webhook and e-mail."""


@notify_app.command("test")
def send_test(place: ServerPlace = HERE) -> None:
    """Send one test notification to each destination, and print the results.

    With notify_webhook_secret_file, a POST has the header X-Gaitway-Signature: t=TIME,v1=HEX, an HMAC-SHA256 of the
    time in Unix seconds, a dot and the body. Receivers should reject old times. X-Gaitway-Delivery is the same in each
    attempt. The server follows no redirects, and waits 15 minutes after notify_attempts failures.

    Example: `python -m aggregator_api notify test --config server.toml`
    """
    from aggregator_api.notifications.channels import Notification, channels_of

    with cli_errors():
        settings = place.settings()
        channels = channels_of(settings)
    if not channels:
        raise fail("no destination is configured: set notify_webhook_url, or notify_email_to with notify_smtp_host")
    base = settings.public_url or settings.own_url
    words = "This is a test: notifications from this server arrive here."
    failed = False
    for channel in channels:
        result = channel.deliver(Notification("note", words, "", "test", "test", f"{base}/", base, time.time()))
        failed = failed or bool(result.reason)
        typer.echo(f"{channel.name}: {result.reason or 'delivered'}")
    raise typer.Exit(ExitCode.FAILED if failed else ExitCode.DONE)
