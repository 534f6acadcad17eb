"""The enrolment URI, which an operator gives to a device as a link or a QR code.

    gaitway-enrol:?server=https%3A%2F%2Fgaitway.example&federation=walk&device=phone1&token=gwe_…

It holds the token, so it is as secret as that, until the device has used it.

A phone's browser takes it behind the # of the server's own page, which a browser sends to nobody:

    https://gaitway.example/phone/#gaitway-enrol%3A%3Fserver%3Dhttps%253A%252F%252Fgaitway.example%26federation…
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from pydantic import TypeAdapter, ValidationError

from federation.errors import WireError
from federation.plan import Name
from gaitway.errors import first_problem

SCHEME = "gaitway-enrol"
MAX_URI_CHARS = 2048
_NAME: TypeAdapter[str] = TypeAdapter(Name)


class EnrolmentUri(NamedTuple):
    """Where a device enrols, into what, as whom, and with which token."""

    server: str
    federation: str
    device: str
    token: str

    def __str__(self) -> str:
        """Write it as a URI."""
        return f"{SCHEME}:?{urlencode(self._asdict())}"

    @property
    def phone_link(self) -> str:
        """The link that opens the server's page for phones with it; the page decodes what is behind the #."""
        return f"{self.server}/phone/#{quote(str(self), safe='')}"


def is_enrolment_uri(text: str) -> bool:
    """Whether a text claims to be one; a token alone does not."""
    return text.strip().lower().startswith(f"{SCHEME}:")


def read_enrolment_uri(text: str) -> EnrolmentUri:
    """Read one.

    Raises:
        WireError: saying which part is missing or wrong; the token is not repeated.
    """
    if len(text) > MAX_URI_CHARS or not is_enrolment_uri(text):
        raise WireError(
            f"expected {SCHEME}:?server=…&federation=…&device=…&token=…, at most {MAX_URI_CHARS} characters"
        )
    fields = dict(parse_qsl(text.strip().partition("?")[2]))
    if missing := [name for name in EnrolmentUri._fields if not fields.get(name)]:
        raise WireError(f"the enrolment URI lacks {', '.join(missing)}; scan the code again, or ask for another")
    server = urlsplit(fields["server"])
    if server.scheme not in ("http", "https") or not server.hostname:
        raise WireError(f"the enrolment URI's server {fields['server'][:200]!r} isn't an http or https address")
    for name in ("federation", "device"):
        try:
            _NAME.validate_python(fields[name])
        except ValidationError as error:
            raise WireError(f"the enrolment URI's {name}: {first_problem(error, input_shown=True)}") from error
    return EnrolmentUri(*(fields[name] for name in EnrolmentUri._fields))
