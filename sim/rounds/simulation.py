"""The rounds of a run: cohort, training, aggregation, evaluation, with a checkpoint that any kill leaves intact."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from federation import wire
from federation.aggregation.present_sums import KeptContributions
from federation.aggregation.screening import NormHistory, Screening
from federation.method import trains
from federation.plan import RoundSettings
from federation.privacy.accounting import epsilon_of_epochs, epsilon_of_rounds
from federation.privacy.differential_privacy import put_together, taken_apart
from federation.privacy.example_level import epochs_of
from federation.records import Client, Examples, Tensors, Tree
from federation.records.tree import flatten
from federation.rounds.progress import Progress, is_to_suspend, refused_updates
from federation.rounds.server_round import InMemoryRound, Round, RoundPhase, resting_rounds
from federation.tasks.task import Statistics, Task
from federation.training.local_round import LocalRound, Setup
from sim.attacks import Attack
from sim.data.federated_data import FederatedData
from sim.engines import ClientJob, Engine
from sim.engines.client_store import (
    Clients,
    ClientStore,
    LazyMapping,
    LazySequence,
    MemoryStore,
    Result,
    StoredClient,
    shared,
)
from sim.engines.fork_map import batched
from sim.errors import RunDirectoryError
from sim.experiment.networks import Architecture, assign_networks
from sim.rounds.checkpoint import Checkpoint
from sim.rounds.collection import CollectedRound, RoundCohort, RoundServer, Uplink, count_numbers, draw_cohort
from sim.rounds.secure_rounds import SecureRounds
from sim.scores.diagnostics import Movement, local_movement, with_local_movement
from sim.scores.evaluation import (
    UNEVALUATED,
    BestRound,
    Chosen,
    ClientModel,
    Evaluator,
    is_scored,
    plain,
    spread,
    subsample,
    total,
)


@dataclass
class Simulation:
    """A federation in one process; `run_rounds` yields one record per round."""

    networks: Sequence[Architecture]
    rounds: RoundSettings
    data: FederatedData
    engine: Engine
    evaluator: Evaluator
    straggling: float = 0.0
    eval_every: int = 1
    eval_last: int = 1
    generalization_examples: int | None = None
    uplink: Uplink = field(default_factory=Uplink)
    secure: SecureRounds | None = None  # where the server sees sums alone
    attack: Attack | None = None
    state: Tree = field(default_factory=dict)
    contributions: KeptContributions = field(default_factory=KeptContributions)  # of a `SumMethod`
    client_store: ClientStore = field(default_factory=MemoryStore)
    clients: Clients = field(default_factory=Clients)  # those that have trained
    round_number: int = 0
    progress: Progress = field(default_factory=Progress)
    refused: dict[str, int] = field(default_factory=dict)  # updates in a row, by client
    taken: dict[str, int] = field(default_factory=dict)  # published rounds that have a client's update
    sent: dict[str, int] = field(default_factory=dict)  # rounds in which a client has sent one, published or not
    resting: list[list[str]] = field(default_factory=list)  # whose updates the last published rounds have, newest last
    norms: NormHistory = field(default_factory=NormHistory)
    noise: Tensors = field(default_factory=dict)  # that the next round's leans on
    screening: Screening = field(default_factory=Screening)  # of the last round
    seconds: dict[str, float] = field(default_factory=dict)
    secure_facts: dict[str, Any] = field(default_factory=dict)  # of the last round's sum
    diagnostics: dict[str, Any] = field(default_factory=dict)  # what the last round's aggregation did
    local_moves: list[dict[str, Movement]] = field(default_factory=list)  # of each client's prototypes in that round
    on_client: Callable[[str], None] = lambda _client_id: None
    analyse: Callable[[Simulation, Mapping[str, Any]], dict[str, Any]] | None = None  # what else a round measures

    def __post_init__(self) -> None:
        """Start the server's state from the initial model."""
        self.network_of = assign_networks(self.data.clients, self.networks)
        self.state, self.best_round = self._initial_state(), BestRound(self.task)
        self.seconds = dict.fromkeys(("train", "aggregate", "evaluate"), 0.0)

    @property
    def setup(self) -> Setup:
        """What the server knows of the clients: the first network's, where there are several."""
        return self.networks[0].setup

    @property
    def task(self) -> Task:
        """What all clients learn."""
        return self.setup.task

    @property
    def initial(self) -> Client:
        """A client that has not taken part in anything, with the first network."""
        return self.networks[0].initial

    def run_rounds(self) -> Iterator[dict[str, Any]]:
        """Run the remaining rounds, and yield the line of `rounds.jsonl` after each; failed ones do not count."""
        while not self.is_over:
            self.round_number += 1
            record = self._round()
            if self.analyse is not None and record["evaluated"]:
                record["analyses"] = self.analyse(self, record)
            yield record

    @property
    def is_over(self) -> bool:
        """Whether all rounds were published, or so many have failed in a row that a server would pause."""
        return self.progress.is_finished(self.rounds) or self.progress.must_pause(self.rounds)

    def _round(self) -> dict[str, Any]:
        before = dict(self.seconds)
        cohort = draw_cohort(self.setup, self.rounds, self.straggling, self._may_take_part(), self.round_number)
        broadcasts = self.broadcasts_for(cohort.clients)
        with self.timed("train"):
            results = self._train(cohort, broadcasts)
        with self.timed("aggregate"):
            collected = self._collect(cohort, broadcasts, results)
        self._judge(collected)
        scores = self._evaluated() if self._evaluates_now() else UNEVALUATED
        return {
            "round": self.round_number,
            "cohort": list(cohort.clients),
            "train_loss": self._mean_loss(results),
            **scores,
            **self._traffic(broadcasts, results),
            "steps": dict(cohort.steps),
            "lost": list(cohort.lost),
            **_screened(self.screening),
            **({"secure": self.secure_facts} if self.secure is not None else {}),
            **self._privacy(),
            **self._outcome(collected.call.round),
            "seconds": {name: round(self.seconds[name] - before[name], 4) for name in self.seconds},
        }

    # ---- one round

    def _may_take_part(self) -> Mapping[str, int]:
        """Return the sizes of the clients that are not suspended, and need not rest."""
        sizes = self.data.train_sizes
        out = {name for name, count in self.refused.items() if is_to_suspend(self.rounds, count)}.union(*self.resting)
        return {name: size for name, size in sizes.items() if name not in out} if out else sizes

    def _judge(self, collected: CollectedRound) -> None:
        """Count the round, and whose updates it has left out or used, as a server does."""
        ended = collected.call
        self.progress = self.progress.after(ended.round.phase)
        if (rest := resting_rounds(self.rounds)) and ended.round.phase is RoundPhase.PUBLISHED:
            self.resting = [*self.resting, sorted(ended.received)][-rest:]
        for name in ended.received:
            self.sent[name] = self.sent.get(name, 0) + 1
            if ended.round.phase is RoundPhase.PUBLISHED:
                self.taken[name] = self.taken.get(name, 0) + 1
            is_refused = name in collected.refused
            if is_refused or ended.round.phase is RoundPhase.PUBLISHED:
                self.refused[name] = refused_updates(self.refused.get(name, 0), used=not is_refused)

    def broadcasts_for(self, cohort: Sequence[str]) -> dict[str, Tree]:
        """Ask for what each client gets; where that is the same for all it is one tree, which engines need not copy."""
        method = self.setup.method
        if method.traits.personal_broadcast:
            return {name: method.broadcast(self.state, name) for name in cohort}
        return dict.fromkeys(cohort, method.broadcast(self.state, ""))

    def _train(self, cohort: RoundCohort, broadcasts: Mapping[str, Tree]) -> dict[str, Result]:
        # a job is made when an engine asks for it: its client's old place is free as soon as the new one has come
        longest_first = sorted(cohort.reporting, key=lambda name: (-self.data.train_sizes[name], name))
        jobs = LazySequence(longest_first, lambda name: self.job_of(name, broadcasts[name], cohort.steps[name]))
        results: dict[str, Result] = {}
        self.local_moves = []
        for part in batched(jobs):
            for name, result in self.uplink.run(self.engine, part, self.round_number):
                if not self.setup.method.traits.requires_alp:  # whose server sets the local prototypes
                    before = self.clients.get(name, self.network_of[name].initial)
                    self.local_moves.append(local_movement(before.buffers, result.client.buffers))
                kept, results[name] = self.client_store.put(result)
                if kept is not None:
                    self.clients.stored[name] = kept
                self.best_round.outdate(name)
                self.on_client(name)
        return dict(sorted(results.items()))

    def job_of(self, name: str, broadcast: Tree, steps: int) -> ClientJob:
        network = self.network_of[name]
        client = self.clients.get(name, network.initial)
        return ClientJob(name, network.setup, client, broadcast, self.data.clients[name].train, steps)

    def _collect(
        self, cohort: RoundCohort, broadcasts: Mapping[str, Tree], results: Mapping[str, Result]
    ) -> CollectedRound:
        """Have the server make its next state of what came."""
        sizes, contributions = self.data.train_sizes, self.contributions
        server = RoundServer(self.rounds, self.setup, sizes, contributions, self.secure, self.attack)
        call = InMemoryRound.of(self.rounds, self.round_number, cohort.clients)
        begun = CollectedRound(call, self.state, self.norms, self.noise)
        found = server.collect(begun, cohort, broadcasts, results)
        self.state, self.norms, self.screening = found.state, found.norms, found.screening
        self.noise = found.noise
        self.secure_facts, self.diagnostics = found.secure_facts, found.diagnostics
        return found

    def _traffic(self, broadcasts: Mapping[str, Tree], results: Mapping[str, Result]) -> dict[str, float]:
        """Return the mean bytes and numbers of a client; with masks the bytes of all that the protocol sends."""
        down, masked = _mean_bytes(broadcasts.values()), self.secure_facts
        if "bytes_up" in masked:
            return {"bytes_up": masked["bytes_up"], "bytes_down": down + masked["bytes_down"]}
        groups = self.setup.method.upload_groups
        numbers = [count_numbers(result.upload, groups) for result in results.values()]
        return {
            "bytes_up": self.uplink.mean_bytes(result.upload for result in results.values()),
            "bytes_down": down,
            "numbers_up": float(np.mean(numbers)) if numbers else 0.0,
        }

    def _outcome(self, ended: Round) -> dict[str, Any]:
        """Say what came of a round, and why there is no other after it although some are left."""
        if ended.phase is not RoundPhase.FAILED:
            return {"diagnostics": with_local_movement(self.diagnostics, self.local_moves)}
        if not self.progress.must_pause(self.rounds):
            return {"failed": ended.reason}
        return {"failed": ended.reason, "paused": f"{self.progress.failed_in_a_row} rounds in a row have failed"}

    def _privacy(self) -> dict[str, Any]:
        """Return the ε, so far, of the client that was in most rounds, and of one of its examples; where noise is."""
        noise = self.secure.settings if self.secure is not None else self.rounds
        most, delta, training = max(self.taken.values(), default=0), self.rounds.delta, self.setup.training
        found = {}
        if noise.noise_multiplier:
            epsilon = epsilon_of_rounds(noise.noise_multiplier, most, delta, on_sums=self.secure is not None)
            found["epsilon"] = round(epsilon, 4)
        if training.example_noise_multiplier:
            # the server has each update as it came, also of a round that fails
            epochs = max(self.sent.values(), default=0) * epochs_of(self.setup.method, training)
            found["example_epsilon"] = round(epsilon_of_epochs(training.example_noise_multiplier, epochs, delta), 4)
        return {"privacy": {**found, "delta": delta, "most_rounds": most}} if found else {}

    def _mean_loss(self, results: Mapping[str, Result]) -> float | None:
        """Mean over the clients that trained, by examples; None where there are none, or nobody trains."""
        if not results or not trains(self.setup.method, self.setup.training):
            return None
        weights = [self.data.train_sizes[name] for name in results]
        return float(np.average([float(result.loss) for result in results.values()], weights=weights))

    # ---- scores

    def _evaluates_now(self) -> bool:
        is_late = self.round_number > self.rounds.rounds - self.eval_last
        return self.round_number % self.eval_every == 0 or is_late or self.is_over

    def _evaluated(self) -> dict[str, Any]:
        with self.timed("evaluate"):
            clients = self.scored_clients()
            scored = set() if self.setup.method.predicts_by_broadcast else self.best_round.statistics.keys()
            due = sorted(clients.keys() - scored)
            tests = {name: self.data.clients[name].test for name in due}
            self.best_round.statistics |= self.evaluator.evaluate_clients(self.models(due, clients), tests)
            self.best_round.validation |= self._validated(due, clients)
            served = self.global_statistics()
            validation = spread(self.task, self.best_round.validation) or spread(
                self.task, self._served(self.data.validation)
            )
        scores = {
            "evaluated": True,
            "personalization": spread(self.task, self.best_round.statistics),
            "generalization": None,
            "global": plain(self.task, total(served)) if served else None,
            "global_per_client": spread(self.task, served),
            "validation": validation,
        }
        self.best_round.update(self.round_number, scores, clients, served)
        return scores

    def scored_clients(self) -> Clients:
        """Return those that have trained, as they predict now: with what the server sends since the last round."""
        method, state = self.setup.method, self.state
        if not method.predicts_by_broadcast:
            return self.clients
        return self.clients.with_view(lambda name, client: method.refresh(client, method.broadcast(state, name)))

    def _validated(self, due: Iterable[str], clients: Clients) -> dict[str, Statistics]:
        """Statistics of clients' models on their own validation examples, of those that have any."""
        examples = {name: self.data.validation[name] for name in due if name in self.data.validation}
        return self.evaluator.evaluate_clients(self.models(examples, clients), examples)

    def global_statistics(self) -> dict[str, Statistics]:
        """Return statistics of the server's model on every client's test set; {} for methods without one."""
        return self._served(self.data.test)

    def _served(self, examples: Mapping[str, Examples]) -> dict[str, Statistics]:
        if not (self.setup.method.has_global_model and examples):
            return {}
        return self.evaluator.evaluate_per_client(ClientModel(self.setup, self.server_model()), examples)

    def server_model(self) -> Client:
        """Return a client that serves with the server's model; only for methods with one."""
        method = self.setup.method
        return method.global_model(self.initial, method.broadcast(self.state, ""))

    def generalization(self, chosen: Chosen | None = None) -> dict[str, Statistics]:
        """Return statistics of a chosen round's client models, by default the best's, on the union of test sets."""
        chosen = chosen or self.best_round.best
        with self.timed("evaluate"):
            # a model of everybody's examples is no client's
            own = [
                name
                for name in sorted(chosen.clients)
                if is_scored(self.task, self.task.metrics(chosen.statistics[name]))
            ]
            union = subsample(self.data.union_test(), self.generalization_examples, self.setup.training.seed)
            return self.evaluator.evaluate_union(self.models(own, chosen.clients), union)

    def models(self, names: Iterable[str], clients: Clients) -> Mapping[str, ClientModel]:
        """Return the models of some of the clients, each made when it is asked for."""
        return LazyMapping(names, lambda name: ClientModel(self.network_of[name].setup, clients[name]))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time a phase; what is there before it, no garbage collection looks at meanwhile.

        A full collection writes into every object, and in a fork that copies its page: some 100 MB in each process.
        """
        start = time.perf_counter()
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    # ---- resume

    def checkpoint(self) -> Checkpoint:
        """Return everything that `restore` needs."""
        progress = {**self.best_round.to_json(), "seconds": self.seconds, "norms": self.norms.to_json()}
        progress |= {"progress": self.progress, "refused": self.refused, "resting": self.resting}
        progress |= {"taken": self.taken, "sent": self.sent}
        best, validated = self.best_round.best.clients, self.best_round.validated.clients
        client_sets = {"clients": self.clients, "best": best, "validated": validated}
        kept = self.contributions.trees
        state = put_together(self.state, self.noise)
        return Checkpoint(self.round_number, state, client_sets, shared(client_sets), progress, kept)

    def restore(self, saved: Checkpoint) -> None:
        """Go on after the checkpoint's round.

        Raises:
            RunDirectoryError: if an earlier version wrote it, whose networks or methods had other tensors.
        """
        _check_whole("the server's state", saved.state, self._initial_state())
        self.round_number, self.seconds = saved.round_number, saved.progress["seconds"]
        self.norms = NormHistory.from_json(saved.progress["norms"])
        self.progress = Progress(*saved.progress["progress"])
        self.refused, self.resting = saved.progress["refused"], saved.progress["resting"]
        self.taken, self.sent = saved.progress["taken"], saved.progress["sent"]
        self.state, self.noise = taken_apart(saved.state)
        self.contributions = KeptContributions(dict(saved.contributions))
        client_sets: dict[str, Clients] = {}
        for client_set, clients in saved.client_sets.items():
            same = saved.same[client_set]
            kept = dict(self._stored(LazyMapping(sorted(clients.keys() - same.keys()), clients.__getitem__)).stored)
            kept |= {
                name: client_sets[other].stored[name] for name, other in same.items() if name in client_sets[other]
            }
            client_sets[client_set] = Clients({name: kept[name] for name in clients if name in kept})
        self.clients = client_sets["clients"]
        self.best_round = BestRound.from_json(self.task, saved.progress, client_sets["best"], client_sets["validated"])

    def _stored(self, clients: Mapping[str, Client]) -> Clients:
        """Keep clients that are read one by one."""
        found = ((name, self._kept(name, clients[name])) for name in clients)
        return Clients({name: kept for name, kept in found if kept is not None})

    def _kept(self, name: str, client: Client) -> StoredClient | None:
        like = self.network_of[name].initial
        _check_whole(f"client {name}", client._asdict(), {"params": like.params, "buffers": like.buffers})
        return self.client_store.put(LocalRound(client, {}, torch.zeros(())))[0]

    def _initial_state(self) -> Tree:
        return self.setup.method.server_init(self.initial.params, self.initial.buffers, self.setup.training)


def _check_whole(whose: str, saved: Tree, like: Tree) -> None:
    lacking = flatten(like).keys() - flatten(saved).keys()
    if lacking:
        raise RunDirectoryError(
            f"the run's checkpoint is of an earlier version: {whose} lacks {min(lacking)!r}. Networks or methods were "
            "others there (ALP layers sat on the residual stream), so that going on would mix two; choose another "
            "--out, or delete the directory to begin again"
        )


def _mean_bytes(trees: Iterable[Tree]) -> int:
    sizes = [wire.tensor_bytes(tree) for tree in trees]
    return int(np.mean(sizes)) if sizes else 0


def _screened(found: Screening) -> dict[str, Any]:
    """What a round's record says of whose weight was capped, and whose update was left out."""
    tables = {"capped": dict(found.capped), "excluded": dict(found.excluded)}
    return {name: by_client for name, by_client in tables.items() if by_client}
