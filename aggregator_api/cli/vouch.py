"""`python -m aggregator_api vouch …`: who vouches for the devices of secure sums; `key` and `sign` need no server."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Annotated

import typer
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from sqlalchemy import select

from aggregator_api.cli.session import (
    DAY_S,
    ConfigOption,
    DataOption,
    FederationOption,
    cli_errors,
    get_federation,
    new_app,
    note,
    reading,
    writing,
)
from aggregator_api.core.errors import ConfigError
from aggregator_api.storage.db.models import DeviceRow
from federation.secure_sums import vouching
from gaitway.files import write_file
from gaitway.terminal import print_warning

app = new_app("Vouch for the devices of secure sums, with a key that the server doesn't have.")
KeyOption = Annotated[Path, typer.Option("--key", help="The signing key's file; keep it off the server.")]


@app.command("key")
def make_key(
    out: Annotated[Path, typer.Option("--out", help="Where the signing key goes.")] = Path("vouch.key"),
) -> None:
    """Make the signing key, and print its public half, which the plan names as secure.voucher.

    Run this on a machine that isn't the server.

    Example: `python -m aggregator_api vouch key --out vouch.key`
    """
    with cli_errors():
        if out.exists():
            raise ConfigError(f"{out} exists already; give another --out, or move it away")
        key = Ed25519PrivateKey.generate()
        write_file(out, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    typer.echo(base64.b64encode(key.public_key().public_bytes_raw()).decode())


@app.command("list")
def list_devices(federation: FederationOption, data_dir: DataOption = None, config: ConfigOption = None) -> None:
    """Print the name and key of each approved device, which `sign` reads; compare them with the devices first.

    `python -m edge_agent privacy` prints a device's own key, and so does the page of a phone.

    Example: `python -m aggregator_api vouch list --federation walk > devices.txt`
    """
    with reading(data_dir, config) as session:
        row = get_federation(session, federation)
        approved = (DeviceRow.federation_id == row.id, DeviceRow.enrolment == "approved")
        for name, key in session.execute(
            select(DeviceRow.name, DeviceRow.public_key).where(*approved).order_by(DeviceRow.name)
        ):
            typer.echo(f"{name} {key}")


@app.command("sign")
def sign_vouchers(
    devices: Annotated[Path, typer.Argument(help="Lines with a device's name and key.", metavar="DEVICES")],
    federation: FederationOption,
    key: KeyOption = Path("vouch.key"),
    days: Annotated[int, typer.Option("--days", min=1, help="The vouchers end after so many days.")] = 365,
    revoked: Annotated[
        Path | None, typer.Option("--revoked", help="Lines with keys that are revoked; else none.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where the vouchers go.")] = Path("vouched.json"),
) -> None:
    """Vouch for devices, and revoke keys. It needs no server: run it where the signing key is.

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
            raise ConfigError(f"{revoked} has {len(gone)} keys, at most {vouching.MAX_REVOKED} are revoked at a time")
        from aggregator_api.devices.vouching import VoucherFile  # torch takes a second, which --help need not

        listed = vouching.revoke(private.sign, federation, gone, serial=now).decode()
        file = VoucherFile(federation=federation, vouchers=vouchers, revoked=listed)
        write_file(out, file.model_dump_json(indent=1).encode())
    typer.echo(f"{out} vouches for {len(vouchers):,} devices of {federation} and revokes {len(gone):,} keys")


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="What `vouch sign` has written.", metavar="FILE")],
    federation: FederationOption,
    data_dir: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Give devices their vouchers. Rounds of a plan with secure.voucher invite only devices that have one.

    Example: `python -m aggregator_api vouch import vouched.json --federation walk`
    """
    with writing(data_dir, config) as session:
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
