"""A run's round from the server's side: each device's upload, and the common initial model.

What an attacker has beside what it sees: the windows of half of the devices, and the federation's average.
Devices that work for the server, half of all, lend it their windows; each half is attacked with the other's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federation.plan import SecureSettings
from federation.privacy.discrete_gaussian import noisy_clients
from federation.records import Batch, Client, Examples, Output, SumKind, Tensors, Tree, Update
from federation.records.head import is_head
from federation.records.tree import flatten, select
from federation.secure_sums.summation import SumLayout, decoded, encoded, layout_of
from federation.seeds import generator
from federation.training.local_round import Setup
from gaitway.tasks import TargetKind
from sim.data.federated_data import FederatedData, joined
from sim.engines.serial import ClientJob, Engine
from sim.errors import AnalysisError
from sim.experiment.settings import Experiment
from sim.privacy_attacks.observation import AttackOutcome, Disguise, Seen, Setting, Vector, observe
from sim.results.run_directory import CHECKPOINT
from sim.rounds import checkpoint
from sim.run import build_simulation, resolve

At = Literal["start", "end"]
"""Which round is attacked: the run's first one, or the one that would follow its last, by the run's checkpoint."""
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""
EVALUATED_TOGETHER = 512


class Sent(NamedTuple):
    """What the server reads out of a sum: means over its members; what a method does not send is None."""

    params: Tensors | None  # changes
    prototypes: Tensor | None  # (C, D), NaN where nobody has the class
    counts: Tensor | None  # (C,) of examples, of one member
    gram: Tensor | None  # upper triangle of G
    moment: Tensor | None  # B (d, C)


@dataclass(frozen=True)
class AttackedRound:
    """Devices with their examples, the model that the server sent them, and the numbers that they send back."""

    setup: Setup
    data: FederatedData
    initial: Client  # one that has not taken part in anything
    broadcast: Tree
    engine: Engine
    layout: SumLayout
    secure: SecureSettings
    number: int
    vectors: Mapping[str, Vector]

    @property
    def seed(self) -> int:
        """The run's."""
        return self.setup.training.seed

    @cached_property
    def start(self) -> Client:
        """A device when the round begins, with what the server has sent."""
        return self.setup.method.receive(self.initial, self.broadcast)[0]

    @property
    def devices(self) -> list[str]:
        """The devices that are attacked, in the order of their names."""
        return sorted(self.vectors)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.setup.training.classes

    def shares(self, name: str) -> NDArray[np.float64]:
        """Return which share of a device's training examples is of each class (C,)."""
        return shares_of(self.data.clients[name].train.y, self.classes)

    def average_shares(self) -> NDArray[np.float64]:
        """Return the federation's average: what is guessed of a device of which nothing is known."""
        found: NDArray[np.float64] = np.mean([self.shares(name) for name in self.devices], axis=0)
        return found

    def disguise(self, setting: Setting) -> Disguise | None:
        """Return what devices do to what they send."""
        return Disguise.of(setting, self.vectors, self.hidden, self.noisy)

    @property
    def noisy(self) -> int:
        """How many devices add their noise for certain."""
        return noisy_clients(self.secure, len(self.vectors))

    def seen(self, setting: Setting) -> dict[str, Seen]:
        """Return what the server has of each device."""
        return observe(self.vectors, setting, self.disguise(setting), self.seed)

    def sent(self, seen: Seen) -> Sent:
        """Read a sum."""
        tree, members = decoded(self.layout, np.rint(seen.total).astype(np.int64)), len(seen.members)
        weight = float(tree["weight"]) if "weight" in tree else float(members)
        params = {name: value / max(weight, 1) for name, value in tree["params"].items()} if "params" in tree else None
        prototypes = counts = None
        if "prototypes" in tree and "counts" in tree:
            total = tree["counts"].double()
            prototypes = torch.where(total[:, None] > 0, tree["prototypes"] / total.clamp(min=1)[:, None], torch.nan)
            counts = total / members
        means = {name: tree[name].double() / members if name in tree else None for name in ("gram", "moment")}
        return Sent(params, prototypes, counts, means["gram"], means["moment"])

    def others(self, name: str) -> Sent:
        """Read the sum of all devices but one."""
        rest = [self.vectors[other] for other in self.devices if other != name]
        return self.sent(Seen(np.sum(rest, axis=0), tuple(other for other in self.devices if other != name)))

    def model(self, sent: Sent) -> Client:
        """Return the model of a sum's members: the server's with their mean change."""
        changes, start = sent.params or {}, self.start.params
        moved = {name: value + changes[name].to(value.dtype) for name, value in start.items() if name in changes}
        return self.start._replace(params={**self.start.params, **moved})

    def train(self, examples: Mapping[str, Examples], progress: Progress) -> dict[str, Vector]:
        """Return what devices with these examples send of this round, whether there are such devices or not."""
        jobs = [ClientJob(name, self.setup, self.initial, self.broadcast, own, None) for name, own in examples.items()]
        found: dict[str, Vector] = {}
        for done, (name, result) in enumerate(self.engine.run(jobs, self.number)):
            progress(f"device {name} trains as in round {self.number}", done, len(jobs))
            if broken := not_finite(result.upload):
                raise AnalysisError(
                    f"{name} trains round {self.number} to numbers that are not finite ({broken}); there is nothing to "
                    "attack in a round that diverges: lower the run's learning rate"
                )
            update = Update(name, len(examples[name].y), 0, result.upload)
            found[name] = encoded(self.setup.method, self.layout, update, self.broadcast, self.secure).astype(float)
        return dict(sorted(found.items()))

    @torch.no_grad()
    def output(self, client: Client, x: Tensor) -> Output:
        """Return features (n, D) and logits (n, C) of examples as the data have them."""
        parts = [
            self.setup.network.evaluate(client.params, client.buffers, batch, torch.ones(len(batch)))
            for batch in torch.split(self.setup.inputs(x), EVALUATED_TOGETHER)
        ]
        return Output(torch.cat([part.features for part in parts]), torch.cat([part.logits for part in parts]), {})

    def losses(self, client: Client, examples: Examples) -> NDArray[np.float64]:
        """Return the loss of each example (n,)."""
        batch = Batch(examples.x, examples.y, torch.ones(len(examples.y)))
        found: NDArray[np.float64] = self.setup.task.loss(self.output(client, examples.x), batch).double().numpy()
        return found

    @cached_property
    def hidden(self) -> NDArray[np.bool_]:
        """Return which numbers get noise: all but how many examples or devices there are."""
        counts = {name for name, kind in self.setup.method.sum_groups.items() if kind is SumKind.COUNT}
        is_count = [not segment.shape and segment.name.split("/")[0] in counts for segment in self.layout.segments]
        return ~np.repeat(is_count, [math.prod(segment.shape) for segment in self.layout.segments])


def not_finite(tree: Tree) -> str:
    """Return the name of the first tensor that has a NaN or an infinity; empty where there is none."""
    flat = {name: value for name, value in flatten(tree).items() if value.is_floating_point()}
    return next((name for name, value in flat.items() if not bool(torch.isfinite(value).all())), "")


def shares_of(y: Tensor, classes: int) -> NDArray[np.float64]:
    """Return which share of some examples is of each class (C,)."""
    counts: NDArray[np.float64] = torch.bincount(y.flatten().long(), minlength=classes).double().numpy()
    return counts / max(1.0, float(counts.sum()))


def attacked_round(
    settings: Experiment,
    data: FederatedData,
    run: Path | None,
    at: At,
    devices: int,
    progress: Progress,
) -> AttackedRound:
    """Let up to so many devices train a round of a run, each with its own examples.

    Raises:
        AnalysisError: if the examples have no classes, devices have several networks, or the run left no state or one
            that is not finite.
    """
    plan = resolve(settings)
    networks, setup = plan.networks, plan.networks[0].setup
    if setup.task.target is not TargetKind.CLASS or setup.method.traits.pools_data or len(networks) > 1:
        raise AnalysisError(
            f"attacks need devices with one network that learn one class per example; this is {setup.method.name} "
            f"for {setup.task.name} with {len(networks)} networks"
        )
    simulation = build_simulation(plan, data)
    if at == "end":
        saved = checkpoint.load(run / CHECKPOINT, "cpu") if run else None
        if saved is None:
            raise AnalysisError(f"there is no state of a last round ({CHECKPOINT}); attack the first with --at start")
        simulation.restore(saved)
    if broken := not_finite(simulation.state):
        where = f"{run / CHECKPOINT}, round {simulation.round_number}" if run and at == "end" else "the first round"
        raise AnalysisError(
            f"the model that is to be attacked has numbers that are not finite ({broken}; {where}): the run has "
            "diverged; run it again with a lower learning rate, or attack its first round: --at start"
        )
    names = sorted(data.train_sizes)
    draw = generator(settings.training.seed, "attacked devices")
    chosen = sorted(draw.choice(names, min(devices, len(names)), replace=False).tolist())
    made = AttackedRound(
        simulation.setup,
        simulation.data,
        simulation.initial,
        simulation.broadcasts_for(chosen)[chosen[0]],
        simulation.engine,
        layout_of(setup.method, setup.training, simulation.initial, settings.secure),
        settings.secure,
        simulation.round_number + 1,
        {},
    )
    trained = made.train({name: data.clients[name].train for name in chosen}, progress)
    return replace(made, vectors=trained)


Shares = NDArray[np.float64]
"""Which share of a device's examples is of each class (C,)."""

AUXILIARY = 120
"""Of the attacker's own windows so many are looked at."""
SCORE = "the share of a device's windows whose class is counted right: Σ_c min(guessed share, true share)"
CHANCE = "the mean of all devices' shares, guessed of every device"


def overlap(guessed: Shares, true: Shares) -> float:
    """Return Σ_c min(ŝ_c, s_c): 1 less the total variation."""
    return float(np.minimum(guessed, true).sum())


def halves(attacked: AttackedRound) -> list[tuple[list[str], list[str]]]:
    """Return (attacked devices, devices that work for the server) twice, each half in turn."""
    names = attacked.devices
    order = [names[at] for at in generator(attacked.seed, "halves of an attack").permutation(len(names))]
    middle = len(order) // 2
    parts = sorted(order[:middle]), sorted(order[middle:])
    return [(parts[0], parts[1]), (parts[1], parts[0])]


def auxiliary(attacked: AttackedRound, names: Sequence[str], count: int = AUXILIARY) -> Examples:
    """Return some of these devices' training windows, drawn at random."""
    pool = joined([attacked.data.clients[name].train for name in names])
    rows = generator(attacked.seed, "windows of the attacker", *names).permutation(len(pool.y))[:count]
    return Examples(pool.x[rows], pool.y[rows])


def as_shares(counts: Shares, average: Shares) -> Shares:
    """Return counts (C,) as shares; without a count above 0 the average."""
    positive = np.maximum(counts, 0.0)
    return positive / positive.sum() if positive.sum() > 0 else average


def judged(guessed: Mapping[str, Shares], true: Mapping[str, Shares]) -> AttackOutcome:
    """Hold guessed shares of devices against the true ones."""
    average: Shares = np.mean(list(true.values()), axis=0)
    scores = {name: overlap(guessed[name], shares) for name, shares in true.items()}
    return AttackOutcome(scores, {name: overlap(average, shares) for name, shares in true.items()})


def last_layer(params: Tensors) -> Tensors:
    """Return weight (C, h) and bias (C,) of the last layer, as far as they are there."""
    head = select(params, is_head)
    return dict(list(head.items())[-2:])
