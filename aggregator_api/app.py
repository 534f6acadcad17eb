"""The FastAPI application; nothing is opened before it starts."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool

from aggregator_api import keys, openapi, problems
from aggregator_api.gate import Gate
from aggregator_api.idempotency import Idempotency
from aggregator_api.metrics import HttpTimer, Metrics
from aggregator_api.mqtt import MqttDriver
from aggregator_api.routes import blobs, enrolment, events, federations, health, models, progress, rollouts
from aggregator_api.routes import keys as key_routes
from aggregator_api.routes import metrics as metrics_routes
from aggregator_api.routes.dependencies import known_query
from aggregator_api.runtime import Runtime
from aggregator_api.settings import Settings
from aggregator_api.transport import Connect

log = logging.getLogger("aggregator_api")

VERSION = "1"


class _Application(FastAPI):
    """FastAPI with a description of the interface that says more than its own."""

    def openapi(self) -> dict[str, Any]:
        """Describe every route."""
        return openapi.describe(self)


def create_app(settings: Settings, connect: Connect = MqttDriver) -> FastAPI:
    """Make the application; its lifespan starts and stops the runtime, which is then in `app.state.runtime`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        runtime = Runtime(settings, connect)
        app.state.runtime = runtime
        app.state.metrics = Metrics(runtime)
        try:
            await run_in_threadpool(runtime.start)
            await run_in_threadpool(_say_who_comes_in, runtime)
            yield
        finally:
            await run_in_threadpool(runtime.stop)

    app = _Application(
        title="Gaitway aggregator",
        version=VERSION,
        description="Federations, their rounds and their models. Errors are application/problem+json (RFC 9457).",
        lifespan=lifespan,
        dependencies=[Depends(known_query)],
    )
    app.add_middleware(Idempotency)
    problems.install(app, max_body_bytes=settings.max_body_bytes)
    app.add_middleware(Gate, settings=settings)  # the last one added is asked first
    app.add_middleware(HttpTimer)
    progress_routes = (progress, models, rollouts, events)
    for module in (federations, *progress_routes, enrolment, key_routes, blobs, health, metrics_routes):
        app.include_router(module.router)
    return app


def _say_who_comes_in(runtime: Runtime) -> None:
    """Make the first key where there is none, and say where it lies and who needs one."""
    settings = runtime.settings
    made = keys.ensure_admin(runtime.database, settings.data_dir.resolve())
    if made is not None:
        log.info("the operator's key is in %s; only this user may read it", made)
    if settings.trusts_this_machine:
        log.info(
            "programs on this machine need no key, because host is %s; GAITWAY_REQUIRE_KEYS=always asks them too",
            settings.host,
        )
    if not settings.enrolled_only:
        log.info("devices need no approval (admission = open): whoever reaches the broker takes part")
