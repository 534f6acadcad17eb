"""The routes by subject, each file with a `router`; a new one is one file and one entry here."""

from __future__ import annotations

from aggregator_api.api.routes import (
    audit,
    blobs,
    enrolment,
    events,
    federations,
    health,
    keys,
    metrics,
    models,
    progress,
    rollouts,
)

# in the order in which docs/openapi.json lists them
ROUTERS = tuple(
    module.router
    for module in (
        *(federations, progress, models, rollouts, events),
        *(enrolment, keys, audit, blobs),
        *(health, metrics),
    )
)
