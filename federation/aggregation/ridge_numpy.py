"""The client's half of ridge regression from exact sums, in numpy, for programs that must not load torch.

It has the same fixed point as `federation.aggregation.ridge`, bit for bit, and the same heads to 1e-9. In addition, a
client's own sums may have more classes than the shared ones, in columns after theirs: a person's own activities,
unknown to others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from federation.errors import UpdateError

FEATURE_STEPS = float(1 << 12)
SUM_STEPS = float(1 << 15)
LIMIT = float((1 << 31) - 1)
FAR = 1.0
"""Deviations, root mean square over the features. docs/edge_agent.md, 'Heads', has how often it is right."""
MIN_VARIANCE = 0.05
"""Added to everybody's variance of each feature: where all lie alike, a few degrees are not far."""
Doubles = NDArray[np.float64]


class Damping(NamedTuple):
    """What is added to G's diagonal: λ times its mean, and a floor for sums that have noise."""

    ridge: float
    floor: float = 0.0

    def added(self, mean: float) -> float:
        """Return what is added to a diagonal of this mean, which noise may have made negative."""
        return self.ridge * mean + self.floor if mean > 0 else self.floor or 1.0


class RidgeOptions(NamedTuple):
    """A plan's options of the method, with the defaults of `federation.methods.analytic`."""

    ridge: float = 1e-2
    clip: float = 4.0
    own_weight: float = 1.0
    orientation_free_share: float = 0.33
    rotations: int = 0
    degrees: float = 180.0
    sensor_loss: bool = False
    floor: float = 0.0

    @property
    def damping(self) -> Damping:
        """What is added to the diagonal of sums."""
        return Damping(self.ridge, self.floor)

    @classmethod
    def of(cls, method: Mapping[str, Any]) -> RidgeOptions:
        """Take those of a plan's method that are here."""
        return cls(**{name: method[name] for name in cls._fields if name in method})


class RidgeSums(NamedTuple):
    """Sums over a client's windows, by class: whole numbers of FEATURE_STEPS, exactly."""

    counts: Doubles  # (K,) windows
    gram: Doubles  # (K, d, d) Σ a aᵀ, d = D + 1
    total: Doubles  # (K, d) Σ a


class FixedSums(NamedTuple):
    """Weighed sums in SUM_STEPS: int32 where they are one client's, int64 where they are everybody's."""

    gram: NDArray[Any]  # (d (d + 1) / 2,) the upper triangle
    moment: NDArray[Any]  # (d, K)

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> FixedSums:
        """Take a broadcast's sums, whose leaves are torch's."""
        return cls(tree["gram"].cpu().numpy(), tree["moment"].cpu().numpy())

    def restricted(self, columns: Sequence[int]) -> FixedSums:
        """Return the sums of these features alone: heads solved of them give the others no weight."""
        size = len(self.moment)
        used = np.zeros(size, bool)
        used[[*columns, size - 1]] = True
        rows, others = np.triu_indices(size)
        return FixedSums(self.gram * (used[rows] & used[others]), self.moment * used[:, None])


class RidgeHead(NamedTuple):
    """A linear head: scores are features · weightᵀ + bias."""

    weight: Doubles  # (K, D)
    bias: Doubles  # (K,)

    def scores(self, features: NDArray[Any]) -> Doubles:
        """Return the scores (n, K) of features (n, D)."""
        return np.asarray(features, np.float64) @ self.weight.T + self.bias

    def classes(self, features: NDArray[Any]) -> NDArray[np.int64]:
        """Return the classes (n,) of features (n, D)."""
        found: NDArray[np.int64] = self.scores(features).argmax(1).astype(np.int64)
        return found


def sums_of(features: NDArray[Any], y: NDArray[Any], classes: int, clip: float) -> RidgeSums:
    """Sum up features (n, D), clipped to ±clip, with their classes y (n,), 0 to `classes` − 1."""
    bounded = np.clip(np.asarray(features, np.float64), -clip, clip)
    steps = np.rint(np.concatenate([bounded, np.ones((len(bounded), 1))], 1) * FEATURE_STEPS)
    size = steps.shape[1]
    sums = RidgeSums(np.zeros(classes), np.zeros((classes, size, size)), np.zeros((classes, size)))
    for code in range(classes):  # in any order: products of whole numbers that float64 adds exactly
        rows = steps[np.asarray(y) == code]
        sums.counts[code], sums.gram[code], sums.total[code] = len(rows), rows.T @ rows, rows.sum(0)
    return sums


def travelling(sums: RidgeSums) -> FixedSums:
    """Return what a client sends: each class weighs √n, and what is beyond 32 bits is cut off there."""
    size = sums.total.shape[1]
    gram, moment = np.zeros((size, size)), np.zeros_like(sums.total)
    for code, count in enumerate(sums.counts):
        if count:
            weight = 1 / np.sqrt(count)
            gram += sums.gram[code] * weight
            moment[code] = sums.total[code] * weight
    return FixedSums(_fixed(gram[np.triu_indices(size)] / FEATURE_STEPS**2), _fixed(moment.T / FEATURE_STEPS))


def _fixed(values: Doubles) -> NDArray[np.int32]:
    return np.clip(np.rint(values * SUM_STEPS), -LIMIT, LIMIT).astype(np.int32)


def solve(
    shared: FixedSums, own: FixedSums | None, clients: float, damping: Damping, columns: Sequence[int] | None = None
) -> RidgeHead:
    """Solve W = (G + N Gᵢ + (λ tr/d + floor) I)⁻¹ (B + N Bᵢ), the head that a client has of shared and own sums.

    own: may have classes behind the shared ones, which come out last; None: the shared head.
    clients: N, at least 1 times the method's `own_weight`.
    columns: the features that the head uses, of the D; the others weigh 0. All where None.

    Raises:
        UpdateError: where shared and own sums do not belong to one network.
    """
    size = len(shared.moment)
    upper, moment = shared.gram.astype(np.float64), shared.moment.astype(np.float64)
    if own is not None:
        _check_alike(shared, own)
        upper = upper + clients * own.gram
        moment = np.pad(moment, ((0, 0), (0, own.moment.shape[1] - moment.shape[1]))) + clients * own.moment
    gram = np.zeros((size, size))
    gram[np.triu_indices(size)] = upper / SUM_STEPS
    used = np.arange(size) if columns is None else np.array([*columns, size - 1])
    solved = np.zeros((size, moment.shape[1]))
    solved[used] = _damped_solution(gram[np.ix_(used, used)], moment[used] / SUM_STEPS, damping)
    return RidgeHead(solved[:-1].T, solved[-1])


class FeatureMoments(NamedTuple):
    """Mean (k,) and covariance (k, k) of some features over everybody's windows."""

    mean: Doubles
    covariance: Doubles

    def distance(self, mean: Doubles) -> float:
        """Return how far a mean (k,) lies from everybody's, in their deviations (P. C. Mahalanobis, 1936)."""
        away = mean - self.mean
        scale = self.covariance + MIN_VARIANCE * np.eye(len(away))
        squared = float(away @ np.linalg.solve(scale, away)) / len(away)
        return math.sqrt(max(0.0, squared))


def feature_moments(shared: FixedSums, columns: Sequence[int]) -> FeatureMoments | None:
    """Return how some features are spread over the windows in the shared sums, weighed as there.

    None of no window, and of sums whose noise hides it.
    """
    size, index = len(shared.moment), np.array([*columns, len(shared.moment) - 1])
    low, high = np.minimum(index[:, None], index), np.maximum(index[:, None], index)
    squares = shared.gram[low * size - low * (low - 1) // 2 + high - low].astype(np.float64)  # of the upper triangle
    weight = squares[-1, -1]
    if weight <= 0:
        return None
    mean = squares[-1, :-1] / weight
    covariance = squares[:-1, :-1] / weight - np.outer(mean, mean)
    if np.linalg.eigvalsh(covariance + MIN_VARIANCE * np.eye(len(mean))).min(initial=1) <= 0:
        return None
    return FeatureMoments(mean, covariance)


def solve_mean(
    shared: FixedSums, own: FixedSums | None, clients: float, damping: Damping, columns: Sequence[int], share: float
) -> RidgeHead:
    """Solve the mean of the head on all features and, with so large a share, the one on `columns`, if there are any.

    Classes after the shared ones come only from the head on all features: only their owner's device, with its own
    orientation, has learnt them, and the mean would recognize them less well. On MotionSense 65.2% of such windows are
    found, and 57.9% with the mean; on UCI HAR 58.1% and 48.2% (15 windows of each activity, four splits).
    """
    whole = solve(shared, own, clients, damping)
    if not columns or not share:
        return whole
    part, federated = solve(shared, own, clients, damping, columns), shared.moment.shape[1]
    for pair, other in zip(whole, part, strict=True):
        pair[:federated] = (1 - share) * pair[:federated] + share * other[:federated]
    return whole


def check_believable(sums: FixedSums, clients: int) -> str:
    """Say which sums so many devices cannot have sent, each number of one's fitting into 32 bits; '' where they can."""
    for name, values in sums._asdict().items():
        # the least int64 has no positive one
        largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
        if largest > clients * int(LIMIT):
            return (
                f"the broadcast's sums {name} of {clients} devices reach {largest}; a device can add at most "
                f"{int(LIMIT)}, so the current model stays"
            )
    return ""


def _damped_solution(upper: Doubles, moment: Doubles, damping: Damping) -> Doubles:
    """Solve (G + added I) W = B by Cholesky, where `upper` holds G's upper triangle."""
    gram = np.triu(upper) + np.triu(upper, 1).T
    gram[np.diag_indices_from(gram)] += damping.added(np.trace(gram) / len(gram))
    try:  # numpy can't solve triangular systems; scipy can, but takes a hundred megabytes on a device
        np.linalg.cholesky(gram)
        return np.asarray(np.linalg.solve(gram, moment), np.float64)
    except np.linalg.LinAlgError as error:
        raise UpdateError(f"the sums can't come from any examples, so no head can be solved: {error}") from error


def _check_alike(shared: FixedSums, own: FixedSums) -> None:
    (size, classes), (own_size, own_classes) = shared.moment.shape, own.moment.shape
    if size != own_size or own_classes < classes or shared.gram.shape != own.gram.shape:
        raise UpdateError(
            f"the shared sums are of {size - 1} features and {classes} classes, the client's of {own_size - 1} and "
            f"{own_classes}; expected as many features, and no fewer classes: make both with the same network"
        )
