"""New users: how a finished federation serves clients that took no part in it, however they carry their phones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

import models
from federation.aggregation.ridge_numpy import FAR, FeatureMoments, FixedSums, feature_moments
from federation.method import SumMethod, sum_method_of
from federation.methods.fedavg import FedAvg
from federation.records import Broadcast, Client
from federation.rounds.serving import SHARED_HEAD, head_without_labels
from federation.tasks.task import Statistics, Task
from federation.training.prediction import answer
from federation.training.window_changes import lacks_gyroscope
from models.har_features import gravity_columns, mean_gravity
from sim.data.federated_data import ClientData
from sim.data.other_phones import can_be_changed, raw_windows, ways_to_carry, with_phone, worse_sensors
from sim.data.selection import OTHERWISE_SHOTS, SHOTS, few_shot
from sim.engines import ClientJob
from sim.experiment.networks import Architecture, assign_networks
from sim.experiment.options import Holdout
from sim.rounds.baselines import Baseline
from sim.rounds.simulation import Simulation
from sim.scores.adaptation import adapt_head
from sim.scores.evaluation import ClientModel, plain, spread, total

AS_RECORDED = "as_recorded"
Scores = dict[str, Statistics]
"""Of each client, by the name of the head that it served with, or SERVED or COLLECTED."""
SERVED, COLLECTED = "", "collected"
"""What a device serves with as it joins, and once it has collected its training windows, of which none has a label."""


def score_new_clients(simulation: Simulation, holdout: Holdout, by_own_statistics: bool = False) -> dict[str, Any]:
    """Score the new clients' test sets: without personalization, and after a local round on the first k of each class.

    Without: with the server's model, or, in a method that has none, with what a new client starts from. For the latter
    `client_models` says how the clients' own models do, each new client's mean over them. Scored are the same examples
    whatever k is, of recordings the last in time, of which no window shares a sample with those that are learnt from.

    Windows of motion sensors are scored again as of phones that are carried otherwise, and of phones that measure worse
    where `holdout` says so (`sim.data.other_phones`): `turned`.
    `by_own_statistics`: each client's windows are normalized by its own. Where a method gives a device several heads,
    `heads` has the scores of each, and `far` the share of clients that take the one without axes as they join;
    `own_windows` are the scores of what they serve with once they have the training windows, without their labels, and
    `adapted` is the share whose head these change. The test windows are in none of it.
    """
    data = simulation.data
    scorer = (_BaselineScorer if isinstance(simulation, Baseline) else _Scorer)(simulation, holdout)
    ways = {AS_RECORDED: [data.new_clients]}
    if can_be_changed(data):
        seed = simulation.setup.training.seed
        worse = worse_sensors(data.new_clients, seed) if holdout.worse_sensors else {}
        for way, changes in {**ways_to_carry(data.new_clients, seed), **worse}.items():
            ways[way] = [
                {
                    name: with_phone(client, change[name], data.new_statistics[name], by_own_statistics)
                    for name, client in data.new_clients.items()
                }
                for change in changes
            ]
    found = {way: scorer.scores(way, carried) for way, carried in ways.items()}
    taken = {way: {k: heads.get(SERVED) for k, heads in by_shots.items()} for way, by_shots in found.items()}
    collected = {way: by_shots["0"][COLLECTED] for way, by_shots in found.items() if COLLECTED in by_shots["0"]}
    heads = {
        way: {
            k: {name: head for name, head in heads.items() if name not in (SERVED, COLLECTED)}
            for k, heads in by_shots.items()
        }
        for way, by_shots in found.items()
    }
    return {
        "clients": sorted(data.new_clients),
        "epochs": holdout.epochs,
        "shots": taken.pop(AS_RECORDED),
        "together": scorer.together,
        "unlabelled": scorer.unlabelled(),
        "client_models": None if simulation.setup.method.has_global_model else _by_clients(simulation),
        "turned": taken,
        "heads": heads if any(by_head for by_shots in heads.values() for by_head in by_shots.values()) else {},
        "far": {way: float(np.mean(flags)) for way, flags in scorer.far.items()},
        "own_windows": collected,
        "adapted": {way: float(np.mean(flags)) for way, flags in scorer.adapted.items()},
    }


@dataclass(frozen=True)
class _Scorer:
    """Personalizes new clients, and scores what they serve with."""

    simulation: Simulation
    holdout: Holdout
    far: dict[str, list[bool]] = field(default_factory=dict)
    """Of each way to carry a phone, whether gravity lies far from what is usual, of each client."""
    together: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """By k, the scores of all windows of all clients as one test set, as cross-validations by subject have them."""
    adapted: dict[str, list[bool]] = field(default_factory=dict)
    """Of each way, whether a client's own windows without labels change what it serves with."""

    def scores(self, way: str, carried: list[Mapping[str, ClientData]]) -> dict[str, dict[str, Any]]:
        """Return by k, and by head, the mean and deviation over clients, and over the times that they are turned."""
        result = {}
        for shots in SHOTS if way == AS_RECORDED else OTHERWISE_SHOTS:
            by_head: dict[str, dict[str, Statistics]] = {}
            for number, clients in enumerate(carried):
                served = self._personalized(clients, shots) if shots else self._not_personalized(clients)
                for name, client in clients.items():
                    for head, statistics in self._client(way, name, client, served[name], shots).items():
                        by_head.setdefault(head, {})[f"{name} {number}"] = statistics
            result[str(shots)] = {head: spread(self.simulation.task, by_client) for head, by_client in by_head.items()}
            if way == AS_RECORDED and SERVED in by_head:
                self.together[str(shots)] = plain(self.simulation.task, total(by_head[SERVED]))
        return result

    def _client(self, way: str, name: str, client: ClientData, served: Client, shots: int) -> Scores:
        setup, broadcast = self._networks[name].setup, self._broadcast(name, client)
        if (method := sum_method_of(setup.method)) is None:
            return {SERVED: self._measured(ClientModel(setup, served), client)}
        heads = method.serving_models(served if shots else method.refresh(served, broadcast))
        plain = replace(setup, method=FedAvg())  # each head is a network that predicts by itself
        names = heads if shots else [head for head in heads if head.startswith(SHARED_HEAD)]
        scores = {head: self._measured(ClientModel(plain, heads[head]), client) for head in names}
        if shots:
            return {SERVED: self._measured(ClientModel(setup, served), client), **scores}
        is_far = self._is_far(name, client)
        self.far.setdefault(way, []).append(is_far)
        joined = scores[head_without_labels(names, is_far)]
        adapted = self._adapted(method, name, heads[SHARED_HEAD], client, is_far)
        self.adapted.setdefault(way, []).append(adapted is not None)
        collected = joined if adapted is None else self._measured(ClientModel(plain, adapted), client)
        return {SERVED: joined, COLLECTED: collected, **scores}

    def _adapted(self, method: SumMethod, name: str, served: Client, client: ClientData, is_far: bool) -> Client | None:
        setup, x = self._networks[name].setup, client.train.x
        parts = [answer(setup, served, part).features for part in torch.split(x, self.simulation.evaluator.batch)]
        return method.adapted_model(served, self._broadcast(name, client), torch.cat(parts), is_far=is_far)

    def unlabelled(self) -> dict[str, Any] | None:
        """Score models that have adapted to the new clients' training windows without a label of them."""
        found: dict[str, Statistics] = {}
        for name, client in self.simulation.data.new_clients.items():
            network = self._networks[name]
            served = _served(network, self._broadcast(name, client))
            adapted = adapt_head(ClientModel(network.setup, served), client.train.x, self.simulation.evaluator.batch)
            if adapted is None:
                return None
            found[name] = self._measured(adapted, client)
        return spread(self.simulation.task, found)

    def _measured(self, model: ClientModel, client: ClientData) -> Statistics:
        return self.simulation.evaluator.evaluate_client(model, client.test)

    def _broadcast(self, name: str, client: ClientData) -> Broadcast:
        network, was = self._networks[name], self.simulation.data.new_statistics.get(name)
        method = network.setup.method
        found = method.broadcast(self.simulation.state, name)
        sums = sum_method_of(method)
        if sums is None or was is None or not lacks_gyroscope(raw_windows(client.train, was)):
            return found
        return sums.without_sensor(network.initial, found)

    def _not_personalized(self, clients: Mapping[str, ClientData]) -> Mapping[str, Client]:
        return {name: _served(self._networks[name], self._broadcast(name, clients[name])) for name in clients}

    def _personalized(self, clients: Mapping[str, ClientData], shots: int) -> Mapping[str, Client]:
        """Have the run's engine train all of them on the first `shots` of each class, as in one more round."""
        # the schedule of rates is the federation's, which is over
        changed = {"epochs": self.holdout.epochs, "lr_schedule": "constant"}
        jobs = []
        for name, client in clients.items():
            setup, initial = self._networks[name].setup, self._networks[name].initial
            setup = replace(setup, training=setup.training.model_copy(update=changed))
            shown = few_shot(setup.task, client, shots)
            jobs.append(ClientJob(name, setup, initial, self._broadcast(name, client), shown))
        results = self.simulation.engine.run(jobs, self.simulation.round_number + 1)
        return {name: result.client for name, result in results}

    @cached_property
    def _networks(self) -> dict[str, Architecture]:
        return assign_networks(self.simulation.data.new_clients, self.simulation.networks)

    @cached_property
    def _module(self) -> nn.Module:
        spec, classes = self.simulation.networks[0].model, self.simulation.setup.training.classes
        return models.build(spec.name, classes=classes, **spec.options)

    @cached_property
    def _usual_gravity(self) -> FeatureMoments | None:
        columns, sums = gravity_columns(self._module), self.simulation.state.get("sums")
        return feature_moments(FixedSums.of(sums), columns) if columns and sums else None

    def _is_far(self, name: str, client: ClientData) -> bool:
        was, usual = self.simulation.data.new_statistics.get(name), self._usual_gravity
        if was is None or usual is None or client.train.x.dim() != 3 or not len(client.train.x):
            return False
        return usual.distance(mean_gravity(self._module, raw_windows(client.train, was)).numpy()) > FAR


class _BaselineScorer(_Scorer):
    """Serves new clients with the pooled model, or fits one on the examples that each shows."""

    def unlabelled(self) -> None:
        """Return None: a forest and a ridge regression have no head that could adapt."""

    def _not_personalized(self, clients: Mapping[str, ClientData]) -> Mapping[str, Client]:
        return dict.fromkeys(clients, self.simulation.initial)

    def _personalized(self, clients: Mapping[str, ClientData], shots: int) -> Mapping[str, Client]:
        return self._not_personalized(clients)

    def _client(self, way: str, name: str, client: ClientData, served: Client, shots: int) -> Scores:
        simulation = self.simulation
        if not isinstance(simulation, Baseline) or simulation.is_pooled == bool(shots):
            return {}
        model = next(iter(simulation.fitted.values())) if simulation.is_pooled else None
        shown = model or simulation.fit(simulation.features(few_shot(simulation.task, client, shots)), name)
        return {SERVED: simulation.measure(shown, simulation.features(client.test))}


def _served(network: Architecture, broadcast: Mapping[str, Any]) -> Client:
    method = network.setup.method
    if method.has_global_model:
        return method.global_model(network.initial, broadcast)
    return method.receive(network.initial, broadcast)[0]


def _by_clients(simulation: Simulation) -> dict[str, Any] | None:
    """Mean and deviation over new clients of each one's mean score under all clients' models."""
    tests = {name: client.test for name, client in simulation.data.new_clients.items() if len(client.test.y)}
    served = simulation.models(simulation.clients, simulation.scored_clients())
    if not tests or not served:
        return None
    task = simulation.task
    means = [_mean_scores(task, simulation.evaluator.evaluate_union(served, test)) for test in tests.values()]
    return {
        name: {"mean": float(np.mean([mean[name] for mean in means])), "std": float(np.std([m[name] for m in means]))}
        for name in task.metric_kinds
    }


def _mean_scores(task: Task, clients: Mapping[str, Statistics]) -> dict[str, float]:
    scores = [task.metrics(statistics) for statistics in clients.values()]
    return {name: float(np.mean([score[name] for score in scores])) for name in task.metric_kinds}
