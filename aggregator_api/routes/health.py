"""Whether the process lives, and whether it can do its work."""

from __future__ import annotations

import shutil

from fastapi import APIRouter, Request, Response
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from aggregator_api.errors import AggregatorError
from aggregator_api.problems import problem, responses
from aggregator_api.routes.dependencies import RuntimeDep
from aggregator_api.runtime import Runtime
from aggregator_api.views import Health

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Does the process live?")
async def healthz() -> Health:
    """Answer; nothing else is asked."""
    return Health()


@router.get("/readyz", summary="Can the server work?", response_model=Health, responses=responses(503))
def readyz(request: Request, runtime: RuntimeDep) -> Health | Response:
    """Ask the database, the blob store, the disk, the broker's connection and the thread that handles messages."""
    wrong = _wrong(runtime)
    if wrong:
        return problem(request, 503, "Not ready", "; ".join(wrong))
    return Health()


def _wrong(runtime: Runtime) -> list[str]:
    wrong = []
    try:
        with runtime.database.read() as session:
            session.execute(text("SELECT 1"))
    except SQLAlchemyError as error:
        wrong.append(f"the database does not answer: {error}")
    try:
        runtime.blobs.check()
    except (OSError, AggregatorError) as error:
        wrong.append(f"the blob store does not answer: {error}")
    settings = runtime.settings
    free = shutil.disk_usage(settings.data_dir).free
    if free < settings.min_free_bytes:
        wrong.append(f"the disk of {settings.data_dir} has {free:,} bytes left, {settings.min_free_bytes:,} are needed")
    if not runtime.transport.is_up:
        wrong.append(f"no connection to the broker at {settings.broker_host}:{settings.broker_port}")
    if not runtime.alive:
        wrong.append("messages are not being handled")
    return wrong
