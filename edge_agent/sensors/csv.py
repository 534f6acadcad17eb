"""Recorded files of any layout, as the description that [sensors] description names has them; in constant memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from edge_agent.config.settings import Config
from edge_agent.errors import SensorError
from edge_agent.sensors.replay import FileSource, PacedSink, Part, push_sessions
from federation.plan import Plan
from gaitway.tasks import TargetKind, task_of
from har_pipeline.description import DescribedFile, DescribedFiles, Description, find_files, read_description
from har_pipeline.description.sessions import recordings


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
