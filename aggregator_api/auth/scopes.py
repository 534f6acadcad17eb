"""The scopes of API keys, and the scope that each route declares with `@requires`.

A request needs a scope, in a federation or on the whole server. Each route declares it with a decorator.

    @router.post("/{name}/pause")
    @requires("operator")
    def pause(name: str) -> FederationDetail: ...

A route that declares nothing is closed to everyone. A page declares the same as the REST route of the same path: a
caller without access to `POST /v1/federations/walk/pause` can't use the button that posts to `/federations/walk/pause`
either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from fastapi import FastAPI, routing
from starlette.routing import Match, compile_path
from starlette.types import Scope

from aggregator_api.auth import api_keys
from aggregator_api.auth.api_keys import Caller
from aggregator_api.core.errors import ForbiddenError, UnauthorizedError

PROGRAMS = ("/v1/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics")
"""Paths for programs: sessions have no access, and errors are never HTML pages."""

_DECLARED = "__access__"
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Need(NamedTuple):
    """Any one of the scopes: in that federation, or (None) on the whole server, or (empty) wherever the key is valid.

    `device`: only that device's key is accepted.
    """

    scopes: tuple[str, ...]
    federation: str | None
    device: str | None = None


CLOSED = Need((), None)


class Access(NamedTuple):
    """A route's declaration; without scopes the route is open to everyone. See `requires`."""

    scopes: tuple[str, ...] = ()
    filtered: bool = False
    of_device: bool = False
    below: tuple[str, ...] = ()

    def need(self, named: Mapping[str, str]) -> Need | None:
        """Return the need of a request whose path names these parameters: a federation as `name`, a `device`."""
        if not self.scopes:
            return None
        federation = named.get("name", "" if self.filtered else None)
        return Need(self.scopes, federation, named["device"] if self.of_device else None)


def anybody(*, below: tuple[str, ...] = ()) -> Callable[[Endpoint], Endpoint]:
    """Open a route to everyone; `below` as in `requires`."""
    return _declare(Access(below=below))


def requires(
    *scopes: api_keys.Scope, filtered: bool = False, of_device: bool = False, below: tuple[str, ...] = ()
) -> Callable[[Endpoint], Endpoint]:
    """Open a route to keys with one of the scopes, in the federation `{name}` of its path or else on the server.

    `filtered`: the route shows a key only its own data. `of_device`: only the key of the path's `{device}` is accepted.
    `below`: folders, whole or (with a trailing slash) without the path itself, in which unmatched requests get their
    404 under the same condition.
    """
    if not scopes:
        raise ValueError("expected at least one scope; use `@anybody()` for a route that is open to everyone")
    return _declare(Access(scopes, filtered, of_device, below))


def declared(endpoint: Any) -> Access | None:
    """Return an endpoint's declaration; None if it has none and so is closed."""
    found: Access | None = getattr(endpoint, _DECLARED, None)
    return found


def is_device_message(state: Mapping[str, Any]) -> bool:
    """Whether an authenticated request, by its state, is a device's message or stream, as at a broker."""
    needed: Need | None = state.get("needed")
    return needed is not None and needed.device is not None


def _declare(access: Access) -> Callable[[Endpoint], Endpoint]:
    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _DECLARED, access)
        return endpoint

    return declare


def check(caller: Caller | None, needed: Need) -> Caller:
    """Return the caller if it has access.

    Raises:
        UnauthorizedError: without a caller.
        ForbiddenError: if the key has another scope, or is for another federation.
    """
    if caller is None:
        raise UnauthorizedError(
            "this needs a key: send `Authorization: Bearer gw_…`; the operator's first key is in operator.key in the "
            "server's data folder, and `python -m aggregator_api keys create` makes more",
            invalid=False,
        )
    if needed == CLOSED:
        raise ForbiddenError("the route declares no scope, so no key has access: this is a bug in the server")
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
        raise ForbiddenError(f"the key {caller.id} is {whose}; only {needed.device[:80]!r} may send this")
    return caller


READS = frozenset({"GET", "HEAD", "OPTIONS"})


class DeclaredRoute(NamedTuple):
    """A route of an application, and its access; None: closed."""

    matches: Callable[[Scope], tuple[Match, Scope]]
    path: str
    """As OpenAPI writes it."""
    methods: frozenset[str]
    access: Access | None

    @classmethod
    def of(cls, route: Any) -> DeclaredRoute:
        """Read the declaration of a FastAPI or Starlette route."""
        methods = frozenset(route.methods or ())
        return cls(route.matches, route.path_format, methods, declared(route.endpoint))

    @property
    def is_open(self) -> bool:
        """Whether the route is open to everyone."""
        return self.access is not None and not self.access.scopes

    def need(self, named: Mapping[str, str]) -> Need | None:
        """Return the need of a request whose path names these parameters."""
        return CLOSED if self.access is None else self.access.need(named)

    def is_like(self, *, reads: bool) -> bool:
        """Whether callers of this route may get a 404 or 405 next to it."""
        of_devices = self.access is not None and "device" in self.access.scopes  # hide operators' routes
        return of_devices or (bool(self.methods) and READS.issuperset(self.methods)) == reads


class DeclaredRoutes:
    """The routes of an application, in matching order."""

    def __init__(self, app: FastAPI) -> None:
        flat: Callable[..., Iterable[Any]] = getattr(routing, "iter_route_contexts", iter)  # newer ones nest routers
        self.routes = tuple(DeclaredRoute.of(route) for route in flat(app.routes))
        self._folders = [
            (compile_path(folder.rstrip("/"))[0], not folder.endswith("/"), route)
            for route in self.routes
            for folder in (route.access.below if route.access else ())
        ]
        self._deepest = max((route.path.count("/") for route in self.routes), default=0)

    def access(self, method: str, path: str) -> Access | None:
        """Return a route's declaration, by its method and its path as OpenAPI writes it."""
        return next(route.access for route in self.routes if route.path == path and method in route.methods)

    def need(self, scope: Scope) -> Need | None:
        """Return a request's need; None if the route is open to everyone."""
        for route in self.routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return route.need(found.get("path_params", {}))
        return self._need_at_no_route(scope)

    def _need_at_no_route(self, scope: Scope) -> Need | None:
        """Return the need for getting a 404 or 405: the one of the routes around the path.

        These are the routes at the path or the nearest one above, and those that declared the folder.
        """
        path, reads = scope["path"], scope["method"] in READS
        place = "/".join(path.split("/", self._deepest + 1)[: self._deepest + 1])  # a longer path would take long
        while place:
            at_place = list(self._at({**scope, "path": place}))
            folders = list(self._folders_at(place, is_path=place == path))
            if any(route.is_open for route, _ in (at_place if place == path else []) + folders):
                return None
            around = [(route, route.need(named)) for route, named in at_place + folders]
            for route, need in around:
                if need is not None and route.is_like(reads=reads):
                    return need
            for _, need in around:
                if need is not None and not reads:
                    return Need(("operator",), need.federation or None)
            place = place.rpartition("/")[0]
        return Need(("operator", "read") if reads else ("operator",), None)

    def _folders_at(self, place: str, *, is_path: bool) -> Iterator[tuple[DeclaredRoute, Mapping[str, str]]]:
        for pattern, is_whole, route in self._folders:
            if (is_whole or not is_path) and (found := pattern.match(place)):
                yield route, found.groupdict()

    def _at(self, scope: Scope) -> Iterator[tuple[DeclaredRoute, Mapping[str, str]]]:
        for route in self.routes:
            match, found = route.matches(scope)
            if match is not Match.NONE:
                yield route, found.get("path_params", {})


@lru_cache(maxsize=4)
def declared_routes(app: FastAPI) -> DeclaredRoutes:
    """Return an application's routes, collected once."""
    return DeclaredRoutes(app)
