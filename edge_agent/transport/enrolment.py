"""Enrols a device: it presents a token and its key, and claims credentials once it is approved.

The protocol is in docs/protocol.md; the server's half is `aggregator_api.devices.enrolment`.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edge_agent.config.settings import Config
from edge_agent.errors import ConfigError, EnrolError, RevokedError
from edge_agent.storage.broker_address import is_loopback, unsafe_address
from edge_agent.storage.consent import pin_promises
from edge_agent.storage.credentials import (
    Credentials,
    device_key,
    has_key,
    pin_server,
    pinned_server,
    read_credentials,
    write_credentials,
)
from edge_agent.transport.server_connection import ServerAnswer, ServerConnection, in_turn
from federation.errors import WireError
from federation.privacy.promises import PrivacyPromises
from federation.protocol.enrolment_uri import EnrolmentUri, is_enrolment_uri, read_enrolment_uri
from federation.protocol.signing import Kind, fingerprint, pinned_key, to_sign
from gaitway.errors import first_problem

POLL_S = 5.0
MAX_TOKEN = 4096


class EnrolmentAnswer(BaseModel):
    """What the server says about an enrolment."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: Literal["pending", "approved"]
    device: str = Field(max_length=64)
    promises: PrivacyPromises
    credentials: Credentials | None = None


class Applicant(NamedTuple):
    """Who asks, and whom."""

    server: str
    federation: str
    device: str
    folder: Path
    timeout_s: float = 20.0
    ca_file: Path | None = None

    @classmethod
    def of(cls, config: Config, server: str | None = None) -> Applicant:
        """Take the names from a config."""
        me = config.agent
        there = config.server
        return cls(server or there.url, me.federation, me.device, me.data_dir, there.timeout_s, there.ca_file)


def enrol(who: Applicant, token: str) -> EnrolmentAnswer:
    """Show the token; credentials that come at once are kept, if they are of the server that the token names.

    Raises:
        ConfigError: if it is no token.
        EnrolError: saying in words why the server does not take the device, or the device not the server.
    """
    if not (expected := pinned_key(token)):
        raise ConfigError(
            "this isn't an enrolment token: tokens begin with gwe_ and end with the fingerprint of the server's key; "
            "copy it whole, or ask the operator for another"
        )
    key = device_key(who.folder)
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    message = to_sign(Kind.ENROL, who.federation, who.device, token.encode())
    request = {
        "token": token,
        "federation": who.federation,
        "device": who.device,
        "public_key": _text(public),
        "signature": _text(key.sign(message)),
    }
    answer = _ask(who, "/v1/enrol", request, expected)
    if answer.state == "approved" and answer.credentials is None:
        return claim(who)  # an earlier answer to the same token was lost
    return answer


def claim(who: Applicant, clock: Callable[[], float] = time.time) -> EnrolmentAnswer:
    """Ask for credentials with the key alone; those before are void then.

    Raises:
        EnrolError: as `enrol`; also if the device has never enrolled.
    """
    if not has_key(who.folder):
        raise EnrolError(
            "this device has not enrolled yet: ask the operator for a token, and give its file with --token-file"
        )
    issued_at = int(clock())
    message = to_sign(Kind.CLAIM, who.federation, who.device, str(issued_at).encode())
    signature = _text(device_key(who.folder).sign(message))
    request = {"federation": who.federation, "device": who.device, "issued_at": issued_at, "signature": signature}
    return _ask(who, "/v1/enrol/claim", request, pinned_server(who.folder) or _known_server(who.folder))


def wait_for_approval(who: Applicant, wait_s: float, pause: Callable[[float], None] = time.sleep) -> EnrolmentAnswer:
    """Claim until the operator has approved the device, or the time is over; returns the last answer."""
    deadline = time.monotonic() + wait_s
    while True:
        answer = claim(who)
        left = deadline - time.monotonic()
        if answer.credentials is not None or left <= 0:
            return answer
        pause(min(POLL_S, left))


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


def given_token(file: Path | None) -> str | None:
    """Read the operator's token from a file, `-` being standard input, else from GAITWAY_ENROL_TOKEN; None if neither.

    Raises:
        ConfigError: if the file cannot be read, or holds no token.
    """
    if file is None:
        return os.environ.get("GAITWAY_ENROL_TOKEN", "").strip() or None
    try:
        token = (sys.stdin.readline(MAX_TOKEN) if str(file) == "-" else file.read_text("utf-8")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token in {file} cannot be read: {error}") from error
    if not token or len(token.split()) != 1:
        raise ConfigError(f"{file} contains no token: expected one line, as printed by `tokens create`")
    return token


def read_code(given: str | None) -> EnrolmentUri | None:
    """Read what a QR code of the operator's sheet holds; None for a token alone, or nothing.

    Raises:
        ConfigError: if it is such a text and something in it is missing or wrong.
    """
    if given is None or not is_enrolment_uri(given):
        return None
    try:
        return read_enrolment_uri(given)
    except WireError as error:
        raise ConfigError(str(error)) from error


def check_code(code: EnrolmentUri, who: Applicant, config: Path) -> None:
    """Check that a code is for the device that a config describes.

    Raises:
        EnrolError: if it is for another.
    """
    if (code.federation, code.device) != (who.federation, who.device):
        raise EnrolError(
            f"the code is for device {code.device!r} of {code.federation!r}, but {config} is for {who.device!r} of "
            f"{who.federation!r}; take the code made for it, or name another --config"
        )


def warning_about(server: str) -> str:
    """Say what is unsafe about the server's address; empty if nothing is."""
    parts = urlsplit(server)
    if parts.scheme == "https" or is_loopback(parts.hostname or ""):
        return ""
    return f"{server} is not https: anyone on the network path can read the token and the credentials"


def _ask(who: Applicant, path: str, fields: dict[str, Any], expected: str) -> EnrolmentAnswer:
    """Post to the server, and keep what it answers if that is of the server whose key has that fingerprint.

    The first answer's promises of privacy are pinned, before the operator's approval too.
    """
    url = who.server.rstrip("/") + path
    body, headers = json.dumps(fields).encode(), {"Content-Type": "application/json"}

    def post() -> ServerAnswer:
        # anew for each try: a server closes a connection that idles until the device's turn
        with closing(ServerConnection(who.server, who.timeout_s, who.ca_file)) as connection:
            return connection.request("POST", path, body, headers)

    try:
        reply = in_turn(post)
    except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: the URL is none
        raise EnrolError(f"cannot reach {url}: {error}; check [server] url, and that the server is running") from error
    if reply.status >= http.client.MULTIPLE_CHOICES:
        kind = RevokedError if reply.status == http.client.FORBIDDEN else EnrolError
        raise kind(_refusal(url, reply.status, reply.body))
    try:
        answer = EnrolmentAnswer.model_validate_json(reply.body)
    except ValidationError as error:
        raise EnrolError(f"{url} doesn't respond like a Gaitway server: {first_problem(error)}") from error
    if answer.device != who.device:
        raise EnrolError(f"{url} answered about device {answer.device!r} instead of {who.device!r}")
    if answer.credentials is not None:
        _check_server(who, answer.credentials, expected)
        named = answer.credentials.broker.address
        if named and (problem := unsafe_address(who.server, named)):
            raise EnrolError(f"{problem}; nothing was stored")
    if expected != pinned_server(who.folder):
        pin_server(who.folder, expected)
    pin_promises(who.folder, answer.promises)
    if answer.credentials is not None:
        write_credentials(who.folder, answer.credentials)
    return answer


def _known_server(folder: Path) -> str:
    known = read_credentials(folder)
    return fingerprint(known.server_key_bytes) if known else ""


def _check_server(who: Applicant, given: Credentials, expected: str) -> None:
    """Take credentials from nobody but the server that the token has named, or that gave some before."""
    shown = fingerprint(given.server_key_bytes)
    if shown != expected:
        raise EnrolError(
            f"{who.server} answers with the key {shown}, but the operator's token names {expected or 'none'}: this is "
            "not the server that the token is from, or somebody between it and this device answers in its place; "
            "nothing was kept. If the server has a new key, ask its operator for a new token"
        )


_WHAT_TO_DO = {
    401: "check the token, and that device and federation are those it was made for",
    403: "ask the operator for a token made for this device",
    404: "check that [server] url is the server's base URL",
    409: "",
    422: "",
    429: "too many attempts: wait a minute",
    503: "run `edge_agent enrol` again later, without a token",
}


def _refusal(url: str, code: int, body: bytes) -> str:
    try:
        detail = str(json.loads(body)["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        detail = f"{url} answered {code}"
    todo = _WHAT_TO_DO.get(
        code, "check that [server] url is the server's base URL" if code < 500 else "try again later"
    )
    return f"the server refuses ({code}): {detail}" + (f"; {todo}" if todo else "")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
