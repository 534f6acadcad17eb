"""File sources: files of any described layout, and phone apps' exports."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from edge_agent.config.settings import Config
from edge_agent.errors import SensorError
from edge_agent.sensors.replay import FileSource, PacedSink, Part, push_sessions
from federation.plan import Plan
from gaitway.tasks import TargetKind, task_of
from har_pipeline import SourceError
from har_pipeline.apps.reader import AppReader, AppSource, app_recordings
from har_pipeline.description import DescribedFile, DescribedFiles, Description, find_files, read_description
from har_pipeline.description.sessions import recordings
from har_pipeline.readers import APPS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileGroup(Part):
    """Files that are read together: those of one recording, one for each sensor perhaps, or those of an archive."""

    files: DescribedFiles


@dataclass(frozen=True)
class _FileSubset(DescribedFiles):
    """Some files of a folder, which need not be walked through again."""

    listed: tuple[DescribedFile, ...] = ()

    def each(self) -> Iterator[DescribedFile]:
        """Yield them."""
        return iter(self.listed)


class CsvSource(FileSource[FileGroup]):
    """Replays the files that the description matches: a file, or a folder or archive with all that is below it."""

    kind = "csv"

    def parts(self, path: Path) -> Iterator[FileGroup]:
        """Yield what is read together."""
        return find_file_groups(description_of(self.config), path)

    def settings(self) -> str:
        """Return the description, and whose rows are taken."""
        return f"{description_of(self.config).model_dump_json()}{self.config.sensors.client or ''}"

    def declared_hz(self) -> Mapping[str, float]:
        """Return what the description states beside a column of times."""
        return description_of(self.config).declared_hz

    def replay(self, part: FileGroup, plan: Plan, sink: PacedSink, stop: threading.Event) -> list[str]:
        """Push the recordings of a part chunk by chunk; returns which were left out, and why."""
        named = () if task_of(plan.task).target is TargetKind.NUMBER else plan.labels
        description = description_of(self.config).with_labels(named)
        wanted, left_out = self.config.sensors.client, list[str]()
        clients = None if wanted is None else [wanted]
        push_sessions(recordings(description, part.files, clients, left_out.append), sink, stop)
        return left_out


def description_of(config: Config) -> Description:
    """Read the description that the settings name.

    Raises:
        SensorError: if they name none.
        SettingsError: if there is no such file, or it is wrong.
    """
    path = config.sensors.description
    if path is None:
        raise SensorError(
            "the source csv needs [sensors] description, a TOML file that says what the files hold; "
            "`python -m har_pipeline describe PATH` looks at them and writes one"
        )
    return read_description(path)


def find_file_groups(description: Description, path: Path) -> Iterator[FileGroup]:
    """Find the recordings at or below a path, by name; files that differ only in the group `sensor` belong together."""
    found = find_files(description, path)
    together: dict[str, list[DescribedFile]] = {}
    for file in found.each():
        together.setdefault(str(file.path) if _is_packed(file) else file.matched.visit, []).append(file)
    for files in together.values():
        matches = {file.name: file.matched for file in files}
        if _is_packed(files[0]):  # its files can be read only one after the other
            yield FileGroup(files[0].path.name, (files[0].path,), replace(found, matches=matches))
        else:
            known = {option.name: getattr(found, option.name) for option in fields(found)}
            listed = _FileSubset(**{**known, "matches": matches}, listed=tuple(files))
            yield FileGroup(files[0].name, tuple(file.path for file in files), listed)


def _is_packed(file: DescribedFile) -> bool:
    return file.path.name != Path(file.name).name


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
