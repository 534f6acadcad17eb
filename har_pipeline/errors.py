"""What can go wrong between a sensor and a window: PipelineError and its three kinds.

PipelineError
├── SourceError    files: not found, not in the published layout, a cell that is no number
│   └── UnpackingError   a file or archive that cannot be unpacked
├── SignalError    samples: broken clocks, infinite values, out of order beyond the reorder window
└── SettingsError  a setting, option, label or name that does not exist or does not fit
    └── LabelError   a word in a file that a description neither names, nor maps, nor ignores

`GroupedReport` names what is left out of recordings once for each reason, with how often and where.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gaitway import errors
from gaitway.errors import GaitwayError


class PipelineError(GaitwayError):
    """Anything this package refuses; the message says what came, what was expected and what to do."""


class SourceError(PipelineError):
    """A file or archive is missing or not in the layout that its reader expects."""


class UnpackingError(SourceError):
    """A file or archive is cut off, or cannot be unpacked for another reason; among others it is left out, and said."""


class SignalError(PipelineError):
    """Samples that cannot be put on a time axis."""


class SettingsError(PipelineError, errors.SettingsError):
    """A setting, option or name that does not exist or contradicts another."""


class LabelError(SettingsError):
    """A file's activity is no label of the description; the message says by which key it becomes one."""


MAX_PLACES = 10
NUMBER = re.compile(r"\d[\d.,]*")

Report = Callable[[str], None]


class GroupedReport:
    """Collects sentences of the form "place: reason"; used by `with`, it passes each reason on once, at its end.

    Reasons that differ in numbers alone are one.
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
