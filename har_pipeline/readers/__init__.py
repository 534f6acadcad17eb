"""The data sets by name; to add one, write a file with a READER or a description, and add an entry here."""

from gaitway.plugins import EntryTable
from har_pipeline.apps.reader import AppReader
from har_pipeline.readers import (
    androsensor,
    described,
    hhar,
    mobiact,
    pamap2,
    phyphox,
    physics_toolbox,
    sensor_logger,
    shl,
    synthetic,
    ucihar,
)
from har_pipeline.readers.described import published_reader
from har_pipeline.readers.reader import RecordingReader


def _check(name: str, entry: object) -> str:
    if not isinstance(entry, RecordingReader):
        return f"expected a har_pipeline.readers.reader.RecordingReader, got {entry!r}"
    if entry.name != name:
        return f"expected the name {name!r}, the entry point's name, got {entry.name!r}"
    return ""


_PHONE_APPS = tuple(module.READER for module in (sensor_logger, phyphox, androsensor, physics_toolbox))
APPS: tuple[AppReader, ...] = tuple(reader for reader in _PHONE_APPS if isinstance(reader, AppReader))
"""Readers of phone apps' exports; `recognizes` says whether files are the app's."""

READERS: EntryTable[RecordingReader] = EntryTable(
    "readers",
    {
        reader.name: reader
        for reader in (
            *(
                published_reader("motionsense"),
                ucihar.READER,
                published_reader("spsw"),
                hhar.READER,
                published_reader("realworld"),
            ),
            *(module.READER for module in (pamap2, mobiact, shl)),
            *_PHONE_APPS,
            *(module.READER for module in (described, synthetic)),
        )
    },
    check=_check,
)
