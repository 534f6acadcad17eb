"""Baselines that no federation runs: a random forest or ridge regression of scikit-learn on the features of a network.

L. Breiman: Random Forests, Machine Learning 45, 2001: 200 trees, classes weighed alike, on the 183 numbers of
`har_features`, at most 12,000 windows drawn by the seed. Ridge regression on its 183 numbers and cosines, a window of a
class weighs 1 / √n_class, λ = 1e-2 of the mean of the diagonal, as in `analytic`.

`--method centralized --baseline random_forest` fits one model on everybody's windows, `--method local` one on each
client's own. There is one round, and nothing travels. A new client is served by the pooled model as it joins; alone it
fits its first windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import one_hot

import models
from federation.records import Batch, Examples, Output
from federation.rounds.server_round import RoundPhase
from federation.seeds import generator, seed_for
from federation.tasks.task import Statistics
from models.har_features import HarFeatures
from sim.data.federated_data import joined
from sim.errors import SettingsError
from sim.rounds.simulation import Simulation
from sim.scores.evaluation import Chosen, plain, spread, total

TREES, MAX_EXAMPLES, LAMBDA = 200, 12_000, 1e-2
BATCH = 512
Numbers = npt.NDArray[np.floating]
Scores = dict[str, Statistics]


class Features(NamedTuple):
    """Numbers of examples (n, D), and their classes (n,)."""

    x: Numbers
    y: npt.NDArray[np.int64]


@dataclass
class Baseline(Simulation):
    """A simulation whose one round fits models that are no networks, `baseline` by its name."""

    baseline: str = "random_forest"

    @property
    def is_pooled(self) -> bool:
        """Whether one model is fitted on everybody's examples."""
        return self.setup.method.traits.pools_data

    @cached_property
    def module(self) -> HarFeatures:
        """The network whose features are learnt from."""
        spec = self.networks[0].model
        module = models.build(spec.name, classes=self.setup.training.classes, **spec.options)
        if not isinstance(module, HarFeatures):
            raise SettingsError(f"--baseline {self.baseline}: it learns from the features of --model har_features")
        return module

    @cached_property
    def fitted(self) -> Mapping[str, Any]:
        """The models by the clients that have training examples; fitted again where a run is resumed."""
        names = self.data.train_sizes
        return {name: self.fit(self.features(self.data.clients[name].train), name) for name in names}

    @cached_property
    def tests(self) -> dict[str, Features]:
        """Features of the clients' test sets."""
        return {name: self.features(test) for name, test in self.data.test.items() if len(test.y)}

    @torch.no_grad()
    def features(self, examples: Examples) -> Features:
        """Return what is learnt from."""
        of = self.module.raw_features if self.baseline == "random_forest" else lambda x: self.module(x).features
        parts = [of(part).numpy() for part in torch.split(examples.x.cpu(), BATCH)]
        return Features(np.concatenate(parts), examples.y.cpu().numpy().astype(np.int64))

    def fit(self, features: Features, client_id: str) -> Any:
        """Fit one model, which the seed and the client decide."""
        # only here: every run would wait a second for scikit-learn
        from sklearn.dummy import DummyClassifier
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.linear_model import RidgeClassifier

        x, y = features
        if len(np.unique(y)) < 2:
            return DummyClassifier(strategy="most_frequent").fit(x, y)
        if self.baseline == "ridge":
            weight = 1 / np.sqrt(np.bincount(y))[y]
            strength = LAMBDA * float((weight[:, None] * x.astype(np.float64) ** 2).sum(0).mean())
            return RidgeClassifier(alpha=strength).fit(x.astype(np.float64), y, sample_weight=weight)
        seed = self.setup.training.seed
        rows = np.sort(generator(seed, "forest", client_id).permutation(len(y))[:MAX_EXAMPLES])
        state = seed_for(seed, "trees", client_id) % 2**32
        forest = RandomForestClassifier(TREES, class_weight="balanced", random_state=state)
        return forest.fit(x[rows], y[rows])

    def measure(self, model: Any, features: Features) -> Statistics:
        """Return statistics of a model's answers."""
        if not len(features.y):
            return self.task.no_statistics(self.setup.training.classes)
        answers = one_hot(torch.from_numpy(model.predict(features.x)), self.setup.training.classes).float()
        y = torch.from_numpy(features.y)
        output = Output(torch.from_numpy(features.x), answers, {})
        return self.task.statistics(output, Batch(output.features, y, torch.ones(len(y))))

    def _round(self) -> dict[str, Any]:
        with self.timed("train"):
            fitted = self.fitted
        with self.timed("evaluate"):
            pooled = next(iter(fitted.values())) if self.is_pooled else None
            served: Scores = {name: self.measure(pooled, test) for name, test in self.tests.items()} if pooled else {}
            own = {} if pooled else {n: self.measure(fitted[n], self.tests[n]) for n in fitted if n in self.tests}
            held = self.data.validation
            checked = {n: self.measure(pooled or fitted[n], self.features(part)) for n, part in held.items()}
        scores = {
            "evaluated": True,
            "personalization": spread(self.task, own),
            "generalization": None,
            "global": plain(self.task, total(served)) if served else None,
            "global_per_client": spread(self.task, served),
            "validation": spread(self.task, checked),
        }
        self.best_round.statistics = own
        self.best_round.update(self.round_number, scores, self.clients, served)
        self.progress = self.progress.after(RoundPhase.PUBLISHED)
        travelled = {"train_loss": None, "bytes_up": 0, "bytes_down": 0}
        seconds = {name: round(value, 4) for name, value in self.seconds.items()}
        return {"round": self.round_number, "cohort": sorted(fitted), **travelled, **scores, "seconds": seconds}

    def generalization(self, chosen: Chosen | None = None) -> Scores:
        """Return statistics of each client's model on everybody's test sets; of none where there is one for all."""
        if self.is_pooled:
            return {}
        union = self.features(joined([test for test in self.data.test.values() if len(test.y)]))
        return {name: self.measure(model, union) for name, model in self.fitted.items() if name in self.tests}
