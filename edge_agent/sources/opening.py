"""From the name of a source in the config to the source."""

from __future__ import annotations

from edge_agent.config import Config
from edge_agent.sources.recording import RecordingSource
from edge_agent.sources.source import Post, Source


def open_source(config: Config, post: Post) -> Source:
    """Return the source that [sensors] source names; nothing is opened before its `start`."""
    return RecordingSource(config, post)
