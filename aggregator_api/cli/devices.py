"""`python -m aggregator_api devices …`: on the database itself, on the server's machine; the server may be running."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import select
from sqlalchemy.orm import Session

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
    print_table,
    reading,
    revoke_accounts,
    writing,
)
from aggregator_api.core.errors import ConfigError
from aggregator_api.devices.service import DeviceTags
from aggregator_api.storage.db.models import DeviceRow, FederationRow

app = new_app("List, approve, remove and group devices of federations.")
app.later(
    "delete",
    "aggregator_api.cli.storage:delete_device",
    "Delete a device with all that it said, sent and measured, and its account; the audit's entries stay.",
)
Names = Annotated[list[str], typer.Argument(help="Names of devices.", metavar="DEVICE…")]


@app.command("list")
def list_devices(
    federation: Annotated[str | None, typer.Option("--federation", help="Only this federation (default: all).")] = None,
    enrolment: Annotated[
        str | None, typer.Option("--enrolment", help="Only these: open, pending, approved or revoked.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only those in this group.")] = None,
    suspended: Annotated[bool, typer.Option("--suspended", help="Only those that no round invites.")] = False,
    place: ServerPlace = HERE,
) -> list[dict[str, Any]]:
    """List devices, what they last said, and how they came in.

    Example: `python -m aggregator_api devices list --federation walk --enrolment pending`
    """
    with reading(place) as session:
        found = _listed(session, federation, enrolment, tag, suspended)
    rows = []
    for device in found:
        what = (device["name"], device["federation"], device["state"], date(device["seen_at"]), device["examples"])
        rows.append((*what, device["enrolment"], " ".join(device["tags"])))
    print_table(("device", "federation", "state", "last seen (UTC)", "examples", "enrolment", "tags"), rows)
    return found


def _listed(
    session: Session, federation: str | None, enrolment: str | None, tag: str | None, suspended: bool
) -> list[dict[str, Any]]:
    from aggregator_api.storage.db.repositories import select_devices

    if enrolment not in (None, "open", "pending", "approved", "revoked"):
        raise ConfigError(f"--enrolment {enrolment!r}: expected open, pending, approved or revoked")
    query = select_devices(enrolment, tag, suspended=suspended).join(
        FederationRow, DeviceRow.federation_id == FederationRow.id
    )
    if federation is not None:
        query = query.where(FederationRow.id == get_federation(session, federation).id)
    names = {row.id: row.name for row in session.scalars(select(FederationRow))}
    columns = ("name", "state", "examples", "enrolled_at", "seen_at", "enrolment", "adoption", "tags", "suspended_at")
    rows = session.scalars(query.order_by(FederationRow.name, DeviceRow.name))
    return [{"federation": names[row.federation_id], **{key: getattr(row, key) for key in columns}} for row in rows]


def _each(
    session: Session, federation: str, devices: Sequence[str], action: str, act: Callable[..., Any], detail: str = ""
) -> None:
    """Do something with each device, all of them or none, and write it into the audit."""
    from aggregator_api.devices import service

    for device in devices:
        act(session, *service.find(session, federation, device))
        note(session, action, federation=federation, device=device, detail=detail)


@app.command()
def approve(devices: Names, federation: FederationOption, place: ServerPlace = HERE) -> None:
    """Let devices that have shown a token and their key claim credentials; all of them, or none.

    Example: `python -m aggregator_api devices approve --federation walk phone1 phone2`
    """
    from aggregator_api.devices import service  # torch takes a second, which --help need not

    with writing(place) as session:
        _each(session, federation, devices, "devices.approve", service.admit_device)
    typer.echo(f"{', '.join(devices)}: approved")


@app.command()
def revoke(devices: Names, federation: FederationOption, place: ServerPlace = HERE) -> None:
    """Put devices out: their keys, tokens and broker accounts are void, and their connections end.

    A running server takes nothing more of them; a round that waits for one gives it up as one that went offline.

    Example: `python -m aggregator_api devices revoke --federation walk phone1`
    """
    from aggregator_api.devices import service

    with cli_errors():
        settings = place.settings()
        with database_of(settings) as database, database.write() as session:
            _each(session, federation, devices, "devices.revoke", service.revoke_device_credentials)
        revoke_accounts(settings, federation, devices, done="they are revoked here", remedy="run this again")
    typer.echo(f"{', '.join(devices)}: revoked")


@app.command()
def reinstate(devices: Names, federation: FederationOption, place: ServerPlace = HERE) -> None:
    """Let devices take part again that were suspended because their updates were refused again and again.

    Example: `python -m aggregator_api devices reinstate --federation walk phone1`
    """
    from aggregator_api.devices import suspension

    with writing(place) as session:
        _each(session, federation, devices, "devices.reinstate", suspension.reinstate)
    typer.echo(f"{', '.join(devices)}: reinstated; the next round may invite them")


@app.command()
def withdraw(
    devices: Names,
    federation: FederationOption,
    place: ServerPlace = HERE,
) -> None:
    """Take devices' sums out of a continuous federation: its next version is as if they had never sent any.

    A device that goes on sends them again; revoke it to keep it out. With secure sums the server has no single ones:
    revoke or delete the device, and the next sum is without it.

    Example: `python -m aggregator_api devices withdraw --federation walk phone1`
    """
    from aggregator_api.devices import contributions

    with writing(place) as session:
        _each(session, federation, devices, "devices.withdraw", contributions.withdraw)
    typer.echo(f"{', '.join(devices)}: withdrawn; a running server publishes the next version without them")


@app.command()
def tag(
    devices: Names,
    federation: FederationOption,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="A group; repeat it. None: out of all.")] = None,
    place: ServerPlace = HERE,
) -> None:
    """Put devices into these groups and no others; a plan's `rounds.cohort_tags` draws cohorts from groups.

    A running server that waits for devices of a group notices with the next device that comes or goes.

    Example: `python -m aggregator_api devices tag --federation walk phone1 phone2 --tag pilot`
    """
    from aggregator_api.devices.service import change

    with writing(place) as session:
        wanted = DeviceTags(tags=tags or []).tags
        act = partial(change, tags=wanted)
        _each(session, federation, devices, "tags.set", act, detail=" ".join(wanted))
    typer.echo(f"{', '.join(devices)}: {' '.join(wanted) or 'in no group'}")


@app.command()
def enrol(
    federation: FederationOption,
    devices: Annotated[Path, typer.Option("--csv", help="Columns `device` and `tags`; - for standard input.")],
    server: Annotated[str, typer.Option("--server", help="The server's base URL, as devices reach it.")],
    out: Annotated[Path, typer.Option("--out", help="A new file: .html for a sheet of QR codes, .csv for the tokens.")],
    auto_approve: Annotated[bool, typer.Option("--auto-approve", help="Approve them automatically.")] = False,
    hours: Annotated[int, typer.Option("--hours", min=1, max=8784, help="The tokens end after so many hours.")] = 168,
    place: ServerPlace = HERE,
) -> None:
    """Make a token for each device of a CSV, and write them as a sheet of QR codes to print; all of them, or none.

    A code holds what `gaitway agent enrol --token-file` takes: server, federation, device and token. The file is 0600.

    Example: `python -m aggregator_api devices enrol --federation walk --csv devices.csv --server
    https://gaitway.example --out sheet.html`
    """
    from aggregator_api.auth.signing import Identity, write_secret
    from aggregator_api.devices import enrolment_tokens

    with writing(place) as session:
        if out.suffix not in (".html", ".csv"):
            raise ConfigError(f"--out {out}: expected a name that ends in .html or .csv")
        address, row = enrolment_tokens.checked_server(server), get_federation(session, federation)
        wanted = enrolment_tokens.read_devices(_text(devices), _enrolled(session, row))
        server_key = Identity(place.settings().identity).public_key
        base = enrolment_tokens.NewToken(auto_approve=auto_approve, lifetime_s=hours * 3600)
        tokens = [base.model_copy(update={"device": entry.device, "tags": list(entry.tags)}) for entry in wanted]
        made = [_issued(session, row, new, address, server_key) for new in tokens]
        text = enrolment_tokens.sheet(made) if out.suffix == ".html" else enrolment_tokens.token_table(made)
        if not write_secret(out, text.encode()):
            raise ConfigError(f"{out} is there already, and may hold tokens; delete it, or name another file")
    typer.echo(f"{out}: {len(made)} tokens, each as secret as a password until its device has used it")


def _text(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: {error.reason}; save it as CSV in UTF-8") from error


def _enrolled(session: Session, federation: FederationRow) -> Sequence[str]:
    query = select(DeviceRow.name).where(DeviceRow.federation_id == federation.id)
    return session.scalars(query.where(DeviceRow.enrolment.in_(("pending", "approved")))).all()


def _issued(session: Session, federation: FederationRow, new: Any, server: str, server_key: bytes) -> Any:
    from aggregator_api.devices import enrolment_tokens
    from federation.protocol.enrolment_uri import EnrolmentUri

    row, token = enrolment_tokens.make(session, federation, new, server_key)
    detail = f"token {row.id}"
    note(session, "enrolment-tokens.create", federation=federation.name, device=new.device, detail=detail)
    uri = EnrolmentUri(server, federation.name, new.device, token)
    return enrolment_tokens.IssuedToken(uri, new.tags, row.expires_at)
