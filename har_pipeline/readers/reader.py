"""The interface of data sets' readers, and that of readers of recordings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.errors import SettingsError, SourceError
from har_pipeline.readers.archive import Layout, Source, locate
from har_pipeline.recording import Origin, Recording
from har_pipeline.settings import PipelineSettings
from har_pipeline.streaming.windows import ClientWindows
from har_pipeline.units import AccelerationConvention, specific_force

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
    of a sensor ("acc", "gyro"), where they do: another one that is measured is a finding. `number` names what a
    regression can learn of the recordings, with its unit; "": nothing.

    `acceleration` is the convention in which `recordings` and `windows` yield; its proof is in the module's docstring
    and in `tests/har_pipeline/readers/test_gravity.py`. Samples leave by `read` and `read_windows`.
    """

    recordings: ReadRecordings
    acceleration: AccelerationConvention
    origin: Callable[[str], Origin]
    windows: ReadWindows | None = None
    declared_hz: Callable[[Options], Mapping[str, float]] = lambda options: {}
    number: Callable[[Options], str] = lambda options: ""
    settings: PipelineSettings = field(default_factory=PipelineSettings)

    def leaves_out(self, options: Options) -> bool:
        """Whether what cannot be read is left out while there is other: a published set is as published, or refused."""
        return options.get("strict") is False

    def convention(self, options: Options) -> AccelerationConvention:
        """Return the convention in which the files are written."""
        return self.acceleration

    def read(self, source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
        """Yield the recordings, accelerations as specific force."""
        for recording in self.recordings(source, clients, options):
            if recording.sensor == "acc":
                yield recording._replace(values=specific_force(recording.values, self.acceleration))
            else:
                yield recording

    def read_windows(self, source: Source | None, clients: Clients, options: Options) -> dict[str, ClientWindows]:
        """Return the published windows by client, accelerations as specific force; SettingsError if there are none."""
        if self.windows is None:
            raise SettingsError(f"{self.name} is published as recordings; cut them into windows with prepare()")
        found = self.windows(source, clients, options)
        return {
            client: replace(windows, x=_with_specific_force(windows.x, self.acceleration))
            for client, windows in found.items()
        }


def _with_specific_force(x: np.ndarray, convention: AccelerationConvention) -> np.ndarray:
    """Turn the accelerations of windows (n, T, 6) into specific force."""
    turned = x.copy()
    turned[..., :3] = specific_force(x[..., :3], convention)
    return turned


def chosen(client: str, clients: Clients) -> bool:
    """Whether `client` is to be read."""
    return clients is None or client in clients


def require_source(source: Source | None, name: str) -> Source:
    """Return the source of a reader that has files; SettingsError where none was opened."""
    if source is None:
        raise SettingsError(f"the reader {name} needs files; open it with a root")
    return source
