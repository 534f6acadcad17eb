"""Checkpoints that a federation may start from."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from aggregator_api.api.dependencies import CheckpointServiceDep
from aggregator_api.api.middleware.problems import responses
from aggregator_api.api.schemas.checkpoints import CheckpointView
from aggregator_api.auth.scopes import requires

router = APIRouter(prefix="/v1/checkpoints", tags=["federations"])

BINARY = "application/octet-stream"
_BODY = {"required": True, "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}


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
