"""One recording as an app has exported it: its tables, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from har_pipeline.description.files import DescribedFile
from har_pipeline.description.samples import Part


class AnnotationText(NamedTuple):
    """A text that the user wrote while recording, and when."""

    time_s: float
    text: str


class PartSamples(NamedTuple):
    """Samples of one part: times_s (n,), and values (n, 3) in m/s² or rad/s, accelerations as specific force.

    `line` is that of the first one.
    """

    part: Part
    times_s: np.ndarray
    values: np.ndarray
    line: int = 0


ReadSamples = Callable[[DescribedFile], Iterator[PartSamples]]
"""Yields a table's samples, chunk by chunk; raises SourceError."""


@dataclass(frozen=True)
class AppTable:
    """A table of an export: its virtual name, the device that it is of, and what reads it."""

    name: str
    device: str
    read: ReadSamples = field(repr=False)


@dataclass(frozen=True)
class AppExport:
    """One recording: its virtual name, whose it is, its tables, and the files on disk that hold it.

    `problem` says why it is of no use; `remarks` what of it is not read, or not sure.
    """

    name: str
    paths: tuple[Path, ...]
    user: str = ""
    about: str = ""
    tables: tuple[AppTable, ...] = ()
    annotations: tuple[AnnotationText, ...] = ()
    problem: str = ""
    remarks: tuple[str, ...] = ()
