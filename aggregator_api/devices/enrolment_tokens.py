"""Enrolment tokens, for one device or for many, as a CSV table or a sheet of QR codes."""

from __future__ import annotations

import csv
import hashlib
import io
import secrets
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Annotated, NamedTuple, cast
from urllib.parse import urlsplit

import segno
from pydantic import Field, TypeAdapter, ValidationError
from sqlalchemy import CursorResult, select, update
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConfigError, NotFoundError, UnauthorizedError
from aggregator_api.storage.db.models import EnrolmentTokenRow, FederationRow
from federation.plan import Name, Strict
from federation.protocol.enrolment_uri import EnrolmentUri
from federation.protocol.signing import fingerprint

UNKNOWN = "this enrolment token is unknown; ask the operator for one"


DAY_S = 24 * 3600
YEAR_S = 366 * DAY_S


Tags = Annotated[list[Name], Field(max_length=32)]


class NewToken(Strict):
    """An enrolment token to make."""

    device: Name | None = Field(default=None, description="null: a device of any name that is free")
    auto_approve: bool = Field(default=False, description="let the device in without the operator's approval")
    tags: Tags = Field(default=[], description="groups that the device is put into when it enrols")
    lifetime_s: Annotated[int, Field(ge=60, le=YEAR_S)] = DAY_S


def make(
    session: Session,
    federation: FederationRow,
    new: NewToken,
    server_key: bytes,
) -> tuple[EnrolmentTokenRow, str]:
    """Write a new token's row, and return it with the token, which is not kept.

    It names the server's public key, so that a device takes credentials from no other server.
    """
    token = f"gwe_{secrets.token_urlsafe(32)}_{fingerprint(server_key)}"
    now = time.time()
    row = EnrolmentTokenRow(
        federation_id=federation.id,
        token_sha256=_sha256(token),
        device=new.device,
        auto_approve=new.auto_approve,
        tags=sorted(set(new.tags)),
        created_at=now,
        expires_at=now + new.lifetime_s,
    )
    session.add(row)
    session.flush()
    return row, token


def find(session: Session, federation: FederationRow, token: str, device: str, now: float) -> EnrolmentTokenRow:
    """Return the row of a token that may let this device in, or has done so before.

    Raises:
        UnauthorizedError: if the token is not one of that federation's, or is not for this device, or not any more.
    """
    row = session.scalar(select(EnrolmentTokenRow).where(EnrolmentTokenRow.token_sha256 == _sha256(token)))
    if row is None or row.federation_id != federation.id:
        raise UnauthorizedError(UNKNOWN)
    if row.device not in (None, device):
        raise UnauthorizedError(f"this enrolment token is for the device {row.device!r}, not for {device!r}")
    if row.used_at is not None:
        if row.used_by != device:
            raise UnauthorizedError("this enrolment token has been used; ask the operator for another")
        return row
    if row.revoked_at is not None or row.expires_at <= now:
        raise UnauthorizedError("this enrolment token has expired or was revoked; ask the operator for another")
    if row.held_at is not None:
        raise UnauthorizedError(
            "the server was restored, and its operator has not confirmed this enrolment token yet; ask the operator"
        )
    return row


def state(row: EnrolmentTokenRow, now: float) -> str:
    """Return what became of a token: used, revoked, ended, held (by a restore) or open."""
    if row.used_at is not None:
        return "used"
    if row.revoked_at is not None:
        return "revoked"
    return "ended" if row.expires_at <= now else "held" if row.held_at is not None else "open"


def revoke(session: Session, federation: FederationRow, id: int) -> EnrolmentTokenRow:
    """Revoke an unused token.

    Raises:
        NotFoundError: if the federation has no such token; so for `confirm`.
    """
    row = _get(session, federation, id)
    row.revoked_at = row.revoked_at or time.time()
    return row


def confirm(session: Session, federation: FederationRow, id: int) -> EnrolmentTokenRow:
    """Let a token that a restore without the ledger holds let a device in, as before."""
    row = _get(session, federation, id)
    row.held_at = None
    return row


def _get(session: Session, federation: FederationRow, id: int) -> EnrolmentTokenRow:
    row = session.get(EnrolmentTokenRow, id)
    if row is None or row.federation_id != federation.id:
        raise NotFoundError(f"federation {federation.name!r} has no enrolment token {id}")
    return row


def use(session: Session, row: EnrolmentTokenRow, device: str, now: float) -> bool:
    """Use a token up; False if another request was faster."""
    query = update(EnrolmentTokenRow).where(EnrolmentTokenRow.id == row.id, EnrolmentTokenRow.used_at.is_(None))
    done = cast("CursorResult[tuple[()]]", session.execute(query.values(used_at=now, used_by=device)))
    return done.rowcount == 1


def revoke_for(session: Session, federation: FederationRow, device: str, now: float) -> None:
    """Revoke the unused tokens that name a device."""
    query = update(EnrolmentTokenRow).where(
        EnrolmentTokenRow.federation_id == federation.id,
        EnrolmentTokenRow.device == device,
        EnrolmentTokenRow.used_at.is_(None),
        EnrolmentTokenRow.revoked_at.is_(None),
    )
    session.execute(query.values(revoked_at=now))


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


COLUMNS = ("device", "tags")
MAX_ROWS = 10_000
_NAME: TypeAdapter[str] = TypeAdapter(Name)


class DeviceRequest(NamedTuple):
    """A line of the CSV: a device, and the groups that it is put into when it enrols."""

    line: int
    device: str
    tags: tuple[str, ...] = ()


class IssuedToken(NamedTuple):
    """A device's token, as it is handed over."""

    uri: EnrolmentUri
    tags: tuple[str, ...]
    expires_at: float


def read_devices(text: str, taken: Iterable[str] = ()) -> list[DeviceRequest]:
    """Read a CSV with the columns `device` and, where wanted, `tags` (several are separated by spaces or semicolons).

    Raises:
        ConfigError: naming every line that is wrong: an impossible name, one that comes twice, or one of `taken`.
    """
    table = csv.DictReader(io.StringIO(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")), skipinitialspace=True)
    columns = [name.strip() for name in table.fieldnames or ()]
    if "device" not in columns or set(columns) - set(COLUMNS):
        shown = ", ".join(columns)[:200] or "nothing"
        raise ConfigError(f"the first line must name the columns, `device` and, where wanted, `tags`; it has {shown}")
    table.fieldnames = columns
    wrong: list[str] = []
    found: dict[str, DeviceRequest] = {}
    refused = set(taken)
    for row in table:
        device, tags = (row.get("device") or "").strip(), (row.get("tags") or "").replace(";", " ").split()
        wanted = DeviceRequest(table.line_num, device, tuple(sorted(set(tags))))
        wrong += [f"line {wanted.line}: {reason}" for reason in _wrong(row, wanted, found, refused)]
        found.setdefault(device, wanted)
    if not wrong and not found:
        wrong = ["it lists no devices below the first line"]
    if len(found) > MAX_ROWS:
        wrong = [f"it lists {len(found):,} devices; at most {MAX_ROWS:,} tokens can be made at once"]
    if wrong:
        more = f"\nand {len(wrong) - 20} more" if len(wrong) > 20 else ""
        raise ConfigError("no token was made:\n" + "\n".join(wrong[:20]) + more)
    return list(found.values())


def _wrong(row: dict[str, str], wanted: DeviceRequest, found: dict[str, DeviceRequest], taken: set[str]) -> list[str]:
    if None in row:
        return ["it has more cells than the first line; separate several tags by spaces or semicolons"]
    wrong = [reason for name in (wanted.device, *wanted.tags) if (reason := _impossible(name))]
    if (first := found.get(wanted.device)) is not None:
        wrong.append(f"the device {wanted.device!r} is already in line {first.line}")
    if wanted.device in taken:
        wrong.append(f"the device {wanted.device!r} has already enrolled; leave it out, or revoke it first")
    return wrong


def _impossible(name: str) -> str:
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return (
            f"{name[:80]!r} isn't a valid name: letters, digits, '.', '_' and '-', at most 64, a letter or digit first"
        )
    return ""


def checked_server(url: str) -> str:
    """Return the server's base URL as devices are to use it.

    Raises:
        ConfigError: if it is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"--server {url!r}: expected the base URL for devices, such as https://gaitway.example")
    return url.rstrip("/")


def token_table(made: Sequence[IssuedToken]) -> str:
    """Return the tokens as CSV."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow((*EnrolmentUri._fields, "tags", "expires", "uri"))
    for token in made:
        table.writerow((*token.uri, " ".join(token.tags), _day(token.expires_at), str(token.uri)))
    return out.getvalue()


def sheet(made: Sequence[IssuedToken]) -> str:
    """Return the tokens as an HTML page to print, a QR code for each device; it loads nothing from anywhere."""
    return _PAGE.format(count=len(made), cards="\n".join(_card(token) for token in made))


def _card(token: IssuedToken) -> str:
    code = segno.make(str(token.uri), error="m", micro=False).svg_inline(scale=3, border=4)
    lines = [f"federation {token.uri.federation}", token.uri.server, f"once, before {_day(token.expires_at)}"]
    if token.tags:
        lines.insert(1, " ".join(token.tags))
    text = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f'<section class="device"><h2>{escape(token.uri.device)}</h2>{code}{text}</section>'


def _day(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M UTC")


_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Enrolment of {count} devices</title>
<style>
  @page {{ size: A4; margin: 10mm; }}
  body {{ font: 11px/1.35 system-ui, sans-serif; margin: 0; }}
  .note {{ margin: 8px; }}
  main {{ display: grid; grid-template-columns: repeat(3, 1fr); gap: 6mm; }}
  .device {{ border: 1px dashed #999; padding: 3mm; text-align: center; break-inside: avoid; overflow-wrap: anywhere; }}
  .device svg {{ width: 48mm; height: 48mm; }}
  h2 {{ font-size: 15px; margin: 0; }}
  p {{ margin: 0; }}
  @media print {{ .note {{ display: none; }} }}
</style>
<p class="note">Each code enrols one device, once, and is as secret as a password until then. Print this page, cut it
along the lines, and delete the file.</p>
<main>
{cards}
</main>
</html>
"""
