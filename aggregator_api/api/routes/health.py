"""Whether the process lives, and whether it can do its work."""

from __future__ import annotations

import shutil
from pathlib import Path

from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import SQLAlchemyError

from aggregator_api.api.middleware.problems import problem, responses
from aggregator_api.api.routes.dependencies import RuntimeDep
from aggregator_api.api.schemas.resources import Health
from aggregator_api.errors import AggregatorError
from aggregator_api.observability.failure_log import failures
from aggregator_api.runtime import Runtime

router = APIRouter(tags=["health"])

LEAST_FREE = 64 << 10
"""Bytes without which a database can hardly write, whatever `min_free_bytes` says."""


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
    """Say what does not work: to anybody who asks, so without addresses, paths and the database's own words."""
    checks = (_database, _blobs, _disks)
    wrong = [said for check in checks if (said := check(runtime))]
    if not runtime.transport.is_up:
        wrong.append("the broker is not connected")
    if not runtime.alive:
        wrong.append("messages are not being handled")
    return wrong


def _database(runtime: Runtime) -> str:
    try:
        runtime.database.probe()
    except SQLAlchemyError as error:
        outage = failures.report("the database failed its probe", error)
        return outage.value if outage else "the database does not answer"
    return "the database's disk is full" if runtime.database.is_full else ""


def _blobs(runtime: Runtime) -> str:
    try:
        runtime.blobs.check()
    except (OSError, AggregatorError) as error:
        failures.report("the blob store failed its probe", error)
        return "the blob store does not answer"
    return ""


def _disks(runtime: Runtime) -> str:
    settings = runtime.settings
    places = {settings.data_dir.resolve(), *settings.own_folders}
    if settings.blobs.startswith("file:"):
        places.add(Path(runtime.blobs.root))
    free = min(shutil.disk_usage(place).free for place in places)
    needed = max(settings.min_free_bytes, LEAST_FREE)
    return "" if free >= needed else f"the disk is full: {free:,} bytes are left, {needed:,} are needed"
