"""Forms of the pages: read within bounds, and taken only from a page of this server and of the caller's session."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from aggregator_api.auth import web_sessions
from aggregator_api.core.errors import ForbiddenError, UnprocessableError

MEDIA_TYPE = "application/x-www-form-urlencoded"
UPLOADS = frozenset({"/checkpoints"})
"""Pages' paths that take a file instead of a form, as its bytes; the session's token is in a header."""
MAX_FIELDS = 100

Form = dict[str, str]


async def checked_form(request: Request) -> Form:
    """Return the fields of a form; of requests that change nothing, none.

    Raises:
        ForbiddenError: if it does not come from a page of this session.
        UnprocessableError: if it is no form.
    """
    if request.method in ("GET", "HEAD"):
        return {}
    if not web_sessions.from_this_site(request.headers):
        raise ForbiddenError(
            "the form comes from another site; open this server's page yourself, and send it from there"
        )
    form = {} if request.url.path in UPLOADS else await _read(request)
    session = getattr(request.state, "session", "")
    given = form.pop("csrf", "") or request.headers.get(web_sessions.CSRF_HEADER, "")
    # who logs in has no session yet, and whose session ended in another tab may still press 'Log out'
    is_free = request.url.path == "/login" or (request.url.path == "/logout" and not session)
    if not is_free and not (session and web_sessions.is_csrf_token(given, session)):
        raise ForbiddenError("the form is of another session, perhaps of one that has ended; load the page again")
    return form


FormDep = Annotated[Form, Depends(checked_form)]


async def _read(request: Request) -> Form:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != MEDIA_TYPE:
        raise UnprocessableError(f"expected a form ({MEDIA_TYPE}), got {kind[:80] or 'nothing that says what it is'}")
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise UnprocessableError(f"the form cannot be read: {error}") from error
    return dict(fields)


def words_of(text: str) -> list[str]:
    """Split a list that a person has typed: by commas, semicolons or lines, without empty entries."""
    return [word for part in text.replace(";", ",").replace("\n", ",").split(",") if (word := part.strip())]
