"""Whether what was read says all that the sample says."""

from __future__ import annotations

from typing import Any


def lost(sample: Any, today: Any, where: str = "") -> list[str]:
    """Name what a sample of JSON has and today's reading of it has not, or has otherwise; today may have more keys."""
    if isinstance(sample, dict) and isinstance(today, dict):
        found = [f"{where}.{name} is gone" for name in sorted(sample.keys() - today.keys())]
        for name in sorted(sample.keys() & today.keys()):
            found += lost(sample[name], today[name], f"{where}.{name}")
        return found
    if isinstance(sample, list) and isinstance(today, list) and len(sample) == len(today):
        pairs = enumerate(zip(sample, today, strict=True))
        return [each for i, (was, now) in pairs for each in lost(was, now, f"{where}.{i}")]
    return [] if sample == today else [f"{where}: {sample!r} is {today!r}"]
