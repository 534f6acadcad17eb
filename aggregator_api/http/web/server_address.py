"""Where devices reach this server, for links and QR codes: what an operator has said, never what a Host header claims.

A browser can be made to send any Host. So without the setting `public_url` only names of this machine are believed, and
loopback, which no phone reaches, gives way to an address that the server listens on.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from aggregator_api.core.errors import UnprocessableError
from aggregator_api.core.ports import is_loopback
from aggregator_api.core.settings import Settings, is_base_url

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
