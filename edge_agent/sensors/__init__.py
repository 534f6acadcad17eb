"""Where samples come from: one class per source, all feeding the same pipeline through a `Collector`."""

from __future__ import annotations

from importlib import import_module

from edge_agent.config.sensors import SOURCES
from edge_agent.config.settings import Config
from edge_agent.sensors.source import Post, SensorSource


def open_source(config: Config, post: Post) -> SensorSource:
    """Return the source that [sensors] source names; nothing is opened before its `start`."""
    module, _, name = SOURCES[config.sensors.source].partition(":")
    # imported here, so that a device holds in memory only the one that it uses
    source: SensorSource = getattr(import_module(module), name)(config, post)
    return source


__all__ = ["SensorSource", "open_source"]
