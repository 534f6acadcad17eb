"""`python -m aggregator_api devices …`: works on the database, on the server's machine; the server may be running."""

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
DELETE = "Delete a device with its reports, uploads, scores and account; audit entries stay."
app.later("aggregator_api.cli", {"delete": ("storage:delete_device", DELETE)})
Names = Annotated[list[str], typer.Argument(help="Names of devices.", metavar="DEVICE…")]


@app.command("list")
def list_devices(
    federation: Annotated[str | None, typer.Option("--federation", help="Only this federation (default: all).")] = None,
    enrolment: Annotated[
        str | None, typer.Option("--enrolment", help="Only this state: open, pending, approved or revoked.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only devices in this group.")] = None,
    suspended: Annotated[bool, typer.Option("--suspended", help="Only suspended devices.")] = False,
    place: ServerPlace = HERE,
) -> list[dict[str, Any]]:
    """List devices, their last status, and their enrolment.

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
    """Apply an action to all devices or none, and record it in the audit log."""
    from aggregator_api.devices import service

    for device in devices:
        act(session, *service.find(session, federation, device))
        note(session, action, federation=federation, device=device, detail=detail)


@app.command()
def approve(devices: Names, federation: FederationOption, place: ServerPlace = HERE) -> None:
    """Approve devices that have presented a token and their key, all or none; they can then claim credentials.

    Example: `python -m aggregator_api devices approve --federation walk phone1 phone2`
    """
    from aggregator_api.devices import service  # torch takes a second, and --help doesn't need it

    with writing(place) as session:
        _each(session, federation, devices, "devices.approve", service.admit_device)
    typer.echo(f"{', '.join(devices)}: approved")


@app.command()
def revoke(devices: Names, federation: FederationOption, place: ServerPlace = HERE) -> None:
    """Revoke devices: their keys, tokens and broker accounts become invalid, and their connections end.

    A running server accepts nothing more from them; a round that waits for one treats it as offline.

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
    """Reinstate devices that were suspended because their updates were refused repeatedly.

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
    """Remove devices' sums from a continuous federation, as if they had never sent any.

    An active device sends them again; revoke it to keep it out. With secure sums the server has no individual sums:
    revoke or delete the device, and the next sum excludes it.

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
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="A group; repeatable. Without it: remove from all groups.")
    ] = None,
    place: ServerPlace = HERE,
) -> None:
    """Set devices' groups, replacing earlier ones; a plan's `rounds.cohort_tags` draws cohorts from groups.

    A running server that waits for devices of a group notices when the next device connects or disconnects.

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
    devices: Annotated[
        Path, typer.Option("--csv", help="CSV with the columns `device` and `tags`; - for standard input.")
    ],
    server: Annotated[str, typer.Option("--server", help="The server's base URL for devices.")],
    out: Annotated[Path, typer.Option("--out", help="A new file: .html for a sheet of QR codes, .csv for the tokens.")],
    auto_approve: Annotated[bool, typer.Option("--auto-approve", help="Approve them automatically.")] = False,
    hours: Annotated[int, typer.Option("--hours", min=1, max=8784, help="Hours until the tokens expire.")] = 168,
    place: ServerPlace = HERE,
) -> None:
    """Make a token for each device of a CSV, all or none, and write them as a printable sheet of QR codes.

    A code holds the input of `gaitway agent enrol --token-file`: server, federation, device and token. The file's mode
    is 0600.

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
            raise ConfigError(f"{out} already exists and may hold tokens; delete it, or name another file")
    typer.echo(f"{out}: {len(made)} tokens; keep each as secret as a password until its device has used it")


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
