"""A round's updates at the server: who was lost and what came, judged or summed up unseen, and the state made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from federation.aggregation.present_sums import CombinedSums, KeptContributions, combined, needs_all
from federation.aggregation.screening import (
    NormHistory,
    Screening,
    UpdateClaim,
    cap_examples,
    change_norms,
    screen,
    shortfall,
)
from federation.errors import RoundError
from federation.method import Method, SumMethod
from federation.plan import RoundSettings
from federation.privacy.differential_privacy import aggregated
from federation.records import Tensors, Tree, Update
from federation.rounds.server_round import (
    Action,
    Aggregated,
    AggregationFailed,
    DeadlinePassed,
    DeviceLost,
    Event,
    InMemoryRound,
    Opened,
    RoundPhase,
    UpdateArrived,
    discount,
)
from federation.seeds import generator
from federation.training.local_round import Setup
from sim.attacks.clients import Attack
from sim.engines.client_store import Result
from sim.engines.client_store.lazy import LazySequence
from sim.rounds.cohort import RoundCohort
from sim.rounds.secure_rounds import SecureRounds
from sim.scores.diagnostics import diagnose


@dataclass
class CollectedRound:
    """What the server has after a round; one that fails leaves its state as it was."""

    call: InMemoryRound
    state: Tree
    norms: NormHistory
    noise: Tensors = field(default_factory=dict)  # that the next round's leans on
    screening: Screening = field(default_factory=Screening)
    refused: frozenset[str] = frozenset()  # whose updates count for nothing, now and later
    secure_facts: dict[str, Any] = field(default_factory=dict)  # of the sum
    diagnostics: dict[str, Any] = field(default_factory=dict)  # what the aggregation did

    def fail(self, reason: str) -> CollectedRound:
        """End the round without a new state."""
        self.call.feed(AggregationFailed(reason))
        return self

    def publish(self, state: Tree) -> CollectedRound:
        """End the round with a new state."""
        self.state = state
        self.call.feed(Aggregated())
        return self


@dataclass(frozen=True)
class RoundServer:
    """How a federation's server deals with updates; `contributions`, of a `SumMethod`, grow with each round."""

    rounds: RoundSettings
    setup: Setup
    train_sizes: Mapping[str, int]
    contributions: KeptContributions
    secure: SecureRounds | None = None  # where the server sees sums alone
    attack: Attack | None = None

    def collect(
        self,
        found: CollectedRound,
        cohort: RoundCohort,
        broadcasts: Mapping[str, Tree],
        results: Mapping[str, Result],
    ) -> CollectedRound:
        """Tell the round machine who was lost and whose update came, and aggregate when it says so.

        `found` is what the server has as the round begins. A round fails where too few updates came or were found fit.
        """
        call, number = found.call, found.call.round.number
        call.feed(Opened())
        events: list[Event] = [
            *map(DeviceLost, cohort.lost),
            *(UpdateArrived(name, number) for name in results),
            DeadlinePassed(),  # which ends a round without clients: all of them are suspended
        ]
        for event in events:
            if Action.AGGREGATE in call.feed(event).actions:
                break
        if call.round.phase is not RoundPhase.AGGREGATING:
            found.norms = found.norms.failed()
            return found
        updates: Sequence[Update] = LazySequence(
            sorted(call.received),
            lambda name: self._update(name, results[name], cohort.steps[name], call.received[name]),
        )
        if self.attack is not None:
            updates = self.attack.on_updates(updates, broadcasts, self.setup.training.seed, number)
        if self.secure is not None:
            return self._sum(self.secure, found, cohort, updates, broadcasts)
        if isinstance(self.setup.method, SumMethod):
            return self._add_up(self.setup.method, found, updates)
        return self._screen(found, updates, broadcasts)

    def _screen(
        self, found: CollectedRound, received: Sequence[Update], broadcasts: Mapping[str, Tree]
    ) -> CollectedRound:
        """Make the next state of those updates that are found fit."""
        method, before = self.setup.method, found.state
        claims = {update.client_id: self._claim(update, broadcasts) for update in received}
        found.screening = screen(self.rounds, claims, found.norms)
        found.refused = frozenset(found.screening.excluded)
        if reason := shortfall(self.rounds, claims, found.screening):
            found.norms = found.norms.failed()
            return found.fail(reason)
        found.norms = found.norms.published(found.screening.norms)
        updates = _used(method, received, found.screening)
        draw = generator(self.setup.training.seed, "noise", found.call.round.number)
        state, found.noise = aggregated(self.rounds, method, before, updates, draw, found.noise)
        found.diagnostics = diagnose(method, before, state, updates)
        return found.publish(state)

    def _sum(
        self,
        secure: SecureRounds,
        found: CollectedRound,
        cohort: RoundCohort,
        updates: Sequence[Update],
        broadcasts: Mapping[str, Tree],
    ) -> CollectedRound:
        """Make the next state of the updates' sum; nobody judges a single one."""
        number = found.call.round.number
        try:
            state, summed = secure.next_state(found.state, cohort.clients, updates, broadcasts, number)
        except RoundError as error:
            return found.fail(str(error))
        found.secure_facts = summed.facts
        return found.publish(state)

    def _add_up(self, method: SumMethod, found: CollectedRound, updates: Sequence[Update]) -> CollectedRound:
        """Make the next state of the changes alone where that is enough, else of all that clients have in it.

        Whoever a rule leaves out still has its sums here, and may be used next time.
        """
        before = found.state
        try:
            if needs_all(method, self.rounds, before):
                made = self._combined(method, before, updates)
                state, found.screening = made.state, made.screening
            else:
                state = method.aggregate(before, updates)
        except RoundError as error:
            return found.fail(str(error))
        self.contributions.note(updates)
        found.diagnostics = diagnose(method, before, state, updates)
        return found.publish(state)

    def _combined(self, method: SumMethod, state: Tree, updates: Sequence[Update]) -> CombinedSums:
        """Make a state of all that clients have in it, with what came in this round."""
        trees = {**self.contributions.trees, **{update.client_id: update.tensors for update in updates}}

        def read(name: str) -> Update:
            return Update(name, self.train_sizes[name], 0, trees[name])

        return combined(method, self.rounds, self.setup.training.seed, state, list(trees), read)

    def _update(self, name: str, result: Result, steps: int, late: int) -> Update:
        update = Update(name, self.train_sizes[name], steps, result.upload, discount(self.rounds, late))
        return update if self.secure is not None else self.contributions.replacing(update)

    def _claim(self, update: Update, broadcasts: Mapping[str, Tree]) -> UpdateClaim:
        """Return what the server knows of an update; norms cost a pass over it, and only one rule asks for them."""
        judged = self.rounds.norm_factor is not None and self.rounds.clip_norm is None
        if not judged:
            return UpdateClaim(update.examples, {})
        groups = self.setup.method.upload_groups
        return UpdateClaim(update.examples, change_norms(update.tensors, broadcasts[update.client_id], groups))


def _used(method: Method, updates: Sequence[Update], screening: Screening) -> Sequence[Update]:
    """Return the updates that are aggregated, each with the examples that it counts with."""
    kept = [update.client_id not in screening.excluded for update in updates]

    def capped(index: int) -> Update:
        update = updates[index]
        return cap_examples(update, screening.capped.get(update.client_id), method.upload_groups)

    return LazySequence([index for index, used in enumerate(kept) if used], capped)
