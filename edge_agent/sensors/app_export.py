"""What phones' apps have exported, at [sensors] path: each recording is taken once, by the reader of its app."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge_agent.config.settings import Config
from edge_agent.sensors.replay import FileSource, PacedSink, Part, push_sessions
from federation.plan import Plan
from har_pipeline import SourceError
from har_pipeline.apps.reader import AppReader, AppSource, app_recordings
from har_pipeline.readers import APPS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportPart(Part):
    """One recording of an app's exports; or what is wrong with it."""

    reader: AppReader
    source: AppSource
    problem: str = ""


class ExportSource(FileSource[ExportPart]):
    """Takes zips, folders, JSON and CSV files, and folders of these, by whichever app that is known."""

    kind = "export"

    def parts(self, path: Path) -> Iterator[ExportPart]:
        """Yield the recordings of each app."""
        return export_parts(self.config, path)

    def settings(self) -> str:
        """Return what the settings say of signs, annotations, and whose recordings are taken."""
        wanted = {"platform", "annotations", "stop_annotations"}
        sensors = self.config.sensors.model_dump_json(include={"options", "client"})
        return self.config.phone.model_dump_json(include=wanted) + sensors

    def replay(self, part: ExportPart, plan: Plan, sink: PacedSink, stop: threading.Event) -> list[str]:
        """Push one recording; returns what of it was left out, and why."""
        if part.problem:
            raise SourceError(f"{part.name}: {part.problem}")
        wanted, left_out = self.config.sensors.client, list[str]()
        options = reader_options(part.reader, self.config, plan.labels)
        clients = None if wanted is None else [wanted]
        push_sessions(app_recordings(part.reader, part.source, clients, options, left_out.append), sink, stop)
        return left_out


def reader_options(reader: AppReader, config: Config, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return a reader's options as [sensors] and [phone] give them; words for activities of other plans are left out.

    Raises:
        SettingsError: for an option that no reader of an app knows.
    """
    phone = config.phone
    known = {name for app in APPS for name in app.defaults}
    own = {
        name: option for name, option in config.sensors.options.items() if name in reader.defaults or name not in known
    }
    if "platform" in reader.defaults and "platform" in phone.model_fields_set:
        own = {"platform": phone.platform, **own}
    words = {text: activity for text, activity in phone.annotations.items() if activity in labels}
    return reader.options(
        {"annotations": words, "stop_annotations": list(phone.stop_annotations), **own, "labels": list(labels)}
    )


def export_parts(config: Config, path: Path) -> Iterator[ExportPart]:
    """Yield every recording at or below a path, by app and name, those that cannot be read too.

    Raises:
        SourceError: where there is none, if a file is damaged in which some might be.
    """
    seen, damaged = False, dict[str, None]()
    for reader in APPS:
        found = reader.look(path, reader_options(reader, config, ()))
        damaged |= dict.fromkeys(found.damaged)
        for export in found.exports:
            seen = True
            alone = replace(found, exports=(export,), inputs=export.paths, remarks=export.remarks)
            yield ExportPart(export.name, export.paths, reader, alone, export.problem)
    for words in damaged:
        log.warning("%s", words)
    if damaged and not seen:
        raise SourceError(next(iter(damaged)))
