"""The names of Gaitway's top-level packages, which a user's own file beside a script can hide."""

from __future__ import annotations

OWN_PACKAGES = (
    *("gaitway", "har_pipeline", "models", "federation", "edge_agent", "aggregator_api", "export", "phone", "sim"),
)


def is_own_module(name: str) -> bool:
    """Whether a dotted module name is one of Gaitway's."""
    return name.partition(".")[0] in OWN_PACKAGES
