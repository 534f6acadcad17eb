"""Checks whether an opened sum can come from so many clients, each within the plan's bounds.

The server never sees one client's numbers, so it checks the sum: no number exceeds the clients times one client's
bound, counts aren't negative, and changes of parameters fit the weight that they count with. A method checks its own
sums (`SumMethod.sum_implausibility`).

A client that stays within the bounds of the whole sum isn't detected. That is more than one client may add, and masks
let the server see no more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from federation.method import Method, SumMethod
from federation.plan import SecureSettings
from federation.privacy.discrete_gaussian import noisy_devices, share_of
from federation.records import SumKind, Tree
from federation.records.tree import flatten
from federation.secure_sums.summation import SumLayout, decoded, parts

WEIGHT_OF = {"params": "weight", "prototypes": "counts", "centre_sums": "centre_counts"}
"""By group of numbers that count with a weight, the group that has this weight."""


class OpenedSum(NamedTuple):
    """A sum, or the sums of groups one after the other, of so many clients."""

    layout: SumLayout
    numbers: NDArray[np.int64]
    clients: int


def implausibility(method: Method, settings: SecureSettings, opened: OpenedSum) -> str:
    """Say why no so many clients can have added up to a sum; empty if they can."""
    deviation, clients = _deviation(settings, opened.clients), opened.clients
    for numbers in opened.numbers.reshape(settings.groups, -1):
        total = decoded(opened.layout, numbers)
        if isinstance(method, SumMethod):
            reason = method.sum_implausibility(total, clients, deviation)
        else:
            reason = _inconsistent(method, total, settings, clients)
        if reason := _beyond_bounds(opened.layout, numbers, clients) or reason:
            return reason
    return ""


def _deviation(settings: SecureSettings, clients: int) -> float:
    """Return the deviation of each number's noise, in steps."""
    if not settings.noise_multiplier or settings.clip_norm is None:
        return 0.0
    share = share_of(settings.noise_multiplier, settings.clip_norm, noisy_devices(settings))
    return math.sqrt(share * clients)


def _beyond_bounds(layout: SumLayout, total: NDArray[np.int64], clients: int) -> str:
    for segment, numbers in parts(layout, total):
        if not numbers.size:
            continue
        largest = max(int(numbers.max()), -int(numbers.min()))
        if largest > (most := clients * segment.bound):
            return (
                f"{segment.name} adds up to {largest:,}, and {clients} clients' numbers of up to {segment.bound:,} add "
                f"up to {most:,} at most"
            )
    return ""


def _inconsistent(method: Method, total: Tree, settings: SecureSettings, clients: int) -> str:
    """Say that counts are negative, or that numbers don't fit the weight that they count with."""
    flat, kinds = flatten(total), method.sum_groups
    for name, values in flat.items():
        if kinds[name.split("/")[0]] is SumKind.COUNT and (least := float(values.min())) < 0:
            return f"{name} adds up to {least:g}: expected a count of 0 or more"
    if settings.noise_multiplier:
        return ""  # noise reaches far beyond what single changes can
    rounded = 0.5 * clients / settings.steps
    for name, values in flat.items():
        group, _, rest = name.partition("/")
        weight = WEIGHT_OF.get(group, "")
        weights = flat.get(f"{weight}/{rest}", flat.get(weight))
        if weights is None:
            continue
        limit = settings.max_change if kinds[group] is SumKind.WEIGHTED_CHANGE else settings.max_value
        most = weights.double().reshape(*weights.shape, *(1,) * (values.dim() - weights.dim())) * limit + rounded
        if (over := float((values.double().abs() - most).max())) > 0:
            return f"a number of {name} is {over:g} beyond {limit:g} times its weight"
    return ""
