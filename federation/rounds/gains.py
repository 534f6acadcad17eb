"""Models' gains over the shared one on a federation's devices: reports, and their sums for each version.

Federations with rounds have them. Heads of sums are chosen without: other devices' gains made that choice worse
(`experiments/serving_choice.py`).

A report is `preference.Evidence.report`. Reports add, so one check fits both a device's report and a version's sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from federation.rounds.serving import MAX_GAIN, MIDWAY, MIN_DEVICES, PERSONAL, STEPS

Gains = Mapping[str, Sequence[int]]
"""By candidate, a `preference.GainSums`."""

MODELS = (PERSONAL, MIDWAY)
"""The candidates that devices report on."""
MAX_CLASSES = 100
"""Devices of federations with more classes report no gains: three pointers with such sums fit into an announcement."""
MAX_NUMBER = round(STEPS * MAX_GAIN)
"""No number of one device's report is larger."""
_MAX_SQUARE = round(STEPS * MAX_GAIN**2)
_MAX_DEVICES = 2**31 - 1
MAX_SUM = _MAX_DEVICES * MAX_NUMBER
"""No number of a version's sums is larger."""


def length(classes: int) -> int:
    """Return how many numbers a report has."""
    return 3 + 2 * classes


def checked(sums: Sequence[int]) -> Sequence[int]:
    """Return the sums of as many reports as their first number says.

    Raises:
        ValueError: if no reports of so many devices add up to them.
    """
    if len(sums) < 3 or len(sums) % 2 == 0:
        raise ValueError(f"got {len(sums)} numbers; gains have a count, two sums, and two numbers per class")
    devices, total, square = sums[:3]
    if not 0 <= devices <= _MAX_DEVICES:
        raise ValueError(f"got gains of {devices} devices")
    if abs(total) > devices * MAX_NUMBER or abs(square) > devices * _MAX_SQUARE:
        raise ValueError(f"gains of {devices} devices don't add up to {total} and {square}")
    for count, gain in zip(sums[3::2], sums[4::2], strict=True):
        if not 0 <= count <= devices or abs(gain) > count * MAX_NUMBER:
            raise ValueError(f"a class's gain of {gain} can't come from {count} of {devices} devices")
    return sums


def fitting(reports: Gains, classes: int) -> dict[str, Sequence[int]]:
    """Return the reports of candidates and classes that the federation has."""
    return {name: reports[name] for name in MODELS if len(reports.get(name, ())) == length(classes)}


def published(sums: Gains | None) -> dict[str, list[int]]:
    """Return what of a version's sums devices are told: nothing that is of fewer than `MIN_DEVICES` devices.

    Nobody would go by it, and it would tell much of each of them.
    """
    found = {}
    for name, numbers in (sums or {}).items():
        if numbers[0] >= MIN_DEVICES:
            pairs = zip(numbers[3::2], numbers[4::2], strict=True)
            by_class = [pair if pair[0] >= MIN_DEVICES else (0, 0) for pair in pairs]
            found[name] = [*numbers[:3], *chain.from_iterable(by_class)]
    return found


def plausible(sums: Gains, devices: int) -> dict[str, Sequence[int]]:
    """Return those sums that reports of so many devices at most can add up to."""
    found = {}
    for name, numbers in sums.items():
        with suppress(ValueError):
            if checked(numbers)[0] <= devices:
                found[name] = numbers
    return found


def added(reports: Iterable[Gains]) -> dict[str, list[int]]:
    """Add up reports whose lengths fit each other; candidates without any are left out."""
    found: dict[str, list[int]] = {}
    for report in reports:
        for name, sums in report.items():
            before = found.get(name, [0] * len(sums))
            found[name] = [earlier + other for earlier, other in zip(before, sums, strict=True)]
    return {name: sums for name, sums in found.items() if sums[0]}
