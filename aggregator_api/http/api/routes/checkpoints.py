"""Checkpoints that a federation may start from."""

from __future__ import annotations

from typing import Any, Self

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from aggregator_api.auth.scopes import requires
from aggregator_api.federations.checkpoints import UploadedCheckpoint
from aggregator_api.http.api.dependencies import CheckpointServiceDep
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.api.schemas.resources import View

router = APIRouter(prefix="/v1/checkpoints", tags=["federations"])

BINARY = "application/octet-stream"
_BODY = {"required": True, "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}


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


@router.post(
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
