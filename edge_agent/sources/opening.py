"""From the name of a source in the config to the source."""

from __future__ import annotations

from edge_agent.config import Config
from edge_agent.sources.source import Post, Source


def open_source(config: Config, post: Post) -> Source:
    """Return the source that [sensors] source names; nothing is opened before its `start`."""
    # imported here, so that a device holds in memory only the one that it uses
    match config.sensors.source:
        case "recording":
            from edge_agent.sources.recording import RecordingSource

            return RecordingSource(config, post)
        case "sensor_logger_http" | "sensor_logger_mqtt":
            from edge_agent.sources.phone.source import PhoneSource

            return PhoneSource(config, post)
        case "sensor_logger_export":
            from edge_agent.sources.phone.replay import ExportSource

            return ExportSource(config, post)
        case "csv":
            from edge_agent.sources.csv_file import CsvSource

            return CsvSource(config, post)
        case "iio":
            from edge_agent.sources.iio import IioSource

            return IioSource(config, post)
