"""What a request needs: a scope, in a federation or on the whole server. What is not listed needs an operator's key.

A page needs what REST needs at the path of the same name: whoever may not ask `POST /v1/federations/walk/pause` may not
press the button that posts to `/federations/walk/pause`.
"""

from __future__ import annotations

from typing import NamedTuple

from aggregator_api.auth.api_keys import Caller
from aggregator_api.errors import ForbiddenError, UnauthorizedError
from federation.protocol.over_http import STREAM

OPEN = frozenset(
    {
        *("/healthz", "/readyz"),
        *("/v1/enrol", "/v1/enrol/claim", "/v1/enrol/token"),  # they prove themselves, by a token or a signature
        "/openapi.json",  # it, and what follows, are the same on every server
        *("/docs", "/login", "/logout", "/phone"),
    }
)
OPEN_FOLDERS = ("/docs/", "/static/", "/phone/", "/login/")
FILTERED = ("/v1/federations", "/v1/keys", "/v1/blobs")
"""Paths above any federation whose routes show a key only what is its own."""

PROGRAMS = ("/v1/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics")
"""Paths for programs: no session opens them, and their errors are never pages."""
PAGES = frozenset({"", "events", "federations", "live", "new-federation"})
"""First parts of the paths of pages, which need what REST needs."""

_OPERATORS = (["", "v1", "keys"], ["", "v1", "audit"], ["", "v1", "new-federation"])
"""Whose GETs are not for keys that only read."""
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_SPOKEN = frozenset({"status", "update", STREAM})


class Need(NamedTuple):
    """Any one of the scopes; in that federation, or (None) on the whole server, or (empty) wherever the key is for.

    `device`: only the key of that device will do.
    """

    scopes: tuple[str, ...]
    federation: str | None
    device: str | None = None


def is_device_message(path: str) -> bool:
    """Whether a path is one where a device speaks or listens, as it would at a broker."""
    parts = path.split("/")
    return len(parts) > 6 and parts[1:3] == ["v1", "federations"] and parts[4] == "devices" and parts[6] in _SPOKEN


def need(method: str, path: str) -> Need | None:
    """Return what a request needs; None if anybody may send it. `path` is decoded, as it is matched with the routes."""
    if path in OPEN or path.startswith(OPEN_FOLDERS):
        return None
    if is_page(path):
        path = path.removeprefix("/live")
        path = f"/v1{path}" if path.startswith(("/federations/", "/new-federation")) else "/v1/federations"
    parts = path.split("/")  # "", v1, federations, {name}, …
    if parts[:3] == ["", "v1", "blobs"]:
        return Need(("operator", "read", "device"), "")
    if is_device_message(path):
        return Need(("device",), parts[3], parts[5])
    reads = method in _READS and parts[:3] not in _OPERATORS
    scopes = ("operator", "read") if reads else ("operator",)
    if parts[:3] == ["", "v1", "federations"] and len(parts) > 3 and parts[3]:
        return Need(scopes, parts[3])
    filtered = path.startswith(FILTERED) and (reads or parts[2] == "keys")
    return Need(scopes, "" if filtered else None)


def is_page(path: str) -> bool:
    """Whether it is one of the operator's pages, or a part of one."""
    return path.startswith("/") and path.split("/", 2)[1] in PAGES


def check(caller: Caller | None, needed: Need) -> Caller:
    """Return the caller, if that is somebody who may do it.

    Raises:
        UnauthorizedError: if nobody is named.
        ForbiddenError: if the key has another scope, or is for another federation.
    """
    if caller is None:
        raise UnauthorizedError(
            "this needs a key: send `Authorization: Bearer gw_…`; the operator's first one is in operator.key in the "
            "server's data folder, and `python -m aggregator_api keys create` makes more",
            invalid=False,
        )
    if not caller.scopes.intersection(needed.scopes):
        raise ForbiddenError(
            f"the key {caller.id} has the scope {' '.join(sorted(caller.scopes))}; this needs "
            f"{' or '.join(needed.scopes)}",
            scope=" ".join(needed.scopes),
        )
    if caller.federation is not None and needed.federation not in ("", caller.federation):
        where = "another federation" if needed.federation else "the whole server"
        raise ForbiddenError(f"the key {caller.id} is for the federation {caller.federation!r}; this is about {where}")
    if needed.device is not None and caller.device != needed.device:
        whose = f"of the device {caller.device!r}" if caller.device else "of no device"
        raise ForbiddenError(f"the key {caller.id} is {whose}; this is said by {needed.device[:80]!r} alone")
    return caller
