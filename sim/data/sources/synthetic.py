"""Synthetic(φ1, φ2): every client its own logistic regression of 60 numbers to 10 classes.

Shamir, Srebro, Zhang, "Communication-efficient distributed optimization using an approximate Newton-type method", ICML
2014; as Li et al., "Federated optimization in heterogeneous networks", MLSys 2020 (arXiv 1812.06127), and Michieli and
Ozay 2021 (section S1.1) draw it. N(m, s) has the variance s:

    u_k ~ N(0, φ1),  W_k ∈ R^(10 × 60) and b_k ∈ R^10 ~ N(u_k, 1) in each element
    B_k ~ N(0, φ2),  v_k ∈ R^60 ~ N(B_k, 1) in each element,  x ~ N(v_k, Σ), Σ diagonal, Σ_jj = j^−1.2
    y = argmax softmax(W_k x + b_k)

φ1 sets how much the clients' models differ, φ2 how much their inputs. Sizes are 50 + ⌊exp N(4, 2²)⌋, the 'power law' of
Li et al.'s code, which takes φ as a standard deviation: the same for 0 and 1.

With `examples` or `deviation`, sizes follow that law under a condition. All clients' sizes are drawn again until both
are within 1 % of what was asked for, and are then scaled so that the sum is exact. Michieli and Ozay's 9,600 examples,
320 ± 1051.6 for each of 30 clients, have the size of the training part of the file that Li et al. published, where one
client has 62 %. Without the condition, seeds 0 to 39 draw 3,772 to 27,651 examples for 30 clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import TypeAdapter, ValidationError

from federation.records import Examples
from federation.seeds import generator
from gaitway.errors import did_you_mean, first_problem
from gaitway.input_spec import InputSpec
from gaitway.tasks import TargetKind
from har_pipeline import ChannelStatistics
from sim.data.federated_data import ClientData, FederatedData
from sim.data.partitions.partition import apportion, tail
from sim.data.sources.source import Progress
from sim.errors import SettingsError
from sim.experiment.settings import Experiment

DIMENSION = 60
LABELS = tuple("0123456789")
SCALE = np.arange(1, DIMENSION + 1) ** -0.6  # standard deviations: the root of Σ
TOLERANCE = 0.01  # of a condition on sizes, relative
DRAWS = 1000  # of all clients' sizes at a time; about one in 6,000 meets Michieli and Ozay's condition
MAX_BATCHES = 500
Sizes = npt.NDArray[np.int64]


class Drawn(NamedTuple):
    """One client's examples: x (n, 60) float32, y (n,) int64."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SyntheticTasks:
    """What to draw; `smallest` examples a client and a log-normal number more, `test_share` of them held out.

    `examples` is how many all clients have together, `deviation` how much their sizes deviate; None: as drawn.
    """

    phi1: float = 1.0
    phi2: float = 1.0
    clients: int = 30
    smallest: int = 50
    log_mean: float = 4.0
    log_std: float = 2.0
    examples: int | None = None
    deviation: float | None = None
    test_share: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn; raises SettingsError."""
        for name in ("phi1", "phi2", "log_std"):
            if not 0 <= getattr(self, name) <= 100:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must lie between 0 and 100")
        for name, least in (("clients", 1), ("smallest", 2)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} is {getattr(self, name)}; at least {least} are needed")
        if not 0 < self.test_share < 1:
            raise SettingsError(f"test_share is {self.test_share}; it must lie between 0 and 1")

    def conditional_sizes(self, seed: int) -> Sizes | None:
        """Return every client's examples (K,) under `examples` and `deviation`; None where neither is asked for.

        Raises:
            SettingsError: if they are too unlikely to be drawn.
        """
        if self.examples is None and self.deviation is None:
            return None
        random = generator(seed, "synthetic_sizes")
        for _ in range(MAX_BATCHES):
            more = random.lognormal(self.log_mean, self.log_std, (DRAWS, self.clients)).astype(np.int64)
            drawn = more.sum(1).clip(min=1)
            rest = drawn if self.examples is None else np.full(DRAWS, self.examples - self.smallest * self.clients)
            meets = _is_near(drawn, rest) & _is_near(more.std(1) * rest / drawn, self.deviation)
            if meets.any():
                chosen = int(np.argmax(meets))
                return self.smallest + apportion(int(rest[chosen]), more[chosen])
        raise SettingsError(
            f"no {DRAWS * MAX_BATCHES:,} draws of {self.clients} clients' sizes have examples={self.examples} and "
            f"deviation={self.deviation}; set data.examples and data.deviation to null, or change data.log_std"
        )

    def draw(self, client: int, seed: int, examples: int | None = None) -> Drawn:
        """Draw one client from its own stream, so that another client more changes nothing here.

        `examples` is how many it has; None draws that, too.
        """
        random = generator(seed, "synthetic_tasks", client)
        drawn = self.smallest + int(random.lognormal(self.log_mean, self.log_std))
        examples = drawn if examples is None else examples
        u, B = random.normal(0, np.sqrt([self.phi1, self.phi2]))
        W, b = random.normal(u, 1, (len(LABELS), DIMENSION)), random.normal(u, 1, len(LABELS))
        v = random.normal(B, 1, DIMENSION)
        x = random.normal(v, SCALE, (examples, DIMENSION))
        # softmax keeps the order, so its argmax is that of the scores
        return Drawn(x.astype(np.float32), np.argmax(x @ W.T + b, axis=1))


def synthetic_federation(
    tasks: SyntheticTasks, *, seed: int, device: str = "cpu", validation_share: float = 0.0
) -> FederatedData:
    """Draw every client, `client-007`; its last `test_share` (the draws are independent) is its test set.

    Of what is left the last `validation_share` of each class is for validation.
    """
    width = max(3, len(str(tasks.clients - 1)))
    sizes = tasks.conditional_sizes(seed)
    examples = [None] * tasks.clients if sizes is None else sizes.tolist()
    clients = {
        f"client-{k:0{width}d}": _client(tasks.draw(k, seed, size), tasks, device, validation_share)
        for k, size in enumerate(examples)
    }
    # inputs are used as they are drawn
    untouched = ChannelStatistics(1, np.zeros(DIMENSION), np.ones(DIMENSION))
    return FederatedData(LABELS, clients, dict.fromkeys(clients, untouched), split_leaks=False)


def _is_near(values: npt.NDArray[Any], wanted: float | npt.NDArray[Any] | None) -> npt.NDArray[np.bool_]:
    """Return which values (n,) are within the tolerance; all of them where nothing is wanted."""
    return np.ones(len(values), dtype=bool) if wanted is None else np.abs(values - wanted) <= TOLERANCE * wanted


def _client(drawn: Drawn, tasks: SyntheticTasks, device: str, validation_share: float) -> ClientData:
    x, y = torch.from_numpy(drawn.x).to(device), torch.from_numpy(drawn.y).to(device)
    tested = min(max(1, round(tasks.test_share * len(y))), len(y) - 1)
    held = torch.from_numpy(tail(drawn.y[:-tested], validation_share)).to(device)
    train = Examples(x[:-tested], y[:-tested])
    test = Examples(x[-tested:], y[-tested:])
    return ClientData(Examples(train.x[~held], train.y[~held]), test, Examples(train.x[held], train.y[held]))


NAME = "synthetic_logistic"


class SyntheticLogistic:
    """Generated logistic regressions; the options are the fields of SyntheticTasks."""

    targets = (TargetKind.CLASS,)

    def labels(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the ten classes."""
        return LABELS

    def number(self, options: Mapping[str, Any]) -> str:
        """Return nothing: there are classes alone."""
        return ""

    def input_spec(self, options: Mapping[str, Any], pipeline: Mapping[str, Any]) -> InputSpec:
        """Describe an input."""
        return InputSpec.vectors((0.0,) * DIMENSION, (1.0,) * DIMENSION)

    def default_partition(self, options: Mapping[str, Any]) -> str | None:
        """Return nothing: tasks are drawn client by client."""
        return None

    def load(
        self, settings: Experiment, root: Path | None, cache: Path | None, progress: Progress | None
    ) -> FederatedData:
        """Draw all clients.

        Raises:
            SettingsError: for an impossible option, or a partition, which these tasks have by nature.
        """
        if settings.partition is not None:
            raise SettingsError(f"{NAME} is generated client by client; leave out --partition, or set data.clients")
        tasks = _tasks(settings.dataset_options)
        return synthetic_federation(
            tasks, seed=settings.training.seed, device=settings.device, validation_share=settings.validation_share
        )


def _tasks(options: Mapping[str, Any]) -> SyntheticTasks:
    known = SyntheticTasks.__dataclass_fields__
    if strange := sorted(set(options) - set(known)):
        raise SettingsError(f"unknown option {strange[0]!r} for {NAME}; {did_you_mean(strange[0], known)}")
    try:
        return TypeAdapter(SyntheticTasks).validate_python(dict(options))
    except ValidationError as error:
        raise SettingsError(f"{NAME}: {first_problem(error, input_shown=True, model=SyntheticTasks)}") from error
