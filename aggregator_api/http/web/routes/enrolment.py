"""Enrolment: tokens as text, link and QR code, and the devices that wait for approval.

Where devices reach this server, for links and QR codes: what an operator has said, never what a Host header claims.
A browser can be made to send any Host. So without the setting `public_url` only names of this machine are believed, and
loopback, which no phone reaches, gives way to an address that the server listens on.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import segno
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from markupsafe import Markup

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import UnprocessableError
from aggregator_api.core.ports import is_loopback
from aggregator_api.core.settings import Settings, is_base_url
from aggregator_api.devices.enrolment_tokens import NewToken, confirm, make, revoke
from aggregator_api.federations import programs
from aggregator_api.http.dependencies import IdentityDep, PageDep, PlaceDep, TokenId
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.credentials import MadeToken
from aggregator_api.http.queries.listings import DeviceFilter, PageParams
from aggregator_api.http.web.forms import Form, FormDep, pressed, validated, whole_number, words_of
from aggregator_api.http.web.pages import page
from aggregator_api.storage.db import audit
from federation.protocol.enrolment_uri import EnrolmentUri

router = APIRouter()

HOUR_S = 3600
LIFETIMES_H = {1: "an hour", 24: "a day", 7 * 24: "a week", 30 * 24: "30 days"}


@router.get("/federations/{name}/enrolment")
@requires("operator", "read")
def show(request: Request, place: PlaceDep, cursor: PageDep) -> Response:
    """Show who waits, and the tokens."""
    with place.read() as (session, row):
        waiting = listings.devices(session, row, DeviceFilter("pending"), PageParams(0, 100))
        tokens = listings.tokens(session, row, cursor)
    found: dict[str, Any] = {"waiting": waiting, "tokens": tokens, "cursor": cursor.cursor, "lifetimes": LIFETIMES_H}
    return page(request, "enrolment.html", federation=place.name, **found)


@router.post("/federations/{name}/enrolment-tokens")
@requires("operator")
def make_token(request: Request, identity: IdentityDep, place: PlaceDep, form: FormDep) -> Response:
    """Make a token, and show it once."""
    settings, came_to = request.app.state.runtime.settings, (request.scope.get("server") or ("",))[0]
    server = server_url(settings, str(request.base_url), form.get("server", ""), came_to)
    wanted = _wanted(form)
    with place.write() as (session, federation):
        row, token = make(session, federation, wanted, identity.public_key)
        audit.mention(f"token {row.id}")
        made, takes_phones = MadeToken.of(row, token), programs.takes_phones(federation)
    links = _links(made, place.name, server)
    if not request.app.state.runtime.settings.phone_page:
        links["phone"] = ""
    return page(
        request, "token.html", federation=place.name, made=made, server=server, takes_phones=takes_phones, **links
    )


@router.post("/federations/{name}/enrolment-tokens/{token}/revoke")
@router.post("/federations/{name}/enrolment-tokens/{token}/confirm")
@requires("operator")
def act(request: Request, place: PlaceDep, token: TokenId, form: FormDep) -> Response:
    """Do what the path ends in: let a token let nobody in, or let one that a restore holds let a device in."""
    with place.write() as (session, row):
        {"revoke": revoke, "confirm": confirm}[pressed(request)](session, row, token)
        audit.mention(f"token {token}")
    return RedirectResponse(f"/federations/{place.name}/enrolment", 303)


def _wanted(form: Form) -> NewToken:
    hours = whole_number(form, "hours")
    fields = {
        "device": form.get("device", "").strip() or None,
        "auto_approve": form.get("auto_approve") == "yes",
        "tags": words_of(form.get("tags", "")),
        "lifetime_s": HOUR_S * (24 if hours is None else hours),
    }
    return validated(NewToken, fields)


def _links(made: MadeToken, name: str, server: str) -> dict[str, Any]:
    """Return the token as links and QR codes; a token for any device has no links, which need a name."""
    if not made.device:
        return {"uri": "", "code": _qr_svg(made.token), "phone": ""}
    uri = EnrolmentUri(server, name, made.device, made.token)
    found = {"uri": str(uri), "code": _qr_svg(str(uri)), "phone": uri.phone_link}
    return {**found, "phone_code": _qr_svg(uri.phone_link), "phone_works": _is_secure(server)}


def _qr_svg(text: str) -> Markup:
    code = segno.make(text, error="m", micro=False)
    return Markup(
        code.svg_inline(scale=4, border=4, dark="#000", light="#fff", omitsize=True, svgclass=None, lineclass=None)
    )


def _is_secure(server: str) -> bool:
    """Whether a browser lets a page of that address read motion sensors and make keys."""
    parts = urlsplit(server)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


_ELSEWHERE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses of documentation (RFC 5737, RFC 3849): nothing is sent to them, only the way out is looked up."""


def server_url(settings: Settings, requested: str, given: str, reached: str = "") -> str:
    """Return the base URL that devices are told; `given` by the operator, `asked` as a browser came.

    `reached` is the address of this machine that the browser's connection has come to.

    Raises:
        UnprocessableError: if nobody knows a URL of this server.
    """
    given = given.strip().rstrip("/")
    if given:
        if not is_base_url(given):
            raise UnprocessableError("server: expected the address that devices reach, such as https://gaitway.example")
        return given
    if settings.public_url:
        return settings.public_url
    host = urlsplit(requested).hostname or ""
    if is_loopback(host):
        return own_url(settings) or requested.rstrip("/")
    if host in {reached, *_own_names(settings)}:
        return requested.rstrip("/")
    raise UnprocessableError(
        f"server: this browser came by the name {host[:100]!r}, which this server does not know as its own; fill in "
        "the server's address as devices reach it, or set public_url in the server's settings"
    )


def own_url(settings: Settings) -> str | None:
    """Return a URL at which other machines reach this server; None if it listens on loopback alone."""
    if settings.public_url:
        return settings.public_url
    https = settings.tls_cert_file is not None
    host, port = settings.https_address if https else (settings.host, settings.port)
    address = outgoing_address() if _is_wildcard(host) else host
    if not address or is_loopback(address):
        return None
    shown = f"[{address}]" if ":" in address else address
    return f"{'https' if https else 'http'}://{shown}:{port}{settings.root_path}"


def _own_names(settings: Settings) -> set[str]:
    name = socket.gethostname().lower()
    found = {name, f"{name.partition('.')[0]}.local", settings.host, settings.https_host, outgoing_address()}
    return {address for address in found if address}


def _is_wildcard(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def outgoing_address() -> str | None:
    """Return this machine's address on its way to other networks; None without a network."""
    for address, family in _ELSEWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    return None
