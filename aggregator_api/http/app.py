"""The FastAPI application, which opens nothing before it starts."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Route

from aggregator_api.auth import api_keys
from aggregator_api.auth.callers import ClientAddress
from aggregator_api.auth.scopes import anybody
from aggregator_api.core.settings import Settings
from aggregator_api.devices.service import BrokerAccounts
from aggregator_api.federations.checkpoints import MAX_HEADER_BYTES
from aggregator_api.http.api import openapi
from aggregator_api.http.api.middleware import problems
from aggregator_api.http.api.middleware.audit import AuditRequests
from aggregator_api.http.api.middleware.authentication import AuthMiddleware
from aggregator_api.http.api.middleware.concurrency import CoalescedReads, ConcurrencyLimit
from aggregator_api.http.api.middleware.headers import SecurityHeaders, SubPath
from aggregator_api.http.api.middleware.idempotency import Idempotency
from aggregator_api.http.api.middleware.problems import FailedRequests
from aggregator_api.http.api.routes import ROUTERS
from aggregator_api.http.dependencies import known_query, plain_address
from aggregator_api.http.event_feed import EventFeed
from aggregator_api.http.web import routes as web
from aggregator_api.http.web.pages import ErrorPages
from aggregator_api.notifications.channels import channels_of
from aggregator_api.notifications.notifier import Notifiers
from aggregator_api.operations.metrics import HttpTimer
from aggregator_api.runtime import Runtime
from aggregator_api.transport.mqtt.client import Connect, MqttDriver

log = logging.getLogger(__name__)

VERSION = "1"

THREADS = 24
"""Threads that work for requests: the places of `ConcurrencyLimit`, and some for keys, events and pieces of models."""


def shared_routes(routers: Iterable[APIRouter]) -> list[BaseRoute]:
    """Return the routes of all these, for any number of applications.

    FastAPI takes half a second of a core to read their signatures, and would for each application that includes them.
    """
    together = APIRouter(dependencies=[Depends(plain_address), Depends(known_query)])
    for router in routers:
        together.include_router(router)
    return together.routes


ROUTES = shared_routes((*ROUTERS, *web.ROUTERS))


class _Application(FastAPI):
    """FastAPI with a description of the interface that says more than its own."""

    def openapi(self) -> dict[str, Any]:
        """Describe every route."""
        return openapi.describe(self)


def create_app(settings: Settings, connect: Connect = MqttDriver, *, accounts: BrokerAccounts | None = None) -> FastAPI:
    """Make the application; its lifespan starts and stops the runtime, which is then in `app.state.runtime`.

    Raises:
        ConfigError: if a file that notifications need cannot be read.
    """
    channels = channels_of(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        runtime = Runtime(settings, connect, accounts=accounts)
        app.state.runtime = runtime
        app.state.database = runtime.database  # middleware has no dependencies
        app.state.refusals = runtime.refusals
        app.state.metrics = runtime.metrics
        app.state.event_feed = EventFeed(runtime.database, runtime.closing)
        notifiers = Notifiers(settings, channels, runtime.database, runtime.readiness, runtime.leadership)
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        try:
            await run_in_threadpool(runtime.start)
            await run_in_threadpool(_log_access, runtime)
            notifiers.start()
            yield
        finally:
            await run_in_threadpool(notifiers.stop)
            await run_in_threadpool(runtime.stop)

    app = _Application(
        title="Gaitway aggregator",
        version=VERSION,
        description="Federations, their rounds and their models. Errors are application/problem+json (RFC 9457).",
        lifespan=lifespan,
        docs_url=None,  # web/files.py has it without another server's files
        redoc_url=None,
    )
    _add_middleware(app, settings)
    for route in app.routes:  # FastAPI's own: openapi.json, the same on every server
        if isinstance(route, Route):
            anybody()(route.endpoint)
    app.router.routes.extend(ROUTES)
    return app


def _add_middleware(app: FastAPI, settings: Settings) -> None:
    """Add what every request goes through; the last one added is asked first."""
    app.add_middleware(AuditRequests)
    app.add_middleware(Idempotency)
    app.add_middleware(ConcurrencyLimit)  # behind the body: a slow sender holds no place
    checkpoint_bytes = settings.max_model_bytes + MAX_HEADER_BYTES
    problems.install(
        app,
        max_body_bytes=settings.max_body_bytes,
        larger={"/v1/checkpoints": checkpoint_bytes, "/checkpoints": checkpoint_bytes},
    )
    app.add_middleware(CoalescedReads)
    app.add_middleware(AuthMiddleware, settings=settings)
    app.add_middleware(FailedRequests)
    app.add_middleware(ErrorPages)
    app.add_middleware(HttpTimer)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(ClientAddress, trusted=settings.trusted_proxies)
    app.add_middleware(SubPath, root_path=settings.root_path, trusted=settings.trusted_proxies)


def _log_access(runtime: Runtime) -> None:
    """Make the first key where there never was one, and say where it lies and who needs one."""
    settings = runtime.settings
    made = api_keys.ensure_operator(runtime.database, settings.data_dir.resolve())
    if made is not None:
        log.info("operator key written file=%s; `login-link` opens the pages with it", made)
    else:
        with runtime.database.read() as session:
            if not api_keys.has_operator(session, time.time()):
                log.warning("no valid operator key; `python -m aggregator_api keys create` makes one")
    if not settings.enrolled_only:
        log.info("devices need no approval admission=open; whoever reaches the broker takes part")
