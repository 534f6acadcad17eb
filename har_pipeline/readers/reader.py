"""What a data set's reader consists of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gaitway.errors import did_you_mean
from har_pipeline.archive import Layout, Source
from har_pipeline.errors import SettingsError
from har_pipeline.origin import Origin
from har_pipeline.recording import Recording
from har_pipeline.settings import PipelineSettings
from har_pipeline.windows import ClientWindows

Options = Mapping[str, Any]
Clients = Collection[str] | None
ReadRecordings = Callable[[Source | None, Clients, Options], Iterator[Recording]]
ReadWindows = Callable[[Source | None, Clients, Options], dict[str, ClientWindows]]


@dataclass(frozen=True)
class Reader:
    """One data set: name, labels, where its files lie (None: it has none), its settings, and how it is read.

    `recordings` yields a client's sessions one after another in the order of their times, whatever container holds
    them; only the chosen clients where `clients` is given. `origin` says of a client's id whose it is, on which device
    and where it was worn. `windows` serves sets published as windows. `defaults` names every option of the reader and
    its default.
    """

    name: str
    summary: str
    labels: Callable[[Options], tuple[str, ...]]
    layout: Callable[[Options], Layout | None]
    recordings: ReadRecordings
    origin: Callable[[str], Origin]
    windows: ReadWindows | None = None
    settings: PipelineSettings = field(default_factory=PipelineSettings)
    defaults: Options = field(default_factory=dict)

    def options(self, given: Options | None) -> dict[str, Any]:
        """Lay the given options over the defaults; an unknown one raises SettingsError."""
        for key in given or {}:
            if key not in self.defaults:
                known = tuple(self.defaults)
                hint = did_you_mean(key, known) if known else "it takes none"
                raise SettingsError(f"unknown option {key!r} for {self.name}; {hint}")
        return {**self.defaults, **(given or {})}


def chosen(client: str, clients: Clients) -> bool:
    """Whether `client` is to be read."""
    return clients is None or client in clients


def found(source: Source | None, name: str) -> Source:
    """Return the source of a reader that has files; SettingsError where none was opened."""
    if source is None:
        raise SettingsError(f"the reader {name} needs files; open it with a root")
    return source
