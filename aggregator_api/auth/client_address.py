"""The address of whoever sends a request: the peer's, or what a trusted proxy says of it.

A proxy adds the address that it sees at the right end of `X-Forwarded-For` (RFC 7239, 5.2 and 7.4). Everything left of
that was written by somebody whom nobody vouches for, so the list is read from the right, past the trusted proxies, up
to the first address that is none of them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

UNKNOWN = "unknown"


class ClientAddress:
    """Puts the address into `scope["state"]["client_address"]`, and the scheme that the client used into the scope."""

    def __init__(self, app: ASGIApp, trusted: Sequence[Network]) -> None:
        self._app = app
        self._trusted = tuple(trusted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the address, then hand the request on."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            peer = peer_of(scope)
            forwarded = headers.getlist("x-forwarded-for")
            scope.setdefault("state", {})["client_address"] = client_address(peer, forwarded, self._trusted)
            scheme = headers.get("x-forwarded-proto", "").strip().lower()
            if scheme in ("http", "https") and is_trusted(peer, self._trusted):
                scope["scheme"] = scheme
        await self._app(scope, receive, send)


def client_address(peer: str, forwarded: Iterable[str], trusted: Sequence[Network]) -> str:
    """Return the client's address: `peer`, unless it is a trusted proxy that names another in `X-Forwarded-For`."""
    entries = [entry.strip() for line in forwarded for entry in line.split(",")]
    found = peer
    while entries and is_trusted(found, trusted):
        entry = parse(entries.pop())
        if entry is None:
            break  # "unknown", or nonsense: the last address that somebody vouches for is the proxy's
        found = str(entry)
    return found


def peer_of(scope: Scope) -> str:
    """Return the address that the connection comes from."""
    return str(scope["client"][0]) if scope.get("client") else UNKNOWN


def is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    """Whether that address is a trusted proxy's."""
    found = parse(address)
    return found is not None and any(found in network for network in trusted)


def parse(entry: str) -> Address | None:
    """Read an address, with or without a port; an IPv4 address in an IPv6 one is the IPv4 address."""
    text = entry.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def network(host: str) -> str:
    """Return whose address it is: an IPv6 customer has a whole /64 to choose from."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6 and not address.ipv4_mapped:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)
