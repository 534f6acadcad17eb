"""How a device comes into a federation: it shows a token and its key, and claims credentials once it is approved.

The protocol is in docs/protocol.md; the server's half is `aggregator_api.enrolment`.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edge_agent.config import Config, example
from edge_agent.credentials import Credentials, device_key, has_key, read_credentials, write_credentials
from edge_agent.errors import EnrolError
from edge_agent.files import write_file

ANSWER_BYTES = 1 << 16
ASK_AGAIN_S = 5.0


class Answer(BaseModel):
    """What the server says about an enrolment."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: Literal["pending", "approved"]
    device: str = Field(max_length=64)
    credentials: Credentials | None = None


class Applicant(NamedTuple):
    """Who asks, and whom."""

    server: str
    federation: str
    device: str
    folder: Path
    timeout_s: float = 20.0

    @classmethod
    def of(cls, config: Config, server: str | None = None) -> Applicant:
        """Take the names from a config."""
        me = config.agent
        return cls(server or config.server.url, me.federation, me.device, me.data_dir, config.server.timeout_s)


def enrol(who: Applicant, token: str) -> Answer:
    """Show the token; credentials that come at once are kept.

    Raises:
        EnrolError: saying in words why the server does not take the device.
    """
    key = device_key(who.folder)
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    message = f"gaitway-enrol/v1\n{who.federation}\n{who.device}\n{token}"
    said = {
        "token": token,
        "federation": who.federation,
        "device": who.device,
        "public_key": _text(public),
        "signature": _text(key.sign(message.encode())),
    }
    answer = _ask(who, "/v1/enrol", said)
    if answer.state == "approved" and answer.credentials is None:
        return claim(who)  # an earlier answer to the same token was lost
    return answer


def claim(who: Applicant, clock: Callable[[], float] = time.time) -> Answer:
    """Ask for credentials with the key alone; those before are void then.

    Raises:
        EnrolError: as `enrol`; also if the device has never enrolled.
    """
    if not has_key(who.folder):
        raise EnrolError("this device has not enrolled yet: ask the operator for a token, and give it with --token")
    issued_at = int(clock())
    message = f"gaitway-claim/v1\n{who.federation}\n{who.device}\n{issued_at}"
    signature = _text(device_key(who.folder).sign(message.encode()))
    said = {"federation": who.federation, "device": who.device, "issued_at": issued_at, "signature": signature}
    return _ask(who, "/v1/enrol/claim", said)


def wait_for_approval(who: Applicant, wait_s: float, pause: Callable[[float], None] = time.sleep) -> Answer:
    """Claim until the operator has approved the device, or the time is over; returns the last answer."""
    deadline = time.monotonic() + wait_s
    while True:
        answer = claim(who)
        left = deadline - time.monotonic()
        if answer.credentials is not None or left <= 0:
            return answer
        pause(min(ASK_AGAIN_S, left))


def credentials_for(config: Config) -> Credentials | None:
    """Return what the device was given, claiming it first if it has enrolled; None if it never has.

    Raises:
        EnrolError: if the server cannot be asked, or the operator has not approved the device yet.
    """
    folder = config.agent.data_dir
    if (known := read_credentials(folder)) or not has_key(folder):
        return known
    answer = claim(Applicant.of(config))
    if answer.credentials is None:
        raise EnrolError("the operator has not approved this device yet; start it again later")
    return answer.credentials


def found_config(path: Path, server: str, federation: str, device: str) -> None:
    """Write a new device's config file, with every other setting at its default; its data lie beside the file."""
    write_file(path.resolve(), example(device, federation, device, server).encode())


def warning_about(server: str) -> str:
    """Say what is unsafe about the server's address; empty if nothing is."""
    parts = urlsplit(server)
    try:
        near = ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        near = parts.hostname == "localhost"
    if parts.scheme == "https" or near:
        return ""
    return f"{server} is not https: whoever listens on the way can read the token and the credentials"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow nobody elsewhere with a token."""


def _ask(who: Applicant, path: str, said: dict[str, Any]) -> Answer:
    url = who.server.rstrip("/") + path
    request = urllib.request.Request(url, json.dumps(said).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=who.timeout_s) as reply:
            body = reply.read(ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            raise EnrolError(_refusal(url, error.code, error.read(ANSWER_BYTES))) from None
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise EnrolError(f"cannot reach {url}: {reason}; is [server] url right, and the server running?") from error
    try:
        answer = Answer.model_validate_json(body)
    except ValidationError as error:
        raise EnrolError(f"{url} does not answer as Gaitway's server does: {error.errors()[0]['msg']}") from error
    if answer.device != who.device:
        raise EnrolError(f"{url} answers about device {answer.device!r}, asked was {who.device!r}")
    if answer.credentials is not None:
        write_credentials(who.folder, answer.credentials)
    return answer


_WHAT_TO_DO = {
    401: "check the token, and that device and federation are those it was made for",
    403: "ask the operator for a token made for this device",
    404: "is [server] url the server's base URL?",
    409: "",
    422: "",
    429: "too many tries: wait a minute",
    503: "run `edge_agent enrol` again later, without a token",
}


def _refusal(url: str, code: int, body: bytes) -> str:
    try:
        detail = str(json.loads(body)["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        detail = f"{url} answered {code}"
    todo = _WHAT_TO_DO.get(code, "is [server] url the server's base URL?" if code < 500 else "try again later")
    return f"the server refuses ({code}): {detail}" + (f"; {todo}" if todo else "")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
