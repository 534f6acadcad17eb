"""What is left out of recordings, told once for each reason, with how often and where."""

from __future__ import annotations

import re
from collections.abc import Callable

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
