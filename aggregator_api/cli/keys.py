"""Commands for API keys and for a fleet's vouching key."""

from __future__ import annotations

import base64
import time
import webbrowser
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.auth import api_keys, sessions
from aggregator_api.auth.api_keys import NewKey, Scope
from aggregator_api.auth.signing import Identity
from aggregator_api.cli.session import (
    DAY_S,
    HERE,
    FederationOption,
    ServerPlace,
    cli_errors,
    date,
    get_federation,
    new_app,
    note,
    print_rows,
    reading,
    writing,
)
from aggregator_api.core.errors import ConfigError, NotFoundError
from aggregator_api.core.ports import is_open
from aggregator_api.devices import enrolment_tokens
from aggregator_api.devices.enrolment_tokens import NewToken
from aggregator_api.storage.db.models import CredentialRow, DeviceRow, EnrolmentTokenRow, FederationRow
from federation.secure_sums import vouching
from gaitway.files import write_file
from gaitway.terminal import print_warning

KeyFederationOption = Annotated[
    str | None, typer.Option("--federation", help="Only for this federation (default: the whole server).")
]

keys_app = new_app("API keys of the server.")
tokens_app = new_app("One-time tokens that let devices enrol.")


@keys_app.command("list")
def list_keys(place: ServerPlace = HERE) -> list[dict[str, Any]]:
    """List the keys, without their secrets.

    Example: `python -m aggregator_api keys list`
    """
    rows = []
    with reading(place) as session:
        for row, federation in api_keys.every(session):
            what = {"id": row.prefix, "name": row.name, "scopes": list(row.scopes), "federation": federation}
            times = {"created_at": row.created_at, "used_at": row.used_at}
            ends = "revoked" if row.revoked_at else "held" if row.held_at else row.expires_at
            rows.append({**what, **times, "ends": ends})
    same = {key: key for key in ("id", "name", "scopes", "federation")}
    print_rows(
        rows,
        {**same, "created_at": "made", "used_at": "used", "ends": "ends"},
        {
            "scopes": " ".join,
            "federation": lambda name: name or "all",
            "created_at": date,
            "used_at": date,
            "ends": lambda ends: ends if isinstance(ends, str) else date(ends),
        },
    )
    return rows


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Option("--name", help="A name for the key.")],
    scope: Annotated[list[str], typer.Option("--scope", help="operator, read or device; repeatable.")],
    federation: KeyFederationOption = None,
    days: Annotated[int | None, typer.Option("--days", min=1, help="Days until it expires (default: never).")] = None,
    place: ServerPlace = HERE,
) -> dict[str, str]:
    """Make a key and print it; it is shown only once.

    Example: `python -m aggregator_api keys create --name grafana --scope read --days 90`
    """
    with cli_errors():
        for word in scope:
            if word not in get_args(Scope):
                raise ConfigError(f"--scope {word[:40]}: expected operator, read or device")
    with writing(place) as session:
        lifetime = None if days is None else days * DAY_S
        new = NewKey.model_validate({"name": name, "scopes": scope, "federation": federation, "lifetime_s": lifetime})
        row = get_federation(session, federation) if federation else None
        expires_at = None if lifetime is None else time.time() + lifetime
        made, key = api_keys.make(session, new.name, new.scopes, federation=row, expires_at=expires_at)
        detail = f"key {made.prefix} of {new.name}: {' '.join(new.scopes)}"
        note(session, "keys.create", federation=federation or "", detail=detail)
        result = {"id": made.prefix, "key": key}
    typer.echo(key)
    return result


@keys_app.command("revoke")
def revoke_key(
    id: Annotated[str, typer.Argument(help="The part of the key between `gw_` and its secret.")],
    place: ServerPlace = HERE,
) -> None:
    """Revoke a key immediately.

    Example: `python -m aggregator_api keys revoke 0a1b2c3d4e5f`
    """
    with writing(place) as session:
        row = _key(session, id)
        api_keys.revoke(row)
        note(session, "keys.revoke", detail=f"key {id} of {row.name}")
    typer.echo(f"{id} is revoked")


@keys_app.command("confirm")
def confirm_keys(
    ids: Annotated[list[str], typer.Argument(help="Keys' ids, as shown by `keys list`.", metavar="ID…")],
    place: ServerPlace = HERE,
) -> None:
    """Restore keys' access after a restore without a ledger; all of them, or none.

    Confirm only keys that you know weren't revoked after the backup.

    Example: `python -m aggregator_api keys confirm 0a1b2c3d4e5f`
    """
    with writing(place) as session:
        for id in ids:
            row = _key(session, id)
            api_keys.confirm(row)
            note(session, "keys.confirm", detail=f"key {id} of {row.name}")
    typer.echo(f"{', '.join(ids)}: confirmed")


def _key(session: Session, id: str) -> CredentialRow:
    row = api_keys.find_key(session, id)
    if row is None:
        raise NotFoundError(f"there is no key {id[:40]!r}; `keys list` shows them")
    return row


def login_link(
    key: Annotated[str | None, typer.Option("--key", help="Key id to log in with (default: an operator's).")] = None,
    minutes: Annotated[int, typer.Option("--minutes", min=1, max=720, help="Minutes until it expires.")] = 10,
    port: Annotated[
        int | None, typer.Option("--port", help="The server's port (default: where `serve` listens).")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")] = False,
    place: ServerPlace = HERE,
) -> None:
    """Print a link that logs one browser of this machine in to the operator's pages, once, without showing a key.

    Example: `python -m aggregator_api login-link --data-dir runs/server`
    """
    with cli_errors():
        url = place.url(port)
    with writing(place) as session:
        now = time.time()
        row = _key(session, key) if key else api_keys.newest_operator(session, now)
        if row is None:
            raise NotFoundError("no operator's key opens this server; `keys create --scope operator` makes one")
        if api_keys.find_id(session, row.prefix, now) is None:
            raise NotFoundError(f"the key {row.prefix} is no longer valid; `keys list` shows the valid ones")
        link = f"{url}/login/{sessions.make_link(session, row, now, 60.0 * minutes)}"
        note(session, "sessions.link", detail=f"key {row.prefix}, {minutes} minutes")
    if not is_open(url):
        print_warning(f"nothing answers at {url}; start the server with `serve`, or name its port with --port")
    typer.echo(link)
    if open_browser:
        webbrowser.open(link)


@tokens_app.command("list")
def list_tokens(
    federation: Annotated[str | None, typer.Option("--federation", help="Only of this one; else of all.")] = None,
    place: ServerPlace = HERE,
) -> list[dict[str, Any]]:
    """List the enrolment tokens, without their secrets.

    Example: `python -m aggregator_api tokens list --federation walks`
    """
    with reading(place) as session:
        query = select(EnrolmentTokenRow, FederationRow.name).join(FederationRow).order_by(EnrolmentTokenRow.id)
        if federation:
            query = query.where(FederationRow.id == get_federation(session, federation).id)
        now = time.time()
        rows = [
            {
                "id": row.id, "federation": name, "device": row.used_by or row.device, "created_at": row.created_at,
                "expires_at": row.expires_at, "state": enrolment_tokens.state(row, now),
            }
            for row, name in session.execute(query)
        ]  # fmt: skip
    shown = {"id": "id", "federation": "federation", "device": "device", "created_at": "created (UTC)"}
    formats = {"device": lambda device: device or "any", "created_at": date, "expires_at": date}
    print_rows(rows, {**shown, "expires_at": "ends (UTC)", "state": "state"}, formats)
    return rows


@tokens_app.command("confirm")
def confirm_tokens(
    ids: Annotated[list[int], typer.Argument(help="Tokens' numbers, as shown by `tokens list`.")],
    federation: Annotated[str, typer.Option("--federation", help="The tokens' federation.")],
    place: ServerPlace = HERE,
) -> None:
    """Make tokens valid again after a restore without a ledger; all of them, or none.

    Example: `python -m aggregator_api tokens confirm 3 --federation walks`
    """
    with writing(place) as session:
        home = get_federation(session, federation)
        for id in ids:
            enrolment_tokens.confirm(session, home, id)
            note(session, "enrolment-tokens.confirm", federation=federation, detail=f"token {id}")
    typer.echo(f"{', '.join(map(str, ids))}: confirmed")


@tokens_app.command("create")
def create_token(
    federation: Annotated[str, typer.Option("--federation", help="The federation that the device joins.")],
    device: Annotated[str | None, typer.Option("--device", help="Restrict to this device (default: any).")] = None,
    auto_approve: Annotated[bool, typer.Option("--auto-approve", help="Approve the device automatically.")] = False,
    hours: Annotated[int, typer.Option("--hours", min=1, help="Hours until it expires.")] = 24,
    place: ServerPlace = HERE,
) -> dict[str, Any]:
    """Make an enrolment token and print it; it is shown only once.

    Example: `python -m aggregator_api tokens create --federation walks --device phone1`
    """
    with writing(place) as session:
        server = Identity(place.settings().identity)
        given = {"device": device, "auto_approve": auto_approve, "lifetime_s": hours * 3600}
        new = NewToken.model_validate(given)
        made, token = enrolment_tokens.make(session, get_federation(session, federation), new, server.public_key)
        about = {"federation": federation, "device": device or "", "detail": f"token {made.id}"}
        note(session, "enrolment-tokens.create", **about)
        result = {"id": made.id, "token": token}
    typer.echo(token)
    return result


vouch_app = new_app("Vouch for the devices in secure sums with a key that the server doesn't have.")
KeyOption = Annotated[Path, typer.Option("--key", help="The signing key's file; keep it off the server.")]


@vouch_app.command("key")
def make_key(
    out: Annotated[Path, typer.Option("--out", help="File to write the signing key to.")] = Path("vouch.key"),
) -> None:
    """Make the signing key, and print its public half for the plan's secure.voucher.

    Run this on a machine that isn't the server.

    Example: `python -m aggregator_api vouch key --out vouch.key`
    """
    with cli_errors():
        if out.exists():
            raise ConfigError(f"{out} already exists; choose another --out, or move it away")
        key = Ed25519PrivateKey.generate()
        write_file(out, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    typer.echo(base64.b64encode(key.public_key().public_bytes_raw()).decode())


@vouch_app.command("list")
def list_devices(federation: FederationOption, place: ServerPlace = HERE) -> list[dict[str, str | None]]:
    """Print each approved device's name and key for `sign`; compare them with the devices first.

    `python -m edge_agent privacy` prints a device's own key, and so does the page of a phone.

    Example: `python -m aggregator_api vouch list --federation walk > devices.txt`
    """
    with reading(place) as session:
        row = get_federation(session, federation)
        approved = (DeviceRow.federation_id == row.id, DeviceRow.enrolment == "approved")
        query = select(DeviceRow.name, DeviceRow.public_key).where(*approved).order_by(DeviceRow.name)
        found = [{"name": name, "key": key} for name, key in session.execute(query)]
    for device in found:
        typer.echo(f"{device['name']} {device['key']}")
    return found


@vouch_app.command("sign")
def sign_vouchers(
    devices: Annotated[Path, typer.Argument(help="Lines with a device's name and key.", metavar="DEVICES")],
    federation: FederationOption,
    key: KeyOption = Path("vouch.key"),
    days: Annotated[int, typer.Option("--days", min=1, help="Days until the vouchers expire.")] = 365,
    revoked: Annotated[
        Path | None, typer.Option("--revoked", help="File with one revoked key per line (default: none).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="File to write the vouchers to.")] = Path("vouched.json"),
) -> None:
    """Vouch for devices, and revoke keys. This needs no server: run it where the signing key is.

    Example: `python -m aggregator_api vouch sign devices.txt --federation walk --key vouch.key`
    """
    with cli_errors():
        private, now = _private_key(key), int(time.time())
        pairs = [_pair(line) for line in _lines(devices)]
        vouchers = {
            name: vouching.vouch(private.sign, federation, name, identity, now + days * DAY_S).decode()
            for name, identity in pairs
        }
        gone = [_identity(line) for line in _lines(revoked)] if revoked else []
        if len(gone) > vouching.MAX_REVOKED:
            raise ConfigError(
                f"{revoked} has {len(gone)} keys; at most {vouching.MAX_REVOKED} can be revoked at a time"
            )
        from aggregator_api.devices.vouching import VoucherFile  # torch takes a second, and --help doesn't need it

        listed = vouching.revoke(private.sign, federation, gone, serial=now).decode()
        file = VoucherFile(federation=federation, vouchers=vouchers, revoked=listed)
        write_file(out, file.model_dump_json(indent=1).encode())
    typer.echo(f"{out} vouches for {len(vouchers):,} devices of {federation} and revokes {len(gone):,} keys")


@vouch_app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="The file that `vouch sign` wrote.", metavar="FILE")],
    federation: FederationOption,
    place: ServerPlace = HERE,
) -> None:
    """Import devices' vouchers. Rounds of a plan with secure.voucher invite only devices that have one.

    Example: `python -m aggregator_api vouch import vouched.json --federation walk`
    """
    with writing(place) as session:
        from aggregator_api.devices.vouching import VoucherFile, import_vouchers

        found = import_vouchers(session, get_federation(session, federation), VoucherFile.parsed(_text(file)))
        note(session, "vouch.import", federation=federation, detail=f"{len(found.devices)} devices")
    for name, reason in found.ignored.items():
        print_warning(f"{name} has no voucher: {reason}")
    typer.echo(f"{len(found.devices):,} devices of {federation} are vouched for")


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        found = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"the signing key {path} can't be used: {error}; `vouch key` makes one") from error
    if not isinstance(found, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds a {type(found).__name__}; expected an ed25519 key, as `vouch key` makes it")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from error


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in _text(path).splitlines() if line.strip()]


def _pair(line: str) -> tuple[str, bytes]:
    name, _, key = line.partition(" ")
    return name, _identity(key.strip())


def _identity(text: str) -> bytes:
    try:
        identity = base64.b64decode(text, validate=True)
    except ValueError:
        identity = b""
    if len(identity) != 32:
        raise ConfigError(
            f"{text[:80]!r} is not a device's key; expected base64 of 32 bytes, as `vouch list` prints it"
        )
    return identity
