"""The server's log: lines for people, or lines of JSON for a collector."""

from __future__ import annotations

import logging

from federation.logs import JsonLines, TextLines


def configure(level: str, kind: str) -> None:
    """Send the log to standard error: this package from `level` on, all others from warnings on."""
    handler = logging.StreamHandler()
    text = TextLines("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if kind == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("aggregator_api").setLevel(level.upper())
