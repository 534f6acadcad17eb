"""How long the server's own work takes, measured where it is done and shown by `metrics`."""

from __future__ import annotations

from prometheus_client import Histogram

AGGREGATION_SECONDS = Histogram(
    "gaitway_aggregation_seconds",
    "from a round's last update to its new model, as the aggregation itself took",
    buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0),
    registry=None,
)
MESSAGE_SECONDS = Histogram(
    "gaitway_message_seconds",
    "to handle one message of a device, its writes to disk and database included",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0),
    registry=None,
)
