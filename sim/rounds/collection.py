"""The clients' way to the server: uploads are encoded and decoded as live ones are, where that costs digits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

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
from federation.protocol.messages import Precision
from federation.records import Tensors, Tree, Update, UploadGroup
from federation.records.tree import leaves, map_tree
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
    keeps_partial_work,
    sample_cohort,
)
from federation.seeds import generator
from federation.training.client_round import steps_of
from federation.training.local_round import LocalRound, Setup
from federation.wire import uploads
from federation.wire.schema import schema_of
from sim.attacks import Attack
from sim.engines import ClientJob, Engine
from sim.engines.client_store import LazySequence, Result
from sim.experiment.options import UplinkPrecision
from sim.rounds.secure_rounds import SecureRounds
from sim.scores.diagnostics import diagnose


@dataclass(frozen=True)
class Uplink:
    """Puts the wire between the clients, which keep their residuals as devices do, and the server."""

    precision: UplinkPrecision = "lossless"

    def run(self, engine: Engine, jobs: Sequence[ClientJob], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield what `engine` makes of the jobs, with the uploads as they arrive; lossless ones arrive as they are.

        Raises:
            UpdateError: if an upload is not finite.
        """
        if self.precision == "lossless":
            yield from engine.run(jobs, round_number)
            return
        waiting: dict[str, tuple[ClientJob, Tree]] = {}

        def begun(job: ClientJob) -> ClientJob:
            """Return the job with the client as its method knows it, and remember the rest."""
            client, residual = uploads.split_residual(job.client)
            waiting[job.client_id] = job._replace(client=client), residual
            return waiting[job.client_id][0]

        for name, result in engine.run(LazySequence(jobs, begun), round_number):
            yield name, self._arrived(result, *waiting.pop(name))

    def mean_bytes(self, sent: Iterable[Tree]) -> int:
        """Return mean bytes of uploads' tensors as they travel; 0 of none."""
        sizes = [uploads.payload_bytes(schema_of(upload), self._wire) for upload in sent]
        return int(np.mean(sizes)) if sizes else 0

    def _arrived(self, result: LocalRound, job: ClientJob, residual: Tree) -> LocalRound:
        upload, delta_reference = (
            _moved(result.upload, "cpu"),
            _moved(job.setup.method.delta_reference(job.broadcast), "cpu"),
        )
        sent = uploads.encode(upload, delta_reference, _moved(residual, "cpu"), precision=self._wire)
        received = uploads.decode(sent.data, schema_of(upload), lambda: delta_reference, precision=self._wire)
        home = next((str(value.device) for value in leaves(result.upload)), "cpu")
        kept = _moved(sent.residual, home) if self.precision == "int8" else {}
        return result._replace(client=uploads.with_residual(result.client, kept), upload=_moved(received, home))

    @property
    def _wire(self) -> Precision:
        return "int8" if self.precision == "int8_without_feedback" else self.precision


def count_numbers(upload: Tree, groups: Mapping[str, UploadGroup]) -> int:
    """Count an upload's numbers as Tan et al. 2022 do (table 1): parameters, and prototypes of classes that it has.

    Rows of classes that the client lacks travel as zeros, but count for nothing; neither do the examples of each class.
    """
    counts = [upload[name] for name, group in groups.items() if group is UploadGroup.CLASS_COUNTS]
    return sum(
        _own_rows(value, counts).numel()
        if groups.get(name) in (UploadGroup.VALUE, UploadGroup.OTHER)
        else value.numel()
        for name, part in upload.items()
        if groups.get(name) is not UploadGroup.CLASS_COUNTS
        for value in leaves(part)
    )


def _own_rows(value: Tensor, counts: Sequence[Tensor]) -> Tensor:
    """Leave out the rows of classes without examples, where there is a row for each class."""
    by_class = [per_class for per_class in counts if value.shape[:1] == per_class.shape]
    return value[by_class[0] > 0] if by_class else value


def _moved(tree: Tree, device: str) -> Tree:
    moved: Tree = map_tree(lambda value: value.to(device), tree)
    return moved


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
