"""Where samples come from: one class per source, all feeding the same pipeline through a `Collector`."""

from __future__ import annotations

from edge_agent.config.settings import Config
from edge_agent.sensors.source import Post, Source


def open_source(config: Config, post: Post) -> Source:
    """Return the source that [sensors] source names; nothing is opened before its `start`."""
    # imported here, so that a device holds in memory only the one that it uses
    match config.sensors.source:
        case "recording":
            from edge_agent.sensors.recording import RecordingSource

            return RecordingSource(config, post)
        case "sensor_logger_http" | "sensor_logger_mqtt":
            from edge_agent.sensors.sensor_logger.source import PhoneSource

            return PhoneSource(config, post)
        case "sensor_logger_export":
            from edge_agent.sensors.sensor_logger.export import ExportSource

            return ExportSource(config, post)
        case "csv":
            from edge_agent.sensors.csv import CsvSource

            return CsvSource(config, post)
        case "iio":
            from edge_agent.sensors.iio import IioSource

            return IioSource(config, post)


__all__ = ["Source", "open_source"]
