"""The operator's pages by subject; they ask the queries and services that REST asks."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from aggregator_api.http.web import files, phone
from aggregator_api.http.web.forms import checked_form
from aggregator_api.http.web.routes import (
    audit,
    comparison,
    creation,
    devices,
    enrolment,
    federations,
    live,
    login,
    models,
    overview,
    releases,
    rollouts,
)

_FIRST = (login, overview, audit, comparison, creation, devices, rollouts, federations)
SUBJECTS = tuple(module.router for module in (*_FIRST, enrolment, models, releases, live))
"""In this order: live parts of devices and rollouts lie where one of a federation would be looked for."""
PAGES = APIRouter(include_in_schema=False, dependencies=[Depends(checked_form)])
"""Every page: whatever changes something comes as a form of the session that asks."""
for _router in SUBJECTS:
    PAGES.include_router(_router)

ROUTERS = (files.router, phone.router, PAGES)
