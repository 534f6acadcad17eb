"""Figures for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from aggregator_api.auth.scopes import requires
from aggregator_api.observability.metrics import Metrics

router = APIRouter(include_in_schema=False)  # its form is Prometheus's, not OpenAPI's


@router.get("/metrics")
@requires("operator", "read")
def metrics(request: Request) -> Response:
    """Show every figure in the text format; a key with the scope `read` opens it where keys are asked for."""
    found: Metrics = request.app.state.metrics
    return Response(found.render(), media_type=CONTENT_TYPE_LATEST)
