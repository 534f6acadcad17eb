"""Chooses the model that a device serves: the one with the highest expected gain over the shared model.

The device chooses among the shared model, its own model and weights midway between the two (M. Wortsman et al., "Robust
fine-tuning of zero-shot models", CVPR 2022, arXiv 2109.01903). It is a choice under uncertainty, not a test: no model
is the default that the others must disprove.

Gain: a candidate's mean recall over the classes less the shared model's; of a task without classes, its mean quality.
Evidence: g, the paired difference on held-out windows, class by class, with sampling variance v. Neighboring windows
err together, so a group of them counts once (`Evidence.of`).
Prior: the same gain on the federation's other devices, with mean m and variance t², from three sums per candidate:
count, Σ g and Σ (g² - v). Subtracting v leaves the variance between devices.
Posterior mean (A. Gelman et al., "Bayesian Data Analysis", section 5.4): w g + (1 - w) m with w = T / (T + V), where T
and V sum t² and v over the candidates. One w for all candidates keeps their paired differences.

`usable_heads` are those of an exchange of sums, and `head_without_labels` chooses among them without labels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Prefer = Literal["likelier", "personal", "shared"]
Floats = npt.NDArray[np.float64]
GainSums = Sequence[int]
"""Of one candidate, in steps of 1 / STEPS: count, Σ g, Σ (g² - v), then a count and Σ g for each class; they add."""

SHARED, PERSONAL, MIDWAY = "global", "personalized", "midway"
"""Names of the candidates that every method with a shared model has; a continuous federation has heads instead."""
STEPS = 10_000
MAX_GAIN = 0.5
"""Reported gains are clipped to this: one device can move the mean of ten by a twentieth at most."""
MIN_DEVICES = 10
"""With fewer reports there is no prior, so that a few devices can't steer the others."""
MAX_PRIOR_WINDOWS = 20
"""The prior never outweighs this many held-out windows."""
TIE = 0.003
"""Candidates this close are equally good; the first in the order of preference serves."""
WINDOWS_PER_GROUP = 3.0
"""Windows overlap by half and activities go on, so that about a third of them are independent."""
TYPICAL_VARIANCE, TYPICAL_WEIGHT = 0.05, 6.0
"""Of one window's paired difference within a class (measured on three data sets), and how many windows it counts as."""


class Evidence(NamedTuple):
    """A candidate's gain over the shared model on held-out windows: mean and variance by class (C,); NaN: no window."""

    gain: Floats
    variance: Floats
    windows: int

    @classmethod
    def of(
        cls, y: npt.NDArray[np.int64], quality: Floats, shared: Floats, session: npt.NDArray[np.int64], classes: int
    ) -> Evidence:
        """Compare how well a candidate and the shared model answer windows (n,) of classes y (n,).

        session: numbers (n,); if a class has windows of several, each of its sessions counts once.
        """
        difference = quality.astype(np.float64) - shared
        gain, groups = np.full(classes, np.nan), np.full(classes, np.nan)
        for label in np.unique(y):
            of_class = y == label
            gain[label] = difference[of_class].mean()
            sizes = np.unique(session[of_class], return_counts=True)[1]
            groups[label] = _effective(sizes) if len(sizes) > 1 else max(1.0, of_class.sum() / WINDOWS_PER_GROUP)
        squares = float(((difference - gain[y]) ** 2).sum()) + TYPICAL_WEIGHT * TYPICAL_VARIANCE
        freedom = len(y) - np.count_nonzero(~np.isnan(gain)) + TYPICAL_WEIGHT
        return cls(gain, squares / freedom / groups, len(y))

    @property
    def mean(self) -> float:
        """The mean gain over the classes with windows."""
        return float(np.nanmean(self.gain))

    @property
    def mean_variance(self) -> float:
        """The sampling variance of that mean."""
        return float(np.nansum(self.variance) / np.count_nonzero(~np.isnan(self.gain)) ** 2)

    def report(self) -> list[int]:
        """Return what the device adds to its federation's sums: a `GainSums` of one device."""
        mean = float(np.clip(self.mean, -MAX_GAIN, MAX_GAIN))
        square = float(np.clip(mean**2 - self.mean_variance, -(MAX_GAIN**2), MAX_GAIN**2))
        known = ~np.isnan(self.gain)
        by_class = np.stack([known, STEPS * np.clip(np.where(known, self.gain, 0.0), -MAX_GAIN, MAX_GAIN)], 1)
        return [1, round(STEPS * mean), round(STEPS * square), *np.rint(by_class).astype(int).ravel().tolist()]


class Prior(NamedTuple):
    """A candidate's gain on other devices: mean and variance between devices, and the mean for each class (C,)."""

    mean: float
    variance: float
    by_class: Floats

    @classmethod
    def of(cls, sums: GainSums, own: GainSums | None = None) -> Prior | None:
        """Read it off the federation's sums, less the device's own report; None for fewer than `MIN_DEVICES`."""
        left = np.array(sums, np.float64) - (0 if own is None else np.array(own, np.float64))
        count, total, square = left[:3]
        if count < MIN_DEVICES:
            return None
        mean = float(np.clip(total / STEPS / count, -MAX_GAIN, MAX_GAIN))
        counts, totals = left[3::2], left[4::2]
        by_class = np.where(counts >= MIN_DEVICES, totals / STEPS / np.maximum(counts, 1), mean)
        return cls(mean, max(0.0, square / STEPS / count - mean**2), np.clip(by_class, -MAX_GAIN, MAX_GAIN))


class Rival(NamedTuple):
    """What is known of a model that could serve instead of the shared one."""

    evidence: Evidence | None = None
    """None without held-out windows."""
    prior: Prior | None = None
    forgets: bool = True
    """Whether a class that it wasn't trained on counts as lost."""


def expected_gains(candidates: Mapping[str, Rival], trained: npt.NDArray[np.bool_], recall: float) -> dict[str, float]:
    """Return each candidate's expected gain over the shared model; candidates of which nothing is known are left out.

    A class without held-out windows takes the federation's gain for it. If the device has never trained on it either,
    the shared model's recall is lost there. That is taken to be `recall` (0 to 1), its lowest of a class on the
    held-out windows: classes that a device lacks are mostly rare ones, which the shared model recognizes worst.

    :param trained: whether the device trained on each class (C,).
    """
    weight = _evidence_weight(candidates)
    return {
        name: _expected(rival, weight, trained, recall)
        for name, rival in candidates.items()
        if rival[:2] != (None, None)
    }


def likeliest(gains: Mapping[str, float], order: Sequence[str], margin: float = 0.0, reference: str = SHARED) -> str:
    """Return the name of the model to serve: of those within `TIE` of the highest expected gain, the first in `order`.

    :param gains: expected gains over the model named `reference`, by name.
    :param margin: what a model must gain to take that one's place.
    """
    able = {reference: 0.0, **{name: gain for name, gain in gains.items() if gain >= margin}}
    best = max(able.values())
    return min((name for name in able if able[name] >= best - TIE), key=order.index)


def _effective(sizes: npt.NDArray[np.int64]) -> float:
    """Return how many groups of one size are worth as much as these (L. Kish, "Survey Sampling", 1965)."""
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def _evidence_weight(candidates: Mapping[str, Rival]) -> float:
    known = [(rival.evidence, rival.prior) for rival in candidates.values() if rival.evidence and rival.prior]
    if not known:
        return 1.0
    between = sum(prior.variance for _, prior in known)
    sampling = sum(evidence.mean_variance for evidence, _ in known)
    windows = known[0][0].windows
    return max(between / (between + sampling), windows / (windows + MAX_PRIOR_WINDOWS))


def _expected(rival: Rival, weight: float, trained: npt.NDArray[np.bool_], recall: float) -> float:
    gain = np.zeros(len(trained)) if rival.prior is None else rival.prior.by_class.copy()
    seen = np.zeros(len(trained), bool)
    if rival.evidence is not None:
        seen = ~np.isnan(rival.evidence.gain)
        mean = (
            rival.evidence.mean
            if rival.prior is None
            else weight * rival.evidence.mean + (1 - weight) * rival.prior.mean
        )
        gain[seen] = mean
    if rival.forgets:
        gain[~trained & ~seen] = -recall
    return float(gain.mean())


Head = TypeVar("Head")
SHARED_HEAD, PERSONALIZED = "shared", "personalized"
SHARED_ANY_ORIENTATION, PERSONALIZED_ANY_ORIENTATION = "shared_any_orientation", "personalized_any_orientation"
"""The names that `SumMethod.serving_models` gives them; the last two know nothing of how the phone lies."""
ADAPTED = "adapted"
"""Of a device without labels, whose windows count as what the shared head names them (`aggregation.pseudo_labels`)."""


def usable_heads(heads: Mapping[str, Head], *, is_trained: bool, is_labelled: bool) -> dict[str, Head]:
    """Return those of a device's heads that mean something.

    Before anybody's sums are in the broadcast these are the ones that need no sums of others. A device that has none of
    its own has the shared ones.
    """
    return {name: head for name, head in heads.items() if (is_trained if name.startswith(SHARED_HEAD) else is_labelled)}


def head_without_labels(names: Collection[str], is_far: bool) -> str:
    """Return the head that serves where nobody has said what its windows are.

    Where gravity lies far from the others', the shared one that does not know how the phone lies; else the one adapted
    to its own windows, if there is one, or the shared one.
    """
    if is_far and SHARED_ANY_ORIENTATION in names:
        return SHARED_ANY_ORIENTATION
    return ADAPTED if ADAPTED in names and not is_far else SHARED_HEAD
