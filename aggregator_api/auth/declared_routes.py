"""From a request to what the route declares that will answer it: matched by the route itself, as the router does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from fastapi import FastAPI, routing
from starlette.routing import Match, compile_path
from starlette.types import Scope

from aggregator_api.auth.scopes import CLOSED, Access, Need, declared

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
        """Read what a route of FastAPI's or Starlette's declares."""
        methods = frozenset(route.methods or ())
        return cls(route.matches, route.path_format, methods, declared(route.endpoint))

    @property
    def is_open(self) -> bool:
        """Whether everybody may ask."""
        return self.access is not None and not self.access.scopes

    def need(self, named: Mapping[str, str]) -> Need | None:
        """Return what a request needs whose path names these."""
        return CLOSED if self.access is None else self.access.need(named)

    def is_like(self, *, reads: bool) -> bool:
        """Whether who may ask this may hear that there is nothing to read beside it, or to change."""
        of_devices = self.access is not None and "device" in self.access.scopes  # they hear nothing of operators
        return of_devices or (bool(self.methods) and READS.issuperset(self.methods)) == reads


class DeclaredRoutes:
    """The routes of an application, in the order in which they are tried."""

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
        """Return what a route declares, by its method and its path as OpenAPI writes it."""
        return next(route.access for route in self.routes if route.path == path and method in route.methods)

    def need(self, scope: Scope) -> Need | None:
        """Return what a request needs; None if anybody may send it."""
        for route in self.routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return route.need(found.get("path_params", {}))
        return self._need_at_no_route(scope)

    def _need_at_no_route(self, scope: Scope) -> Need | None:
        """Return who is told that nothing is there, or not by this method: whom the routes around it admit.

        They are those at the path or the nearest one above, and those that have declared the folder.
        """
        path, reads = scope["path"], scope["method"] in READS
        place = "/".join(path.split("/", self._deepest + 1)[: self._deepest + 1])  # a longer one would take long
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
    """Return an application's routes, gathered once."""
    return DeclaredRoutes(app)
