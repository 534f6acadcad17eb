"""The data sets by name; a new one is one file with a READER and one entry here."""

from har_pipeline.readers import generic_csv, hhar, motionsense, realworld, spsw, synthetic, ucihar
from har_pipeline.readers.reader import Reader

READERS: dict[str, Reader] = {
    module.READER.name: module.READER for module in (motionsense, ucihar, spsw, hhar, realworld, generic_csv, synthetic)
}
