"""The routes by subject, each file with a `router`; a new one is one file and one entry here."""

from __future__ import annotations

from aggregator_api.http.api.routes import (
    audit,
    blobs,
    checkpoints,
    device_messages,
    enrolment,
    events,
    federations,
    health,
    keys,
    models,
    progress,
    rollouts,
)

# in the order in which docs/openapi.json lists them
ROUTERS = tuple(
    module.router
    for module in (
        *(federations, checkpoints, progress, models, rollouts, events),
        *(enrolment, device_messages, keys, audit, blobs, health),
    )
)
