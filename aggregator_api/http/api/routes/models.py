"""Global models: versions, the names that move over them, their bytes, and checkpoints to start from.

Downloads of broadcasts by their sha256: whole, in parts (RFC 9110, 14), or not at all if the client has them.
Only broadcasts are served: what a device uploaded, and the server's own state, stay here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple, Self

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import Field

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import BlobError, NotFoundError, UnavailableError
from aggregator_api.federations.changes import AliasTarget
from aggregator_api.federations.checkpoints import UploadedCheckpoint
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.dependencies import (
    AliasName,
    AliasServiceDep,
    CallerDep,
    CheckpointServiceDep,
    DatabaseDep,
    DeletionServiceDep,
    DownloadsDep,
    PageDep,
    PlaceDep,
    VersionNumber,
)
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.resources import Alias, ModelVersion, Page, View
from aggregator_api.storage.broadcasts import Downloads
from aggregator_api.storage.db import repositories

blobs_router = APIRouter(prefix="/v1/blobs", tags=["blobs"])

_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
BINARY = "application/octet-stream"
_BINARY = {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "the blob", **_BINARY},
    206: {"description": "the part asked for", **_BINARY},
    304: {"description": "the client has it"},
    **responses(404, 416, 422),
}


class BlobConditions(NamedTuple):
    """Which part of a blob is wanted, and which blobs the client has."""

    part: str | None
    etags: str | None


async def conditions(
    range_: Annotated[str | None, Header(alias="Range")] = None, if_none_match: Annotated[str | None, Header()] = None
) -> BlobConditions:
    """Read them from the request."""
    return BlobConditions(range_, if_none_match)


@blobs_router.get("/{sha256}", summary="Download a model", response_class=Response, responses=_RESPONSES)
@blobs_router.head("/{sha256}", summary="Ask for a model's size", response_class=Response, responses=_RESPONSES)
@requires("operator", "read", "device", filtered=True, below=("/v1/blobs",))
def blob(
    request: Request,
    database: DatabaseDep,
    downloads: DownloadsDep,
    caller: CallerDep,
    sha256: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")],
    wanted: Annotated[BlobConditions, Depends(conditions)],
) -> Response:
    """Send a broadcast's bytes; the name is their sha256, so they never change."""
    with database.read() as session:
        if not repositories.is_broadcast(session, sha256, caller.federation):
            raise NotFoundError(f"there is no model {sha256}")
    headers = {
        "ETag": f'"{sha256}"',
        "Cache-Control": "private, max-age=31536000, immutable",
        "Accept-Ranges": "bytes",
    }
    if wanted.etags is not None and (sha256 in wanted.etags or wanted.etags.strip() == "*"):
        return Response(status_code=304, headers=headers)
    try:
        return _answer(request, downloads, sha256, headers, wanted.part)
    except BlobError as error:
        raise UnavailableError(f"the server's copy of {sha256} is damaged or missing; the operator is told") from error


def _answer(
    request: Request, downloads: Downloads, sha256: str, headers: dict[str, str], range_: str | None
) -> Response:
    size = downloads.size(sha256)
    start, stop, status = 0, size, 200
    wanted = _RANGE.fullmatch(range_.strip()) if range_ else None
    if wanted is not None and any(wanted.groups()):  # anything else may be ignored
        start, stop = _part(wanted[1], wanted[2], size)
        status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)
    if request.method == "HEAD":
        return Response(None, status, headers, media_type=BINARY)
    return StreamingResponse(downloads.pieces(sha256, start, stop), status, headers, media_type=BINARY)


def _part(first: str, last: str, size: int) -> tuple[int, int]:
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        detail = f"bytes {first}-{last} were asked for, the blob has {size:,}"
        raise HTTPException(416, detail, {"Content-Range": f"bytes */{size}"})
    return start, stop


router = APIRouter(prefix="/v1/federations/{name}", tags=["models"], responses=responses(404, 422))


@router.get("/models", summary="List the model versions")
@requires("operator", "read")
def models(place: PlaceDep, page: PageDep) -> Page[ModelVersion]:
    """List the global models; version 0 is the initial one."""
    with place.read() as (session, federation):
        return listings.model_versions(session, federation, page)


@router.get("/models/{version}", summary="Describe a model version")
@requires("operator", "read")
def model(place: PlaceDep, version: VersionNumber) -> ModelVersion:
    """Tell which round made a model, where its bytes are, and what names it has."""
    with place.read() as (session, federation):
        return listings.model_version(session, federation, version)


@router.delete("/models/{version}", summary="Delete a model version's bytes", responses=responses(409), status_code=200)
@requires("operator")
def delete(deletion: DeletionServiceDep, place: PlaceDep, version: VersionNumber) -> ModelVersion:
    """Serve its bytes no longer, and free them with the next garbage; not the newest, nor one that something needs."""
    deletion.delete_version(place.name, version)
    with place.read() as (session, federation):
        return listings.model_version(session, federation, version)


@router.get("/aliases", summary="List the models' names")
@requires("operator", "read")
def aliases(place: PlaceDep) -> list[Alias]:
    """List the names and what they stand for; there are at most 32."""
    with place.read() as (session, federation):
        return listings.aliases(session, federation)


@router.put("/aliases/{alias}", summary="Move a name to a model version", responses=responses(409, 413))
@requires("operator")
def move(names: AliasServiceDep, place: PlaceDep, alias: AliasName, target: AliasTarget) -> ModelVersion:
    """Name a version; the next round starts from `latest`. A name that is there moves only as far as measures allow.

    With `force` and a `reason` it moves whatever devices have measured; both are in the journal and the audit.
    """
    names.move(place.name, alias, target.version, target.forced)
    with place.read() as (session, federation):
        return listings.model_version(session, federation, target.version)


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


checkpoints_router = APIRouter(prefix="/v1/checkpoints", tags=["federations"])

OCTETS = "application/octet-stream"
_BODY = {"required": True, "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}}}


class CheckpointView(View):
    """An uploaded checkpoint, by what its file says."""

    sha256: str = Field(description="names it in `start_from`")
    size: int = Field(description="bytes")
    model: str
    options: dict[str, Any] = Field(description="of the model")
    labels: list[str]
    task: dict[str, Any]
    method: str = Field(description="that trained it; empty: unknown")
    federation: str = Field(description="that it is from; empty: unknown")
    round: int
    keep_s: float = Field(description="for how long it is kept if no federation starts from it")

    @classmethod
    def of(cls, found: UploadedCheckpoint, keep_s: float) -> Self:
        """Describe a checkpoint."""
        info = found.info
        return cls(
            sha256=found.sha256, size=found.size, model=info.model, options=info.options, labels=list(info.labels),
            task=info.task, method=info.method, federation=info.federation, round=info.round, keep_s=keep_s,
        )  # fmt: skip


@checkpoints_router.post(
    "",
    status_code=201,
    summary="Upload a checkpoint to start a federation from",
    responses=responses(413, 422),
    openapi_extra={"requestBody": _BODY},
)
@requires("operator")
async def upload(checkpoints: CheckpointServiceDep, request: Request) -> CheckpointView:
    """Take a safetensors file that a run, an export or another server wrote, and tell what is in it.

    It is kept for `keep_s`, in which `start_from` of POST /v1/federations may name it.
    """
    body = await request.body()
    return CheckpointView.of(await run_in_threadpool(checkpoints.put, body), checkpoints.keep_s)
