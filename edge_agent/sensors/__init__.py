"""Where samples come from: one class per source, all feeding the same pipeline through a `Collector`."""

from edge_agent.sensors.registry import open_source
from edge_agent.sensors.source import Source

__all__ = ["Source", "open_source"]
