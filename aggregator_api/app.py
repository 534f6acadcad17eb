"""The FastAPI application; nothing is opened before it starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool

from aggregator_api import problems
from aggregator_api.mqtt import MqttDriver
from aggregator_api.routes import blobs, events, federations, health, progress
from aggregator_api.runtime import Runtime
from aggregator_api.settings import Settings
from aggregator_api.transport import Connect
from aggregator_api.views import Problem

VERSION = "1"


def create_app(settings: Settings, connect: Connect = MqttDriver) -> FastAPI:
    """Make the application; its lifespan starts and stops the runtime, which is then in `app.state.runtime`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        runtime = Runtime(settings, connect)
        app.state.runtime = runtime
        try:
            await run_in_threadpool(runtime.start)
            yield
        finally:
            await run_in_threadpool(runtime.stop)

    app = FastAPI(
        title="Gaitway aggregator",
        version=VERSION,
        description="Federations, their rounds and their models. Errors are application/problem+json (RFC 9457).",
        lifespan=lifespan,
    )
    problems.install(app, max_body_bytes=settings.max_body_bytes)
    for module in (federations, progress, events, blobs, health):
        app.include_router(module.router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Describe the routes, and the one error that all share."""
    if app.openapi_schema is None:
        described = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        described["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        app.openapi_schema = described
    return app.openapi_schema
