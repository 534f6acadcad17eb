"""The rounds of a run: cohort, training, aggregation, evaluation, with a checkpoint that any kill leaves intact."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from federation import wire
from federation.client_round import Setup, steps_of
from federation.local_round import LocalRound
from federation.plan import RoundSettings
from federation.records import Client, Tree, Update
from federation.server_round import (
    Action,
    Aggregated,
    Opened,
    Round,
    RoundPhase,
    UpdateArrived,
    discount,
    sample_cohort,
    step,
)
from sim.checkpoint import Checkpoint
from sim.data import FederatedData
from sim.engines import Engine, Job
from sim.errors import SimError
from sim.evaluation import Evaluator, Matrix, plain, spread


@dataclass
class Simulation:
    """A federation in one process; `play` yields one record per round."""

    setup: Setup
    rounds: RoundSettings
    data: FederatedData
    initial: Client
    engine: Engine
    evaluator: Evaluator
    eval_every: int = 1
    state: Tree = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)  # those that have trained
    matrices: dict[str, Matrix] = field(default_factory=dict)  # each one's confusion matrix on its own test set
    best: dict[str, Client] = field(default_factory=dict)
    best_round: int = 0
    best_score: float = -1.0
    best_record: dict[str, Any] = field(default_factory=dict)
    best_matrices: dict[str, Matrix] = field(default_factory=dict)
    round_number: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    on_client: Callable[[str], None] = lambda _client_id: None

    def __post_init__(self) -> None:
        """Start the server's state from the initial model."""
        self.state = self.setup.method.server_init(self.initial.params, self.initial.buffers, self.setup.task)
        self.seconds = {"train": 0.0, "aggregate": 0.0, "evaluate": 0.0}

    def play(self) -> Iterator[dict[str, Any]]:
        """Run the remaining rounds, and yield the line of `rounds.jsonl` after each."""
        while self.round_number < self.rounds.rounds:
            self.round_number += 1
            yield self._round()

    def _round(self) -> dict[str, Any]:
        before = dict(self.seconds)
        task = self.setup.task
        cohort = sample_cohort(self.rounds, self.data.clients, seed=task.seed, round_number=self.round_number)
        current = step(self.rounds, Round(self.round_number, cohort), Opened()).round
        with self._timed("train"):
            results = self._train(cohort)
        with self._timed("aggregate"):
            current = self._collect(current, results)
        record = self._evaluated() if self._evaluates_now() else self._unevaluated()
        sizes = {name: len(self.data.clients[name].train.y) for name in results}
        losses = [float(result.loss) for result in results.values()]
        return {
            "round": current.number,
            "cohort": list(cohort),
            "train_loss": float(np.average(losses, weights=list(sizes.values()))),
            **record,
            "bytes_up": int(np.mean([wire.tensor_bytes(result.upload) for result in results.values()])),
            "bytes_down": int(np.mean([wire.tensor_bytes(self._broadcast(name)) for name in cohort[:1]])),
            "seconds": {name: round(self.seconds[name] - before[name], 4) for name in self.seconds},
        }

    def _train(self, cohort: tuple[str, ...]) -> dict[str, LocalRound]:
        broadcasts = self._broadcasts(cohort)
        jobs = [
            Job(name, self.clients.get(name, self.initial), broadcasts[name], self.data.clients[name].train)
            for name in cohort
        ]
        results: dict[str, LocalRound] = {}
        for name, result in self.engine.run(self.setup, jobs, self.round_number):
            results[name] = result
            self.clients[name] = result.client
            self.matrices.pop(name, None)
            self.on_client(name)
        return dict(sorted(results.items()))

    def _broadcasts(self, cohort: tuple[str, ...]) -> dict[str, Tree]:
        return {name: self._broadcast(name) for name in cohort}

    def _broadcast(self, name: str) -> Tree:
        return self.setup.method.broadcast(self.state, name)

    def _collect(self, current: Round, results: dict[str, LocalRound]) -> Round:
        """Hand every update to the round machine, and aggregate when it says so."""
        for name in results:
            moved = step(self.rounds, current, UpdateArrived(name, current.number))
            current = moved.round
            if Action.AGGREGATE in moved.actions:
                break
        if current.phase is not RoundPhase.AGGREGATING:
            raise SimError(f"round {current.number} ended in phase {current.phase}: {current.reason}")
        updates = (self._update(name, results[name], late) for name, late in sorted(current.received.items()))
        self.state = self.setup.method.aggregate(self.state, updates)
        return step(self.rounds, current, Aggregated()).round

    def _update(self, name: str, result: LocalRound, late: int) -> Update:
        examples = len(self.data.clients[name].train.y)
        steps = steps_of(self.setup, examples)
        return Update(name, examples, steps, result.upload, discount(self.rounds, late))

    # ---- scores

    def _evaluates_now(self) -> bool:
        return self.round_number % self.eval_every == 0 or self.round_number == self.rounds.rounds

    def _unevaluated(self) -> dict[str, Any]:
        return {"evaluated": False, "personalization": None, "generalization": None, "global": None}

    def _evaluated(self) -> dict[str, Any]:
        with self._timed("evaluate"):
            for name in sorted(self.clients):
                if name not in self.matrices:
                    self.matrices[name] = self.evaluator.own(self.clients[name], self.data.clients[name].test)
            own = spread(self.matrices)
            record = {
                "evaluated": True,
                "personalization": own,
                "generalization": None,
                "global": self._global_scores(),
            }
        score = own["macro_f1"]["mean"]
        if score > self.best_score:
            self.best_score, self.best_round, self.best_record = score, self.round_number, record
            self.best, self.best_matrices = dict(self.clients), dict(self.matrices)
        return record

    def global_matrix(self) -> Matrix | None:
        """Confusion matrix of the server's model on the union of test sets; None for methods without one."""
        if not self.setup.method.has_global_model:
            return None
        served = self.setup.method.global_model(self.initial, self._broadcast(""))
        return self.evaluator.own(served, self.data.union_test())

    def generalization(self) -> dict[str, Matrix]:
        """Confusion matrices of the best round's client models on the union of test sets."""
        with self._timed("evaluate"):
            names = sorted(self.best)
            matrices = self.evaluator.on_union([self.best[name] for name in names], self.data.union_test())
        return dict(zip(names, matrices, strict=True))

    def _global_scores(self) -> dict[str, float] | None:
        matrix = self.global_matrix()
        return None if matrix is None else plain(matrix)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start

    # ---- resume

    def checkpoint(self) -> Checkpoint:
        """Everything that `restore` needs."""
        progress = {
            "best_round": self.best_round,
            "best_score": self.best_score,
            "best_record": self.best_record,
            "matrices": {name: matrix.tolist() for name, matrix in self.matrices.items()},
            "best_matrices": {name: matrix.tolist() for name, matrix in self.best_matrices.items()},
            "seconds": self.seconds,
        }
        return Checkpoint(self.round_number, self.state, self.clients, self.best, progress)

    def restore(self, saved: Checkpoint) -> None:
        """Go on after the checkpoint's round."""
        self.round_number, self.state = saved.round_number, saved.state
        self.clients, self.best = dict(saved.clients), dict(saved.best)
        for name in ("best_round", "best_score", "best_record", "seconds"):
            setattr(self, name, saved.progress[name])
        self.matrices = {n: np.array(m) for n, m in saved.progress["matrices"].items()}
        self.best_matrices = {n: np.array(m) for n, m in saved.progress["best_matrices"].items()}
