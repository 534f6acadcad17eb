"""The errors of this package: PipelineError and its three kinds.

PipelineError
├── SourceError    files: not found, not in the published layout, a cell that isn't a number │   └── UnpackingError   a
file or archive that cannot be unpacked ├── SignalError    samples: broken clocks, infinite values, out of order beyond
the reorder window └── SettingsError  a setting, option, label or name that is unknown or invalid └── LabelError   a
word in a file that a description neither names, nor maps, nor ignores

`GroupedReport` reports what is left out of recordings, once per reason with its count and places.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gaitway import errors
from gaitway.errors import GaitwayError


class PipelineError(GaitwayError):
    """Base of this package's errors; the message says what was wrong, what was expected and what to do."""


class SourceError(PipelineError):
    """A file or archive is missing or not in the layout that its reader expects."""


class UnpackingError(SourceError):
    """A file or archive is truncated or can't be unpacked; next to others it is left out and reported."""


class SignalError(PipelineError):
    """Samples that cannot be put on a time axis."""


class SettingsError(PipelineError, errors.SettingsError):
    """A setting, option or name that does not exist or contradicts another."""


class LabelError(SettingsError):
    """A file's activity isn't a label of the description; the message names the key that makes it one."""


MAX_PLACES = 10
NUMBER = re.compile(r"\d[\d.,]*")

Report = Callable[[str], None]


class GroupedReport:
    """Collects sentences of the form "place: reason"; as a context manager, it passes on each reason once, at its end.

    Reasons that differ only in numbers count as one.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._places: dict[str, dict[str, None]] = {}
        self._first: dict[str, str] = {}

    def __call__(self, sentence: str) -> None:
        """Take a sentence; one that was there before counts as the same."""
        place, _, reason = sentence.partition(": ")
        key = NUMBER.sub("#", reason or sentence)
        self._first.setdefault(key, sentence)
        self._places.setdefault(key, {})[place] = None

    def __enter__(self) -> GroupedReport:
        return self

    def __exit__(self, *error: object) -> None:
        for key, first in self._first.items():
            _, *others = self._places[key]
            listed = ", ".join(others[:MAX_PLACES]) + (", …" if len(others) > MAX_PLACES else "")
            self._report(f"{first} (and {len(others)} more: {listed})" if others else first)
