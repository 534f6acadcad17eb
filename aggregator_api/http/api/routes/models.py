"""A federation's global models: immutable versions, and the names that move over them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from aggregator_api.auth.scopes import requires
from aggregator_api.federations import service
from aggregator_api.http.api import queries
from aggregator_api.http.api.dependencies import (
    AliasServiceDep,
    DatabaseDep,
    DeletionServiceDep,
    FederationName,
    PageDep,
)
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.api.schemas.resources import Alias, AliasTarget, ModelVersion, Page

router = APIRouter(prefix="/v1/federations/{name}", tags=["models"], responses=responses(404, 422))

Version = Annotated[int, Path(ge=0, le=2**31 - 1)]
AliasName = Annotated[str, Path(pattern=r"^[a-z][a-z0-9-]{0,15}$")]


@router.get("/models", summary="List the model versions")
@requires("operator", "read")
def models(database: DatabaseDep, name: FederationName, page: PageDep) -> Page[ModelVersion]:
    """List the global models; version 0 is the initial one."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        return queries.model_versions(session, federation, page)


@router.get("/models/{version}", summary="Describe a model version")
@requires("operator", "read")
def model(database: DatabaseDep, name: FederationName, version: Version) -> ModelVersion:
    """Tell which round made a model, where its bytes are, and what names it has."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        return queries.model_version(session, federation, version)


@router.delete("/models/{version}", summary="Delete a model version's bytes", responses=responses(409), status_code=200)
@requires("operator")
def delete(deletion: DeletionServiceDep, database: DatabaseDep, name: str, version: Version) -> ModelVersion:
    """Serve its bytes no longer, and free them with the next garbage; not the newest, nor one that something needs."""
    deletion.delete_version(name, version)
    with database.read() as session:
        return queries.model_version(session, service.get_federation(session, name), version)


@router.get("/aliases", summary="List the models' names")
@requires("operator", "read")
def aliases(database: DatabaseDep, name: FederationName) -> list[Alias]:
    """List the names and what they stand for; there are at most 32."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        return queries.aliases(session, federation)


@router.put("/aliases/{alias}", summary="Move a name to a model version", responses=responses(409, 413))
@requires("operator")
def move(
    names: AliasServiceDep, database: DatabaseDep, name: str, alias: AliasName, target: AliasTarget
) -> ModelVersion:
    """Name a version; the next round starts from `latest`. A name that is there moves only as far as measures allow.

    With `force` and a `reason` it moves whatever devices have measured; both are in the journal and the audit.
    """
    names.move(name, alias, target.version, target.forced)
    with database.read() as session:
        return queries.model_version(session, service.get_federation(session, name), target.version)


@router.delete(
    "/aliases/{alias}",
    status_code=204,
    summary="Remove a model's name",
    response_class=Response,
    responses=responses(409),
)
@requires("operator")
def remove(names: AliasServiceDep, name: str, alias: AliasName) -> None:
    """Forget a name; the version stays. `latest`, `stable` and `previous` cannot be removed."""
    names.remove(name, alias)
