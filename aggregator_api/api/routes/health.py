"""Whether the process lives, and whether it can do its work."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from aggregator_api.api.dependencies import ReadinessDep
from aggregator_api.api.middleware.problems import problem, responses
from aggregator_api.api.schemas.resources import Health
from aggregator_api.auth.scopes import anybody

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Does the process live?")
@anybody()
async def healthz() -> Health:
    """Answer; nothing else is asked."""
    return Health()


@router.get("/readyz", summary="Can the server work?", response_model=Health, responses=responses(503))
@anybody()
def readyz(request: Request, readiness: ReadinessDep) -> Health | Response:
    """Ask the database, the blob store, the disk, the broker's connection and the thread that handles messages."""
    wrong = readiness.problems()
    if wrong:
        return problem(request, 503, "Not ready", "; ".join(wrong))
    return Health()
