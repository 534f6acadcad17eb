"""What a request needs: a scope, in a federation or on the whole server. What is not listed needs an operator's key."""

from __future__ import annotations

from typing import NamedTuple

from aggregator_api.auth.api_keys import Caller
from aggregator_api.errors import ForbiddenError, UnauthorizedError
from aggregator_api.web import docs

OPEN = frozenset(
    {
        *("/healthz", "/readyz"),
        *("/v1/enrol", "/v1/enrol/claim"),  # they prove themselves, by a token or a signature
        *docs.PATHS,  # these, and the document, are the same on every server
        "/openapi.json",
    }
)
FILTERED = ("/v1/federations", "/v1/keys", "/v1/blobs")
"""Paths above any federation whose routes show a key only what is its own."""

_OPERATORS = (["", "v1", "keys"], ["", "v1", "audit"])
"""Whose GETs are not for keys that only read."""
_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class Need(NamedTuple):
    """Any one of the scopes; in that federation, or (None) on the whole server, or (empty) wherever the key is for."""

    scopes: tuple[str, ...]
    federation: str | None


def need(method: str, path: str) -> Need | None:
    """Return what a request needs; None if anybody may send it. `path` is decoded, as it is matched with the routes."""
    if path in OPEN:
        return None
    parts = path.split("/")  # "", v1, federations, {name}, …
    if parts[:3] == ["", "v1", "blobs"]:
        return Need(("operator", "read", "device"), "")
    reads = method in _READS and parts[:3] not in _OPERATORS
    scopes = ("operator", "read") if reads else ("operator",)
    if parts[:3] == ["", "v1", "federations"] and len(parts) > 3 and parts[3]:
        return Need(scopes, parts[3])
    filtered = path.startswith(FILTERED) and (reads or parts[2] == "keys")
    return Need(scopes, "" if filtered else None)


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
    return caller
