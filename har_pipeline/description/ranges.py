"""Labels from another file, as ranges of times or samples: read once, then looked up for every row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from har_pipeline.description.files import DescribedFile
from har_pipeline.description.keys import DATE, ROWS
from har_pipeline.description.model import Description, LabelRanges
from har_pipeline.description.samples import required_label
from har_pipeline.description.text import RowBlock, read_blocks
from har_pipeline.errors import SettingsError, SourceError
from har_pipeline.recording import Categorical
from har_pipeline.units import in_seconds

MAX_RANGES = 1_000_000

Found = dict["Whose", list["_Range"]]
Whose = tuple[tuple[str, str], ...]
"""The words by which ranges and recordings belong together, by what they say: client, session, activity."""


class _Range(NamedTuple):
    """From where to where, both included, and the label; `place` is its file and line."""

    begin: float
    end: float
    label: str
    place: str


@dataclass(frozen=True)
class RangesOfOne:
    """The ranges of one recording, in order."""

    begins: np.ndarray
    ends: np.ndarray
    labels: tuple[str, ...]

    def at(self, places: np.ndarray, otherwise: Categorical | str) -> Categorical:
        """Return the label of each row (n,): its range's or, where ranges have none, its own; "" outside."""
        found = np.searchsorted(self.begins, places, side="right") - 1
        inside = (found >= 0) & (places <= self.ends[found])
        names = np.array(["", *self.labels])
        if not any(self.labels):
            names = np.array(["", otherwise]) if isinstance(otherwise, str) else np.array(["", *otherwise.names])
            found = np.zeros_like(found) if isinstance(otherwise, str) else otherwise.codes
        return Categorical(names, np.where(inside, found + 1, 0).astype(np.int32))


@dataclass(frozen=True)
class KnownRanges:
    """All ranges under a root, by whose they are, in seconds; or, `in_rows`, in samples."""

    names: tuple[str, ...]
    in_rows: bool
    by_recording: Mapping[Whose, RangesOfOne]

    def of(self, words: Mapping[str, str]) -> RangesOfOne | None:
        """Return the ranges of a recording with these words."""
        return self.by_recording.get(tuple((name, _plain(words.get(name, ""))) for name in self.names))


def read_ranges(description: Description, ranges: LabelRanges, files: Iterable[DescribedFile]) -> KnownRanges:
    """Read the files of ranges.

    Raises:
        SourceError: for a range without numbers, ranges that overlap, or none at all.
        LabelError: for a label that the description does not know.
    """
    unit = ranges.unit or (description.time.unit if description.time else ROWS)
    if unit == DATE:
        raise SettingsError('ranges.unit: ranges of dates are not read; give the seconds of 1, or "rows"')
    found: Found = defaultdict(list)
    names: set[str] = set()
    for file in files:
        names |= {*ranges.sources, *file.matched.captured}
        for block in read_blocks(file, ranges):
            _add(description, ranges, file, block, found)
        if sum(map(len, found.values())) > MAX_RANGES:
            raise SourceError(f"{file.name}: more than {MAX_RANGES:,} ranges; does ranges.files match the recordings?")
    if not found:
        raise SourceError(f"no range of labels was found; expected files that match ranges.files = '{ranges.files}'")
    by_recording = {whose: _in_order(own_ranges, 1.0 if unit == ROWS else unit) for whose, own_ranges in found.items()}
    return KnownRanges(tuple(sorted(names)), unit == ROWS, by_recording)


def _add(description: Description, ranges: LabelRanges, file: DescribedFile, block: RowBlock, found: Found) -> None:
    numbers = block.numbers((ranges.begin, ranges.end))
    words = {name: _words(block, source.column, source.fixed) for name, source in ranges.sources.items()}
    labels = [""] * len(block) if ranges.label is None else _words(block, ranges.label, None)
    for row, (begin, end) in enumerate(numbers.tolist()):
        if not begin <= end:
            raise SourceError(
                f"{block.place(row)}: {begin:g} to {end:g} isn't a range; expected two numbers, the end last"
            )
        captured = {**file.matched.captured, **{name: column[row] for name, column in words.items()}}
        whose = tuple((name, _plain(word)) for name, word in sorted(captured.items()))
        found[whose].append(
            _Range(begin, end, required_label(description, labels[row], block.place(row)), block.place(row))
        )


def _words(block: RowBlock, column: str | int | None, fixed: str | None) -> list[str]:
    if column is None:
        return [fixed or ""] * len(block)
    words = block.words(column)
    return [str(word) for word in words.names[words.codes]]


def _in_order(ranges: list[_Range], unit: str | float) -> RangesOfOne:
    ordered = sorted(ranges)
    for before, after in pairwise(ordered):
        if after.begin < before.end and after.label != before.label:
            raise SourceError(
                f"{after.place}: {after.begin:g} to {after.end:g} overlaps {before.begin:g} to {before.end:g} of "
                f"{before.place} with another label; name the client and the session of each"
            )
    begins, ends = (in_seconds(np.array([getattr(span, name) for span in ordered]), unit) for name in ("begin", "end"))
    return RangesOfOne(begins, np.maximum.accumulate(ends), tuple(span.label for span in ordered))


def _plain(word: str) -> str:
    """Return what 01 and 1 have in common."""
    return str(int(word)) if word.isdecimal() else word
