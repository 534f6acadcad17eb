"""Which object classes the images of augmented Pascal VOC 2012 show, as facts in a CSV file, without any image.

M. Everingham et al.: The Pascal Visual Object Classes Challenge, IJCV 111, 2015; B. Hariharan et al.: Semantic
Contours from Inverse Detectors, ICCV 2011 (the augmented masks). The file has one line a mask: `image`, `in_train_aug`
(1 for the 10,582 of train_aug), `width`, `height`, `classes` (numbers 1 to 20, parted by spaces). Enough to deal the
images to clients and to count what they got.
"""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from har_pipeline import SourceError
from sim.data.images.bounded_read import DAMAGED, read_bounded
from sim.errors import SettingsError

COLUMNS = ("image", "in_train_aug", "classes")
MAX_BYTES = 1 << 24
MAX_CLASSES = 20


def single_class_images(path: Path) -> npt.NDArray[np.int64]:
    """Return the class 0 to 19 of each image of train_aug that shows one object class, in the file's order.

    Those are what Michieli and Ozay 2021 divide: 6,746 of the published file, 6,665 in their paper.

    Raises:
        SettingsError: if there is no such file.
        SourceError: if it is damaged, or its lines are something else.
    """
    if not path.is_file():
        raise SettingsError(f"{path} is no file; expected a CSV, or CSV.gz, with the columns {', '.join(COLUMNS)}")
    with path.open("rb") as file:
        text = _read(file, path)
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        columns = ",".join(map(str, rows.fieldnames or ())) or "nothing"
        raise SourceError(f"{path}: the first line is {columns[:80]!r}; expected columns {', '.join(COLUMNS)}")
    found = [_classes(path, rows.line_num, dict(row)) for row in rows if row["in_train_aug"] == "1"]
    return np.array([classes[0] - 1 for classes in found if len(classes) == 1], dtype=np.int64)


def _read(file: IO[bytes], path: Path) -> str:
    try:
        if path.suffix != ".gz":
            return read_bounded(file, MAX_BYTES, str(path)).decode()
        with gzip.GzipFile(fileobj=file) as unpacked:
            return read_bounded(cast("IO[bytes]", unpacked), MAX_BYTES, str(path)).decode()
    except (*DAMAGED, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read as text: {error}") from error


def _classes(path: Path, line: int, row: dict[str, str | None]) -> list[int]:
    if row["classes"] is None:
        raise SourceError(f"{path}, line {line}: it ends early; expected the columns {', '.join(COLUMNS)}")
    words = row["classes"].split()
    if not all(word.isdigit() and 1 <= int(word) <= MAX_CLASSES for word in words):
        raise SourceError(f"{path}, line {line}: classes {row['classes']!r}; expected numbers from 1 to {MAX_CLASSES}")
    return [int(word) for word in words]
