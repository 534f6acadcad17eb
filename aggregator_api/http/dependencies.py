"""What routes ask for: services and parts of the server, the caller, and which part of a listing is wanted.

A session is none of it. FastAPI opens and closes a dependency on threads of its own choosing and keeps it until the
answer has been sent, so a slow reader would keep a connection of the pool. A route is a plain `def`: it opens a
session, makes its answer, and closes it, all in one thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends, Path, Query, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session

from aggregator_api.auth.api_keys import Caller
from aggregator_api.auth.signing import Identity
from aggregator_api.core.errors import NotFoundError, UnprocessableError
from aggregator_api.devices.enrolment import EnrolmentService
from aggregator_api.devices.service import DeviceService
from aggregator_api.devices.tokens import TokenService
from aggregator_api.federations.changes import AliasService, SettingsService
from aggregator_api.federations.checkpoints import CheckpointService
from aggregator_api.federations.service import FederationService, get_federation
from aggregator_api.http.queries.listings import PageParams
from aggregator_api.maintenance.deletion import DeletionService
from aggregator_api.operations.health import Readiness
from aggregator_api.rollouts.service import RolloutService
from aggregator_api.runtime import Runtime
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.broadcasts import Downloads
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import FederationRow
from aggregator_api.transport.device_http.messages import DeviceMessages
from gaitway.plain_text import checked, checked_values

MAX_ID = 2**62

# What does not wait for a disk or a database is `async`: each other step of a request waits for a thread, and on a busy
# server for Python's lock.


Part = TypeVar("Part")


def _part(of: Callable[[Runtime], Part]) -> Callable[[Request], Awaitable[Part]]:
    """Return what FastAPI calls for a part of the running server."""

    async def find(request: Request) -> Part:
        return of(request.app.state.runtime)

    return find


DatabaseDep = Annotated[Database, Depends(_part(lambda runtime: runtime.database))]
DownloadsDep = Annotated[Downloads, Depends(_part(lambda runtime: runtime.downloads))]
BlobStoreDep = Annotated[BlobStore, Depends(_part(lambda runtime: runtime.blobs))]
IdentityDep = Annotated[Identity, Depends(_part(lambda runtime: runtime.identity))]
ReadinessDep = Annotated[Readiness, Depends(_part(lambda runtime: runtime.readiness))]
FederationServiceDep = Annotated[FederationService, Depends(_part(lambda runtime: runtime.federations))]
CheckpointServiceDep = Annotated[CheckpointService, Depends(_part(lambda runtime: runtime.checkpoints))]
SettingsServiceDep = Annotated[SettingsService, Depends(_part(lambda runtime: runtime.federation_settings))]
AliasServiceDep = Annotated[AliasService, Depends(_part(lambda runtime: runtime.aliases))]
EnrolmentServiceDep = Annotated[EnrolmentService, Depends(_part(lambda runtime: runtime.enrolment))]
DeviceServiceDep = Annotated[DeviceService, Depends(_part(lambda runtime: runtime.devices))]
TokenServiceDep = Annotated[TokenService, Depends(_part(lambda runtime: runtime.device_tokens))]
DeviceMessagesDep = Annotated[DeviceMessages, Depends(_part(lambda runtime: runtime.device_messages))]
RolloutServiceDep = Annotated[RolloutService, Depends(_part(lambda runtime: runtime.rollouts))]
DeletionServiceDep = Annotated[DeletionService, Depends(_part(lambda runtime: runtime.deletion))]


async def plain_address(request: Request) -> None:
    """Refuse control characters in a path or a query: names have none, and PostgreSQL stores no NUL."""
    try:
        checked(request.scope["path"])
    except ValueError as error:
        raise NotFoundError(f"nothing has this path: {error}") from error
    try:
        checked_values(request.query_params.multi_items())
    except ValueError as error:
        raise UnprocessableError(f"the request's query: {error}") from error


async def known_query(request: Request) -> None:
    """Refuse a parameter that the route does not have, or one given twice: a filter passed over would show too much."""
    if not request.query_params or not request.url.path.startswith("/v1/"):
        return  # whoever watches a server may add what it likes
    known = _query_parameters(request.scope["route"], request.method)
    for name in request.query_params:
        if name not in known:
            listed = f"known here: {', '.join(sorted(known))}" if known else "none is known here"
            raise UnprocessableError(f"query parameter {name[:80]!r}: {listed}")
        if len(request.query_params.getlist(name)) > 1:
            raise UnprocessableError(f"query parameter {name!r}: given more than once; send it once")


_QUERY_PARAMETERS: dict[tuple[Callable[..., Any], str, str], frozenset[str]] = {}


def _query_parameters(route: APIRoute, method: str) -> frozenset[str]:
    """Return the names that a route takes in a query; of this one alone, as all of them take a quarter of a second."""
    key = (route.endpoint, route.path_format, method)
    if key not in _QUERY_PARAMETERS:
        operations = get_openapi(title="", version="", routes=[route])["paths"].get(route.path_format, {})
        described = operations.get(method.lower(), {}).get("parameters", [])
        _QUERY_PARAMETERS[key] = frozenset(parameter["name"] for parameter in described if parameter["in"] == "query")
    return _QUERY_PARAMETERS[key]


async def caller_of(request: Request) -> Caller:
    """Return who asks, as authentication found out."""
    found: Caller = request.state.caller
    return found


CallerDep = Annotated[Caller, Depends(caller_of)]


FederationName = Annotated[str, Path(description="the federation")]


class FederationPlace(NamedTuple):
    """The federation that a path names, and the database that it is in."""

    database: Database
    name: str

    @contextmanager
    def read(self) -> Iterator[tuple[Session, FederationRow]]:
        """Open a session to read the federation in; raises NotFoundError if there is none."""
        with self.database.read() as session:
            yield session, get_federation(session, self.name)

    @contextmanager
    def write(self) -> Iterator[tuple[Session, FederationRow]]:
        """Open a session to change the federation in; raises NotFoundError if there is none."""
        with self.database.write() as session:
            yield session, get_federation(session, self.name)


async def _place(database: DatabaseDep, name: FederationName) -> FederationPlace:
    return FederationPlace(database, name)


PlaceDep = Annotated[FederationPlace, Depends(_place)]
RoundNumber = Annotated[int, Path(ge=1, le=MAX_ID)]
RolloutNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]
VersionNumber = Annotated[int, Path(ge=0, le=2**31 - 1)]
AliasName = Annotated[str, Path(pattern=r"^[a-z][a-z0-9-]{0,15}$")]
TokenId = Annotated[int, Path(ge=1, le=MAX_ID)]


async def page_params(
    cursor: Annotated[int, Query(ge=0, le=MAX_ID, description="`next_cursor` of the page before")] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> PageParams:
    """Read which part of a listing is wanted."""
    return PageParams(cursor, limit)


PageDep = Annotated[PageParams, Depends(page_params)]
