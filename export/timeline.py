"""Answers as lines of text: a time line of activities for people, or a JSON object a line for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from export.recognizer import Answer

DIGITS = 4


class Timeline:
    """Makes lines of answers: one per stretch of an activity, or (numbers, `per_window`, `as_json`) one per window."""

    def __init__(self, labels: Sequence[str], *, per_window: bool, as_json: bool) -> None:
        self._labels, self._per_window, self._as_json = labels, per_window, as_json
        self._width = max(map(len, labels))
        self._first_s: float | None = None
        self._stretch: list[Answer] = []

    def begin(self, first_s: float) -> None:
        """Count the shown seconds from this time on; only the first call counts."""
        self._first_s = first_s if self._first_s is None else self._first_s

    def add(self, answer: Answer) -> list[str]:
        """Return the lines that are complete with this answer."""
        if self._as_json:
            return [self._json(answer)]
        if self._per_window or answer.number is not None:
            return [self._line([answer])]
        done = []
        if self._stretch and not self._continues(answer):
            done, self._stretch = [self._line(self._stretch)], []
        self._stretch.append(answer)
        return done

    def end(self) -> list[str]:
        """Return what is left."""
        return [self._line(self._stretch)] if self._stretch else []

    def _continues(self, answer: Answer) -> bool:
        last = self._stretch[-1]
        return answer.label == last.label and answer.start_s <= last.end_s

    def _line(self, stretch: Sequence[Answer]) -> str:
        first, last = stretch[0], stretch[-1]
        begin_s = self._first_s or 0.0
        if first.number is not None:
            return f"{first.start_s - begin_s:8.1f} to {last.end_s - begin_s:8.1f} s  {first.label}"
        probability = float(np.mean([answer.probability for answer in stretch]))
        count = len(stretch)
        windows = "" if self._per_window else f"  {count} window{'s' if count > 1 else ''}"
        span = f"{first.start_s - begin_s:8.1f} to {last.end_s - begin_s:8.1f} s"
        return f"{span}  {first.label:<{self._width}}  {probability:4.0%}{windows}"

    def _json(self, answer: Answer) -> str:
        if answer.number is not None:
            kept = ("start_s", "end_s", "label", "number", "delay_s", "inference_s")
            return json.dumps({name: getattr(answer, name) for name in kept})
        record = {name: value for name, value in answer._asdict().items() if name != "number"} | {
            "probability": round(answer.probability, DIGITS),
            "probabilities": {
                label: round(float(probability), DIGITS)
                for label, probability in zip(self._labels, answer.probabilities, strict=True)
            },
        }
        return json.dumps(record)
