"""Decides after a failed secure sum which devices to leave out of the next ones, and how to group the others.

A sum hides who has spoiled it. So the devices of a sum that came out impossible are divided into two disjoint groups,
and each group's sum is tried in a round of its own, until a group is too small to be divided.

Nobody's numbers come out by this. All groups together are exactly the devices whose sum was seen, and each has at least
`least` of them: all that the server learns are the sums of the smallest groups. That holds only while a group is
complete. With one member less, its sum subtracted from the sum before would be that member's numbers. So a group that
lacks anybody isn't summed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pydantic import Field

from federation.secure_sums.membership import groups_of
from federation.secure_sums.messages import SecureMessage


class SumFinding(SecureMessage):
    """What a sum that failed says of the devices in it, by name."""

    culprits: dict[str, str] = Field(default_factory=dict, description="who is at fault for certain, and why")
    suspects: tuple[str, ...] = Field(default=(), description="one of them is at fault, and it isn't known which")
    silent: tuple[str, ...] = Field(default=(), description="who didn't answer, so that too few were left")
    is_opened: bool = Field(default=False, description="whether the suspects' sum was seen, and is impossible")


class Retry(SecureMessage):
    """What the next rounds are of; devices by their ids."""

    groups: tuple[tuple[int, ...], ...] = Field(default=(), description="disjoint; the sum of one in each round")
    left_out: tuple[int, ...] = Field(default=(), description="not invited before a version of the others")
    is_narrower: bool = Field(default=False, description="whether the round that failed has brought us further")


class Blamed(NamedTuple):
    """A finding about a round whose devices have these ids."""

    known: frozenset[int]
    """Who is left out of the next rounds."""
    suspects: tuple[int, ...]
    is_opened: bool
    silent: frozenset[int] = frozenset()
    strikes: Mapping[int, int] = MappingProxyType({})
    """In how many failed sums suspects were, since one of theirs was published."""

    @classmethod
    def of(cls, finding: SumFinding, ids: Mapping[str, int], strikes: Mapping[int, int]) -> Blamed:
        """Look the devices of a finding up."""
        culprits = frozenset(ids[name] for name in finding.culprits if name in ids)
        silent = frozenset(ids[name] for name in finding.silent if name in ids)
        suspects = tuple(ids[name] for name in sorted(finding.suspects) if name in ids)
        return cls(culprits | silent, suspects, finding.is_opened, silent, strikes)


class Division(NamedTuple):
    """What a round that failed is followed by, and whose numbers can't be tried again because their sum was seen."""

    retry: Retry
    sit_out: frozenset[int]
    is_smallest: bool = False
    """Whether the suspects of the round are as few as can be told."""


def after_failure(before: Retry, found: Blamed, least: int, number: int) -> Division:
    """Return what follows from a failed round.

    before: what the round was of. least: no group has fewer devices. number: of the round, which deals the groups.
    """
    groups, left, sit_out = before.groups, set(before.left_out) | found.known, set[int]()
    halves = _halves(found, number) if found.is_opened and len(found.suspects) >= 2 * least else ()
    if found.is_opened:
        groups = (*groups[1:], *halves)
        sit_out = set() if halves else set(found.suspects)
    else:
        left |= set(found.suspects)
        if groups and (left | found.silent) & set(groups[0]):
            sit_out, groups = set(groups[0]), groups[1:]
    retry = Retry(groups=groups, left_out=tuple(sorted(left | sit_out)))
    is_narrower = (retry.groups, retry.left_out) != (before.groups, before.left_out)
    retry = retry.model_copy(update={"is_narrower": is_narrower})
    return Division(retry, frozenset(sit_out), is_smallest=bool(found.suspects) and not halves)


def after_publication(before: Retry) -> Retry:
    """Return what follows once a version has come: the next group, or everybody."""
    if not before.groups:
        return Retry()
    return Retry(groups=before.groups[1:], left_out=before.left_out)


def complete_groups(before: Retry, present: Collection[int]) -> Division:
    """Drop the groups that lack somebody, up to the first one that doesn't."""
    groups, sit_out = before.groups, set[int]()
    while groups and not set(groups[0]) <= set(present):
        sit_out |= set(groups[0])
        groups = groups[1:]
    left = tuple(sorted({*before.left_out, *sit_out}))
    return Division(before.model_copy(update={"groups": groups, "left_out": left}), frozenset(sit_out))


def _halves(found: Blamed, number: int) -> tuple[tuple[int, ...], ...]:
    """Divide suspects evenly, and those with equally many strikes as well, so that each search halves the foremost."""
    members = found.suspects
    drawn = dict(zip(members, groups_of([str(member) for member in members], len(members), number), strict=True))
    order = sorted(members, key=lambda member: (-found.strikes.get(member, 0), drawn[member]))
    return tuple(tuple(sorted(order[first::2])) for first in (0, 1))
