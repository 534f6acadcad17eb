"""Sensor sources: one class per source, all feeding the same pipeline through a `Collector`."""

from __future__ import annotations

from importlib import import_module

from edge_agent.config.sensors import SOURCES
from edge_agent.config.settings import Config
from edge_agent.errors import SensorError
from edge_agent.sensors.source import Post, SensorSource


def open_source(config: Config, post: Post) -> SensorSource:
    """Return the source that [sensors] source names; nothing is opened before its `start`.

    Raises:
        SensorError: if it, or a library that it needs, is not installed.
    """
    kind = config.sensors.source
    module, _, name = SOURCES[kind].partition(":")
    try:
        # imported here, so that a device holds in memory only the one that it uses
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SensorError(f"[sensors] source {kind!r} ({SOURCES[kind]}) cannot be imported: {error}") from error
    source: SensorSource = make(config, post)
    return source


__all__ = ["SensorSource", "open_source"]
