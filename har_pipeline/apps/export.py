"""One recording from an app's export: its tables, its metadata, and the meaning of its words.

Words are annotations, which begin and end activities, and names of files and folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
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
    """A table of an export: its virtual name, its device, and its reader."""

    name: str
    device: str
    read: ReadSamples = field(repr=False)


@dataclass(frozen=True)
class AppExport:
    """One recording: its virtual name, its user, its tables, and its files on disk.

    `problem` says why it is unusable; `remarks` say what isn't read or is uncertain.
    """

    name: str
    paths: tuple[Path, ...]
    user: str = ""
    about: str = ""
    tables: tuple[AppTable, ...] = ()
    annotations: tuple[AnnotationText, ...] = ()
    problem: str = ""
    remarks: tuple[str, ...] = ()


STOP_WORDS = ("stop", "end")
NO_WORD = re.compile(r"[\W_]+")


class ActivityWords:
    """Words for activities: their names in any case, and those that a map adds.

    `unknown` are activities of the map that aren't labels.
    """

    def __init__(
        self,
        labels: Sequence[str],
        annotations: Mapping[str, str] | None = None,
        stop_annotations: Sequence[str] = STOP_WORDS,
    ) -> None:
        self.labels = tuple(labels)
        named = {text.strip().lower(): activity for text, activity in (annotations or {}).items()}
        self._meaning = {label.lower(): label for label in labels}
        self._meaning |= {word.strip().lower(): "" for word in stop_annotations}
        self._meaning |= {text: activity for text, activity in named.items() if activity in self.labels}
        self.unknown = sorted(set(named.values()) - set(labels))
        self._in_names = {_plain(word): activity for word, activity in self._meaning.items() if activity}

    def activity_of(self, text: str) -> str | None:
        """Return the activity that an annotation begins, '' if it ends one, None if it does neither."""
        return self._meaning.get(text.strip().lower())

    def activity_in_name(self, name: str) -> str:
        """Return the activity in the last part of a path that names one; '' for none or several."""
        for part in reversed(PurePosixPath(name).parts):
            words = f"_{_plain(part)}_"
            found = {word for word in self._in_names if f"_{word}_" in words}
            longest = {word for word in found if not any(word != other and word in other for other in found)}
            activities = {self._in_names[word] for word in longest}
            if activities:
                return activities.pop() if len(activities) == 1 else ""
        return ""

    def activities_at(self, times_s: np.ndarray, annotations: Sequence[AnnotationText]) -> np.ndarray:
        """Name the activity at each time (n,): that of the last annotation before it.

        After an unknown annotation there is none, because the activity is unknown.
        """
        ordered = sorted(annotations, key=lambda annotation: annotation.time_s)
        names = np.array(["", *((self.activity_of(annotation.text) or "") for annotation in ordered)])
        found: np.ndarray = names[np.searchsorted([annotation.time_s for annotation in ordered], times_s, side="right")]
        return found


def name_words(name: str) -> list[str]:
    """Return the words of a recording's name that may be an activity, without numbers, dates and extensions."""
    plain = re.sub(r"\.(zip|csv|json|txt|tar|gz)\b", " ", PurePosixPath(name).name, flags=re.IGNORECASE)
    return [match[0] for match in re.finditer(r"[^\W\d_]{3,}", plain.lower())]


def _plain(text: str) -> str:
    return NO_WORD.sub("_", text.lower()).strip("_")
