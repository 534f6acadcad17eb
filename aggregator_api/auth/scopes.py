"""What a request needs: a scope, in a federation or on the whole server. Each route declares it where it is written.

    @router.post("/{name}/pause")
    @requires("operator")
    def pause(name: str) -> FederationDetail: ...

A route that declares nothing is closed to everybody. A page declares what REST does at the path of the same name:
whoever may not ask `POST /v1/federations/walk/pause` may not press the button that posts to `/federations/walk/pause`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from aggregator_api.auth import api_keys
from aggregator_api.auth.api_keys import Caller
from aggregator_api.core.errors import ForbiddenError, UnauthorizedError

PROGRAMS = ("/v1/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics")
"""Paths for programs: no session opens them, and their errors are never pages."""

_DECLARED = "__access__"
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Need(NamedTuple):
    """Any one of the scopes; in that federation, or (None) on the whole server, or (empty) wherever the key is for.

    `device`: only the key of that device will do.
    """

    scopes: tuple[str, ...]
    federation: str | None
    device: str | None = None


CLOSED = Need((), None)


class Access(NamedTuple):
    """What a route declares; without scopes it is open to everybody. See `requires`."""

    scopes: tuple[str, ...] = ()
    filtered: bool = False
    of_device: bool = False
    below: tuple[str, ...] = ()

    def need(self, named: Mapping[str, str]) -> Need | None:
        """Return what a request needs whose path names these: a federation as `name`, a `device`."""
        if not self.scopes:
            return None
        federation = named.get("name", "" if self.filtered else None)
        return Need(self.scopes, federation, named["device"] if self.of_device else None)


def anybody(*, below: tuple[str, ...] = ()) -> Callable[[Endpoint], Endpoint]:
    """Open a route to everybody; `below` as in `requires`."""
    return _declare(Access(below=below))


def requires(
    *scopes: api_keys.Scope, filtered: bool = False, of_device: bool = False, below: tuple[str, ...] = ()
) -> Callable[[Endpoint], Endpoint]:
    """Open a route to keys with any one of the scopes: in the federation `{name}` of its path, else of the server.

    `filtered`: the route shows a key only what is its own. `of_device`: only the key of the path's `{device}` will do.
    `below`: folders, whole or (with a slash at the end) without the path itself, where a request that meets no route is
    told so under the same condition.
    """
    if not scopes:
        raise ValueError("expected a scope at least; what is open to everybody says `@anybody()`")
    return _declare(Access(scopes, filtered, of_device, below))


def declared(endpoint: Any) -> Access | None:
    """Return what an endpoint has declared; None if nothing: then it is closed."""
    found: Access | None = getattr(endpoint, _DECLARED, None)
    return found


def is_device_message(state: Mapping[str, Any]) -> bool:
    """Whether a device speaks or listens, as it would at a broker; of the state of a request that was authenticated."""
    needed: Need | None = state.get("needed")
    return needed is not None and needed.device is not None


def _declare(access: Access) -> Callable[[Endpoint], Endpoint]:
    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _DECLARED, access)
        return endpoint

    return declare


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
    if needed == CLOSED:
        raise ForbiddenError("the route declares no scope, so no key opens it: a fault of this server's program")
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
