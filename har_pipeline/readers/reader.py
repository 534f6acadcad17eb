"""What a data set says of itself, whatever its examples are, and what a set of recordings adds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gaitway.errors import did_you_mean
from har_pipeline.errors import SettingsError, SourceError
from har_pipeline.origin import Origin
from har_pipeline.readers.archive import Layout, Source, locate
from har_pipeline.recording import Recording
from har_pipeline.settings import PipelineSettings
from har_pipeline.streaming.windows import ClientWindows

Options = Mapping[str, Any]
Clients = Collection[str] | None
ReadRecordings = Callable[[Source | None, Clients, Options], Iterator[Recording]]
ReadWindows = Callable[[Source | None, Clients, Options], dict[str, ClientWindows]]


@dataclass(frozen=True, kw_only=True)
class DataSetReader:
    """One data set, of recordings or of something else: name, labels, where its files lie, and its options.

    `layouts` are the forms in which it is had, in the order in which they are looked for; one without files has none.
    `defaults` names every option of the reader and its default.
    """

    name: str
    summary: str
    labels: Callable[[Options], tuple[str, ...]]
    layouts: Callable[[Options], tuple[Layout, ...]]
    defaults: Options = field(default_factory=dict)

    def options(self, given: Options | None) -> dict[str, Any]:
        """Lay the given options over the defaults; an unknown one raises SettingsError."""
        for key in given or {}:
            if key not in self.defaults:
                hint = did_you_mean(key, self.defaults) if self.defaults else "it takes none"
                raise SettingsError(f"unknown option {key!r} for {self.name}; {hint}")
        return {**self.defaults, **(given or {})}

    def expected(self, options: Options) -> str:
        """Say which files are looked for."""
        return "; or: ".join(layout.expected for layout in self.layouts(options)) or "no files"

    def open(self, root: Path | str | None, options: Options) -> Source | None:
        """Find the files of the first layout that lies under root, a folder, an archive or a file; None: needs none.

        Raises:
            SourceError: if none does, saying what was expected.
        """
        missing = []
        for layout in self.layouts(options):
            try:
                return locate(root, layout, self.name)
            except SourceError as error:
                missing.append(str(error))
        if missing:
            raise SourceError("; or: ".join(missing))
        return None


@dataclass(frozen=True, kw_only=True)
class RecordingReader(DataSetReader):
    """A set of recordings of motion sensors.

    `recordings` yields a client's sessions one after another in the order of their times, whatever container holds
    them; only the chosen clients where `clients` is given. `origin` says of a client's id whose it is, on which device
    and where it was worn. `windows` serves sets published as windows. `declared_hz` is the rate that the options state
    of a sensor ("acc", "gyro"), where they do: another one that is measured is a finding.
    """

    recordings: ReadRecordings
    origin: Callable[[str], Origin]
    windows: ReadWindows | None = None
    declared_hz: Callable[[Options], Mapping[str, float]] = lambda options: {}
    settings: PipelineSettings = field(default_factory=PipelineSettings)


def chosen(client: str, clients: Clients) -> bool:
    """Whether `client` is to be read."""
    return clients is None or client in clients


def found(source: Source | None, name: str) -> Source:
    """Return the source of a reader that has files; SettingsError where none was opened."""
    if source is None:
        raise SettingsError(f"the reader {name} needs files; open it with a root")
    return source
