"""Screens a round's updates before they are combined: their weight, and how far each moves the model.

The server and the simulation call the same functions with each update's claimed examples and norms. There are two
rules, each switched off by null in `RoundSettings`:

`max_weight_ratio` caps a weight. Clients claim their own number of examples, and 10⁹ of them would make one update the
whole mean. An update's weight is at most this many times the round's median.

`norm_factor` leaves out an update whose norm is more than this many times the median of the norms of this and earlier
rounds: Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan: Can You Really Backdoor Federated Learning?, 2019, arXiv
1911.07963, section 4. Differs from the paper, which clips such an update; such a norm is no accident.

Medians are lower ones, so that of 2k values the k largest cannot set them. Neither rule detects a wrong update of
normal size; for that, see the robust rules of `federation.aggregation.robust` are for those.

With `clip_norm` neither is applied, because clipped changes weigh the same, and leaving out a client must not depend on
the others' data (`federation.privacy.differential_privacy`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from federation.plan import RoundSettings
from federation.records import Tree, Update, UploadGroup
from federation.records.tree import flatten

HISTORY_ROUNDS = 5
"""Published rounds whose norms are remembered: enough for a median in a fleet of two, and few enough to follow."""

OWN_MEDIAN = 3
"""Updates that may judge one another against what earlier rounds say; of fewer, half would be a single one."""

_NAMED = 5


class UpdateClaim(NamedTuple):
    """What is known of one update of a round."""

    examples: int
    norms: Mapping[str, float]  # by group; {} if they could not be measured


class Typical(NamedTuple):
    """The norms of one group in one round, in short."""

    median: float
    updates: int


RoundNorms = Mapping[str, Typical]
"""By group of tensors: params, prototypes, …"""


@dataclass(frozen=True)
class NormHistory:
    """What was usual in the last rounds, the latest one last.

    After a failed round it counts less, because everything may have changed and no update would ever pass again.
    """

    rounds: tuple[RoundNorms, ...] = ()
    after_failure: bool = False

    def published(self, norms: RoundNorms) -> NormHistory:
        """Return the history with one more published round; the first one after a failure restarts it."""
        before = () if self.after_failure else self.rounds
        return NormHistory((*before, norms)[-HISTORY_ROUNDS:])

    def failed(self) -> NormHistory:
        """Return the history after a failed round."""
        return replace(self, after_failure=True)

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` needs."""
        return {"rounds": [dict(norms) for norms in self.rounds], "after_failure": self.after_failure}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> NormHistory:
        """Read a history from `to_json`."""
        rounds = tuple({group: Typical(*norm) for group, norm in norms.items()} for norms in saved["rounds"])
        return cls(rounds, saved["after_failure"])

    def of(self, group: str) -> list[Typical]:
        """Return what is known of one group."""
        return [norms[group] for norms in self.rounds if group in norms]


@dataclass(frozen=True)
class Screening:
    """What was found about a round's updates, by client."""

    capped: Mapping[str, int] = field(default_factory=dict)
    """The examples that an update counts with, of those that claim more."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Why an update is not used."""
    norms: RoundNorms = field(default_factory=dict)
    """Of the updates that are used, for the history."""


def screen(settings: RoundSettings, claims: Mapping[str, UpdateClaim], history: NormHistory) -> Screening:
    """Judge all updates of a round, once no more will come."""
    if settings.clip_norm is not None:
        return Screening()
    excluded = _outliers(settings, claims, history)
    used = {client: claim for client, claim in claims.items() if client not in excluded}
    limit = examples_limit(settings, (claim.examples for claim in used.values()))
    capped = {client: limit for client, claim in used.items() if limit is not None and claim.examples > limit}
    return Screening(capped, excluded, typical_norms(used.values()))


def examples_limit(settings: RoundSettings, examples: Iterable[int]) -> int | None:
    """Return the most examples that a client counts with, beside clients with so many; None: there is no limit."""
    some = sorted(n for n in examples if n > 0)
    if settings.max_weight_ratio is None or not some:
        return None
    return math.floor(settings.max_weight_ratio * some[(len(some) - 1) // 2])


def cap_examples(update: Update, examples: int | None, groups: Mapping[str, UploadGroup]) -> Update:
    """Return an update that counts with so many examples, and its classes' counts in proportion; None: as it says.

    `groups` are the method's (`Method.upload_groups`).
    """
    if examples is None:
        return update
    ratio = examples / update.examples
    scaled = {name: update.tensors[name] * ratio for name in class_count_groups(groups) if name in update.tensors}
    return update._replace(examples=examples, tensors={**update.tensors, **scaled})


def class_count_groups(groups: Mapping[str, UploadGroup]) -> list[str]:
    """Return the groups of an upload that count its examples of each class (C,)."""
    return [name for name, kind in groups.items() if kind is UploadGroup.CLASS_COUNTS]


def refusal(settings: RoundSettings, norms: Mapping[str, float], history: NormHistory) -> str:
    """Say why an update is refused on arrival, judging only by earlier rounds; empty if it isn't.

    Nobody is before `norm_after` updates are known, nor after a failed round: it is judged at the end, with the others.
    """
    if settings.norm_factor is None or settings.clip_norm is not None or history.after_failure:
        return ""
    for group, norm in norms.items():
        earlier = history.of(group)
        if (count := sum(typical.updates for typical in earlier)) >= settings.norm_after:
            reason = _too_far(group, norm, _median(earlier), settings.norm_factor, f"{count} updates of earlier rounds")
            if reason:
                return reason
    return ""


def shortfall(settings: RoundSettings, claims: Mapping[str, UpdateClaim], screening: Screening) -> str:
    """Say why a round cannot be aggregated, because too few of its updates are left; empty if it can."""
    left = len(claims) - len(screening.excluded)
    if not screening.excluded or left >= settings.minimum_clients:
        return ""
    names = sorted(screening.excluded)
    named = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return (
        f"quorum not reached: {len(names)} of {len(claims)} updates were left out for their norm ({named}), "
        f"{left} remain, {settings.minimum_clients} are needed. The next round compares only its own updates if it "
        f"gets at least {OWN_MEDIAN}; if these devices are honest, raise rounds.norm_factor"
    )


def typical_norms(claims: Iterable[UpdateClaim]) -> dict[str, Typical]:
    """Return the median of each group's norms."""
    groups: dict[str, list[Typical]] = {}
    for claim in claims:
        for group, norm in claim.norms.items():
            groups.setdefault(group, []).append(Typical(norm, 1))
    return {group: Typical(_median(norms), len(norms)) for group, norms in sorted(groups.items())}


def _outliers(settings: RoundSettings, claims: Mapping[str, UpdateClaim], history: NormHistory) -> dict[str, str]:
    if settings.norm_factor is None:
        return {}
    groups = sorted({group for claim in claims.values() for group in claim.norms})
    pools = {group: list(_pool(group, claims, history)) for group in groups}
    found: dict[str, str] = {}
    for client, claim in claims.items():
        for group, norm in claim.norms.items():
            count = sum(typical.updates for typical in pools[group])
            of = f"the {count} updates of this round and those before it"
            if reason := _too_far(group, norm, _median(pools[group]), settings.norm_factor, of):
                found.setdefault(client, reason)
    return found


def _pool(group: str, claims: Mapping[str, UpdateClaim], history: NormHistory) -> Iterator[Typical]:
    own = [Typical(claim.norms[group], 1) for claim in claims.values() if group in claim.norms]
    yield from own
    if not (history.after_failure and len(own) >= OWN_MEDIAN):
        yield from history.of(group)


def _median(values: Iterable[Typical]) -> float:
    """Return the lower median of values that count several times."""
    ordered = sorted(values)
    half, seen = sum(typical.updates for typical in ordered) / 2, 0
    for typical in ordered:
        seen += typical.updates
        if seen >= half:
            return typical.median
    return 0.0


def _too_far(group: str, norm: float, median: float, factor: float, of: str) -> str:
    if median <= 0 or norm <= factor * median:
        return ""
    what = "the change of params" if group == "params" else group
    return (
        f"{what} has the L2 norm {norm:.4g}, over {factor:g} times the median {median:.4g} of {of} (rounds.norm_factor)"
    )


_JUDGED = (UploadGroup.CHANGE, UploadGroup.VALUE, UploadGroup.SQUARED_VALUE)


def change_norms(upload: Tree, broadcast: Tree, groups: Mapping[str, UploadGroup]) -> dict[str, float]:
    """Return the L2 norm of each group that the method (`Method.upload_groups`) wants judged by it.

    Of a change it is the norm of the difference from the broadcast, of a value its own, of a squared value the root of
    its own: features that are three times as large have nine times the covariance, and are no ninefold departure.
    """
    return {
        group: _judged(upload[group], broadcast.get(group, {}), kind)
        for group, kind in groups.items()
        if kind in _JUDGED and group in upload
    }


def _judged(sent: Tree | torch.Tensor, began: Tree | torch.Tensor, kind: UploadGroup) -> float:
    norm = _norm(sent, began if kind is UploadGroup.CHANGE else {})
    return math.sqrt(norm) if kind is UploadGroup.SQUARED_VALUE else norm


def _norm(sent: Tree | torch.Tensor, began: Tree | torch.Tensor) -> float:
    end, start = flatten({"": sent}), flatten({"": began})
    squares = 0.0
    for name, value in end.items():
        like = start.get(name)
        moved = value.to(torch.float64, copy=True)
        if like is not None and like.shape == value.shape:
            moved -= like
        squares += float(torch.linalg.vector_norm(moved)) ** 2
    return math.sqrt(squares)
