"""Enrolment: tokens as text, link and QR code, and the devices that wait for approval."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import segno
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from markupsafe import Markup
from pydantic import ValidationError

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import UnprocessableError
from aggregator_api.core.ports import is_loopback
from aggregator_api.federations import programs, service
from aggregator_api.http.api import queries
from aggregator_api.http.api.dependencies import DatabaseDep, FederationName, IdentityDep, PageDep
from aggregator_api.http.api.queries import PageParams
from aggregator_api.http.api.routes import enrolment as rest
from aggregator_api.http.api.schemas.credentials import MadeToken, NewToken
from aggregator_api.http.web.forms import Form, FormDep, words_of
from aggregator_api.http.web.pages import page
from aggregator_api.http.web.server_address import server_url
from federation.protocol.enrolment_uri import EnrolmentUri
from gaitway.errors import first_problem

router = APIRouter()

HOUR_S = 3600
LIFETIMES_H = {1: "an hour", 24: "a day", 7 * 24: "a week", 30 * 24: "30 days"}


@router.get("/federations/{name}/enrolment")
@requires("operator", "read")
def show(request: Request, database: DatabaseDep, name: FederationName, cursor: PageDep) -> Response:
    """Show who waits, and the tokens."""
    with database.read() as session:
        row = service.get_federation(session, name)
        waiting = queries.devices(session, row, "pending", None, PageParams(0, 100))
        tokens = queries.tokens(session, row, cursor)
    found: dict[str, Any] = {"waiting": waiting, "tokens": tokens, "cursor": cursor.cursor, "lifetimes": LIFETIMES_H}
    return page(request, "enrolment.html", federation=name, **found)


@router.post("/federations/{name}/enrolment-tokens")
@requires("operator")
def make_token(
    request: Request, database: DatabaseDep, identity: IdentityDep, name: str, response: Response, form: FormDep
) -> Response:
    """Make a token, and show it once."""
    settings, came_to = request.app.state.runtime.settings, (request.scope.get("server") or ("",))[0]
    server = server_url(settings, str(request.base_url), form.get("server", ""), came_to)
    made = rest.make_token(database, identity, name, _wanted(form), response)
    links = _links(made, name, server)
    if not request.app.state.runtime.settings.phone_page:
        links["phone"] = ""
    with database.read() as session:
        takes_phones = programs.takes_phones(service.get_federation(session, name))
    return page(request, "token.html", federation=name, made=made, server=server, takes_phones=takes_phones, **links)


@router.post("/federations/{name}/enrolment-tokens/{token}/revoke")
@requires("operator")
def revoke_token(database: DatabaseDep, name: str, token: rest.TokenId, form: FormDep) -> Response:
    """Let a token let nobody in."""
    rest.revoke_token(database, name, token)
    return RedirectResponse(f"/federations/{name}/enrolment", 303)


@router.post("/federations/{name}/enrolment-tokens/{token}/confirm")
@requires("operator")
def confirm_token(database: DatabaseDep, name: str, token: rest.TokenId, form: FormDep) -> Response:
    """Let a token that a restore holds let a device in."""
    rest.confirm_token(database, name, token)
    return RedirectResponse(f"/federations/{name}/enrolment", 303)


def _wanted(form: Form) -> NewToken:
    try:
        hours = int(form.get("hours") or 24)
        return NewToken(
            device=form.get("device", "").strip() or None,
            auto_approve=form.get("auto_approve") == "yes",
            tags=words_of(form.get("tags", "")),
            lifetime_s=hours * HOUR_S,
        )
    except ValidationError as error:
        raise UnprocessableError(first_problem(error, input_shown=True, model=NewToken)) from error
    except ValueError as error:
        raise UnprocessableError("hours: expected a whole number") from error


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
