"""Anybody's recordings as a data set: its options are a description, as `har_pipeline describe` writes it.

Acceleration: a description declares it, and its recordings leave as specific force (`Description.values`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from har_pipeline.description.files import DescribedFiles, find_files
from har_pipeline.description.model import description_of
from har_pipeline.description.sessions import recordings
from har_pipeline.errors import SettingsError
from har_pipeline.gravity import AccelerationConvention
from har_pipeline.origin import Origin
from har_pipeline.readers.archive import Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader
from har_pipeline.recording import Recording, device_of, subject_of

NAME = "described"
USAGE = (
    "give --describe data.toml, which `python -m har_pipeline describe PATH --out data.toml` writes a first version of"
)


class DescribedReader(RecordingReader):
    """A set whose files and labels are what its options say."""

    def options(self, given: Options | None) -> dict[str, Any]:
        """Check a description, and return it as JSON; raises SettingsError."""
        if given is None or given == {}:
            raise SettingsError(f"{NAME}: no description of the files; {USAGE}")
        return description_of(given).to_json()

    def open(self, root: Path | str | None, options: Options) -> DescribedFiles:
        """Find the files under root; raises SourceError where there is none."""
        return find_files(description_of(options), root)

    def leaves_out(self, options: Options) -> bool:
        """Whether what cannot be read is left out, by the description."""
        return not description_of(options).strict

    def convention(self, options: Options) -> AccelerationConvention:
        """Return what the description declares; its recordings are specific force already."""
        return description_of(options).acceleration if options else self.acceleration

    def expected(self, options: Options) -> str:
        """Say which files are looked for."""
        return f"files = '{description_of(options).files}'" if options else "what --describe data.toml says"


def _number(options: Options) -> str:
    described = description_of(options).number if options else None
    return described.label if described else ""


def _labels(options: Options) -> tuple[str, ...]:
    if not options:
        return ()
    names = description_of(options).labels.names
    if not names and not _number(options):
        raise SettingsError(f'{NAME}: it needs labels, as in labels = ["walking", "sitting"]; {USAGE}')
    return names


def _recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    if not isinstance(source, DescribedFiles):
        raise SettingsError(f"the reader {NAME} needs files; open it with a root")
    yield from recordings(description_of(options), source, clients)


READER = DescribedReader(
    name=NAME,
    summary="any recordings in text files, by a description in TOML (--describe data.toml)",
    labels=_labels,
    layouts=lambda options: (),
    recordings=_recordings,
    acceleration="specific force",
    declared_hz=lambda options: description_of(options).declared_hz,
    number=_number,
    origin=lambda client: Origin(NAME, subject_of(client), device_of(client)),
)
