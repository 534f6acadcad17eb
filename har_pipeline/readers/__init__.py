"""The data sets by name; a new one is one file with a READER and one entry here."""

from har_pipeline.readers import motionsense, spsw, synthetic
from har_pipeline.readers.reader import Reader

READERS: dict[str, Reader] = {reader.name: reader for reader in (motionsense.READER, spsw.READER, synthetic.READER)}
