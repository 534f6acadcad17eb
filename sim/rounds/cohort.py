"""Who works in a round, for how many steps, and who is lost to it: the same for every method under one seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from federation.plan import RoundSettings
from federation.rounds.server_round import keeps_partial_work, sample_cohort
from federation.seeds import generator
from federation.training.client_round import steps_of
from federation.training.local_round import Setup


@dataclass(frozen=True)
class RoundCohort:
    """A round's cohort, the optimizer steps that each client does, and those whose work does not reach the server."""

    clients: tuple[str, ...]
    steps: Mapping[str, int]
    lost: tuple[str, ...]

    @property
    def reporting(self) -> tuple[str, ...]:
        """The clients whose updates come."""
        lost = frozenset(self.lost)
        return tuple(name for name in self.clients if name not in lost)


def draw_cohort(
    setup: Setup, rounds: RoundSettings, straggling: float, sizes: Mapping[str, int], round_number: int
) -> RoundCohort:
    """Draw a round's cohort and its stragglers from clients with so many training examples.

    A straggler is lost to the round, before it trains, unless the round keeps partial work.
    """
    seed = setup.training.seed
    examples = sizes if rounds.sampling == "examples" else None
    cohort = sample_cohort(rounds, sizes, seed=seed, round_number=round_number, examples=examples)
    slow = stragglers(straggling, cohort, seed=seed, round_number=round_number)
    whole = {name: steps_of(setup, sizes[name]) for name in cohort}
    steps = {name: steps_done(slow[name], n) if name in slow else n for name, n in whole.items()}
    partial = tuple(name for name in cohort if steps[name] < whole[name])
    return RoundCohort(cohort, steps, () if keeps_partial_work(rounds, setup.method) else partial)


def stragglers(share: float, cohort: Sequence[str], *, seed: int, round_number: int) -> dict[str, float]:
    """Name the round(share · K) stragglers of a cohort, and what part of its steps, within [0, 1), each does.

    Each client draws its own two numbers, so that the same clients straggle alike whatever the method is.
    """
    draws = {name: generator(seed, "straggler", round_number, name).random(2).tolist() for name in cohort}
    slowest = sorted(cohort, key=lambda name: draws[name][0])[: round(share * len(cohort))]
    return {name: draws[name][1] for name in sorted(slowest)}


def steps_done(part: float, steps: int) -> int:
    """Return F′ of F steps: one at least, where any is asked for."""
    return min(steps, max(1, int(part * steps)))
