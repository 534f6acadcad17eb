"""The routes by subject; to add a router, write a file and add an entry here."""

from __future__ import annotations

from aggregator_api.http.api.routes import device_messages, enrolment, federations, keys, models, operations, rollouts

# in the order in which docs/openapi.json lists them
ROUTERS = (
    *(federations.router, models.checkpoints_router, federations.progress_router, models.router, rollouts.router),
    *(operations.events_router, enrolment.router, device_messages.router, keys.router),
    *(operations.audit_router, models.blobs_router, operations.health_router),
)
