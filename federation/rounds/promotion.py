"""Decides from devices' scores whether a name of a federation's models may move to another version.

A version is compared with the one that it would replace on the devices that measured both, each on its own holdout: the
mean of their differences, so that devices with hard recordings count against neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from federation.plan import PromotionSettings
from gaitway.python310 import StrEnum
from gaitway.tasks import Metric


class Decision(StrEnum):
    """What a measure says of a version."""

    BETTER = "better"  # enough devices have measured it, and it is not worse
    UNDECIDED = "undecided"  # too few have
    WORSE = "worse"


@dataclass(frozen=True)
class VersionComparison:
    """What devices have measured of a version, and of it and another."""

    measured: int  # devices that have measured the version
    paired: int = 0  # of them have measured the other one too
    gain: float = 0.0  # mean of their gains over the other one in the metric; below 0: it is worse


@dataclass(frozen=True)
class PromotionVerdict:
    """What a measure says, and in words why."""

    decision: Decision
    reason: str


def needed_devices(settings: PromotionSettings, devices: int, cohort: int | None) -> int:
    """Return how many devices must have measured a version, of those that exist; a round asks `cohort` (none: all).

    By default a tenth of those that can, but two, or the only one.
    """
    if settings.min_devices is not None:
        return settings.min_devices
    able = devices if cohort is None else min(devices, cohort)
    return max(1, min(able, max(2, math.ceil(able / 10))))


@dataclass(frozen=True)
class Bar:
    """What a version must reach: measures of so many of the devices, and no more than the margin below the other."""

    needed: int
    devices: int
    margin: float
    metric: Metric


def judge(found: VersionComparison, bar: Bar, *, other: str | None, trained: bool) -> PromotionVerdict:
    """Judge a version against `other`, in words, which it would replace (none: it replaces nothing).

    A version 0 that was never trained (`trained` is false), and that too few have measured, is replaced by any.
    """
    if found.measured < bar.needed:
        return PromotionVerdict(Decision.UNDECIDED, _too_few(found.measured, bar, "measured it"))
    if other is None or (not trained and found.paired < bar.needed):
        return PromotionVerdict(Decision.BETTER, f"{_devices(found.measured)} measured it")
    if found.paired < bar.needed:
        return PromotionVerdict(Decision.UNDECIDED, _too_few(found.paired, bar, f"measured both it and {other}"))
    metric, unit = bar.metric, " points" if bar.metric.is_share else ""
    words = f"{metric.difference_text(found.gain)}{unit} of {metric.label} against {other}, on "
    words += f"{_devices(found.paired)} that measured both"
    if found.gain < -bar.margin:
        allowed = metric.difference_text(-bar.margin)
        return PromotionVerdict(Decision.WORSE, f"it is worse: {words}; down to {allowed}{unit} is allowed")
    return PromotionVerdict(Decision.BETTER, words)


def _too_few(count: int, bar: Bar, what: str) -> str:
    words = f"{count} of the {bar.needed} devices that are needed {'has' if count == 1 else 'have'} {what}"
    if bar.needed > bar.devices:
        words += f"; the federation has only {_devices(bar.devices)}: lower promotion.min_devices, or wait for more"
    return words


def _devices(count: int) -> str:
    return f"{count:,} device{'' if count == 1 else 's'}"
