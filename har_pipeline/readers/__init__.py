"""The data sets by name; a new one is one file with a READER and one entry here."""

from har_pipeline.readers import (
    described,
    hhar,
    mobiact,
    motionsense,
    pamap2,
    realworld,
    shl,
    spsw,
    synthetic,
    ucihar,
)
from har_pipeline.readers.reader import RecordingReader

READERS: dict[str, RecordingReader] = {
    module.READER.name: module.READER
    for module in (
        *(motionsense, ucihar, spsw, hhar, realworld, pamap2, mobiact, shl),
        *(described, synthetic),
    )
}
