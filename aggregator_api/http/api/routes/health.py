"""What monitors ask: whether the process lives, whether it can do its work, and figures for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from aggregator_api.auth.scopes import anybody, requires
from aggregator_api.http.api.dependencies import ReadinessDep
from aggregator_api.http.api.middleware.problems import problem, responses
from aggregator_api.http.api.schemas.resources import Health
from aggregator_api.operations.metrics import Metrics

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


@router.get("/metrics", include_in_schema=False)  # its form is Prometheus's, not OpenAPI's
@requires("operator", "read")
def metrics(request: Request) -> Response:
    """Show every figure in the text format; a key with the scope `read` opens it where keys are asked for."""
    found: Metrics = request.app.state.metrics
    return Response(found.render(), media_type=CONTENT_TYPE_LATEST)
