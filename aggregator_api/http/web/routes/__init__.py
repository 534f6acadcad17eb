"""The operator's pages by subject; they ask the queries and services that REST asks."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from aggregator_api.http.web import phone
from aggregator_api.http.web.forms import checked_form
from aggregator_api.http.web.routes import (
    creation,
    devices,
    enrolment,
    federations,
    login,
    overview,
    releases,
    rollouts,
)

SUBJECTS = (
    *(
        login.router,
        overview.router,
        overview.audit_router,
        overview.comparison_router,
        creation.router,
        devices.router,
    ),
    *(rollouts.router, federations.router, enrolment.router, releases.models_router, releases.router),
    overview.live_router,
)
"""In this order: live parts of devices and rollouts lie where one of a federation would be looked for."""
PAGES = APIRouter(include_in_schema=False, dependencies=[Depends(checked_form)])
"""Every page: whatever changes something comes as a form of the session that asks."""
for _router in SUBJECTS:
    PAGES.include_router(_router)

ROUTERS = (phone.files_router, phone.phone_router, PAGES)
