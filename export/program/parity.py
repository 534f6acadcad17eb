"""What a program must show before its file appears: whole local rounds that end where torch's do.

One step tells too little: where two of its inputs share memory, a graph can be right for one and wrong for a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from export.program.errors import ProgramError
from export.program.exporter import EVALUATION_BATCH, Federation
from export.program.host import DeviceExamples, DeviceRound, Identity, RoundOutcome, measure, train
from export.program.runtime import Arrays, Program
from export.program.tracing import as_dicts
from federation.records import Client, Examples, Update
from federation.tasks.task import arrays
from federation.training.client_round import train_one, train_stacked
from federation.training.local_round import LocalRound
from federation.training.prediction import measure as measure_with_torch
from federation.tree import flatten

ROUNDING_FACTOR = 10.0
"""How many times as far as torch from itself a program may end from torch."""
MAX_STEPS = 8
"""Of a gate's round."""
ONE_BIT = 2.0**-23
DEVICE = "parity"


class RoundParity(NamedTuple):
    """Largest differences of a client and an upload after a round, and the scores of both models on its examples."""

    difference: float
    rounding: float
    """Of torch from torch: stacked, and on examples that are moved by their last bit."""
    scores: Mapping[str, float]
    torch_scores: Mapping[str, float]
    steps: int


class PairedRound(NamedTuple):
    """The same round by both."""

    ours: RoundOutcome
    torch: LocalRound


def generated_examples(federation: Federation, count: int, seed: int = 0) -> Examples:
    """Return examples of the network's input, noise with the target in its mean: enough for a round to learn from."""
    random, setup = np.random.default_rng(seed), federation.setup
    y = random.integers(0, setup.training.classes, count)
    shift = random.normal(size=(setup.training.classes, *federation.x))[y]
    x = torch.from_numpy((random.normal(size=(count, *federation.x)) + 0.5 * shift).astype(np.float32))
    numbers = setup.task.target.value == "number"
    return Examples(x, torch.from_numpy(random.normal(size=count) if numbers else y))


def after_one_round(federation: Federation, examples: Examples, max_steps: int | None = MAX_STEPS) -> Federation:
    """Return a federation whose server has aggregated a round of one client: prototypes and variates are not zero."""
    setup, method = federation.setup, federation.setup.method
    state = method.server_init(federation.initial.params, federation.initial.buffers, setup.training)
    broadcast = method.broadcast(state, DEVICE)
    result = train_one(
        setup, federation.initial, broadcast, examples, client_id=DEVICE, round_number=1, max_steps=max_steps
    )
    state = method.aggregate(state, [Update(DEVICE, len(examples.y), 1, result.upload)])
    return federation._replace(broadcast=method.broadcast(state, DEVICE))


def run_both(
    federation: Federation,
    program: Program,
    examples: Examples,
    *,
    client: Client | None = None,
    round_number: int = 2,
    max_steps: int | None = None,
) -> PairedRound:
    """Run one client's round with torch and with the program, from a new client or the one given."""
    start = federation.initial if client is None else client
    theirs = train_one(
        federation.setup,
        start,
        federation.broadcast,
        examples,
        client_id=DEVICE,
        round_number=round_number,
        max_steps=max_steps,
    )
    device_round = DeviceRound(
        program,
        {} if client is None else as_arrays({"client": client}),
        as_arrays({"broadcast": federation.broadcast}),
        DeviceExamples(examples.x.numpy(), examples.y.numpy()),
        Identity(DEVICE, round_number),
        max_steps=max_steps,
    )
    return PairedRound(train(device_round), theirs)


def compare_round(
    federation: Federation, program: Program, examples: Examples, max_steps: int | None = None
) -> RoundParity:
    """Run a round of a new client with both, and with torch twice more for what rounding alone does."""
    setup, identity = federation.setup, {"round_number": 2}
    pair = run_both(federation, program, examples, max_steps=max_steps)
    moved = examples._replace(x=examples.x * (1 + ONE_BIT))
    again = train_one(
        setup, federation.initial, federation.broadcast, moved, client_id=DEVICE, max_steps=max_steps, **identity
    )
    (stacked,) = train_stacked(
        setup,
        [federation.initial],
        [federation.broadcast],
        [examples],
        client_ids=[DEVICE],
        max_steps=[max_steps],
        **identity,
    )
    theirs = outcome_arrays(pair.torch)
    rounding = max(largest_difference(theirs, outcome_arrays(other)) for other in (again, stacked))
    scores = setup.task.scores(measure(program, pair.ours.client, _device_examples(examples)))
    found = measure_with_torch(setup, pair.torch.client, examples, EVALUATION_BATCH)
    return RoundParity(
        largest_difference(theirs, pair.ours.client | pair.ours.upload),
        rounding,
        scores,
        setup.task.scores(arrays(found)),
        pair.ours.steps,
    )


def check_round(federation: Federation, program: Program, examples: Examples) -> RoundParity:
    """Hold a program against torch for a second round of at most `MAX_STEPS` steps.

    Raises:
        ProgramError: if it ends further from torch than rounding explains, or with another score.
    """
    parity = compare_round(after_one_round(federation, examples), program, examples, MAX_STEPS)
    # written so that a NaN fails
    if not parity.difference <= ROUNDING_FACTOR * parity.rounding:
        raise ProgramError(
            f"after {parity.steps} steps the program's tensors differ from torch's by {parity.difference:.1e}; "
            f"rounding alone makes {parity.rounding:.1e}, and ten times that is allowed"
        )
    primary, task = federation.setup.task.primary_metric, federation.setup.task
    ours, theirs = parity.scores[primary], parity.torch_scores[primary]
    if not abs(ours - theirs) <= task.max_score_loss:
        raise ProgramError(
            f"after {parity.steps} steps the program's {primary} is {ours:.4f}, and torch's {theirs:.4f}"
        )
    return parity


def largest_difference(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> float:
    """Return the largest absolute difference of arrays of the same names."""
    if set(one) != set(other):
        raise ProgramError(f"names differ: {sorted(set(one) ^ set(other))[:4]}")
    gaps = [float(np.abs(one[name].astype(np.float64) - other[name]).max()) for name in one if one[name].size]
    return max(gaps, default=0.0)


def outcome_arrays(result: LocalRound) -> Arrays:
    """Return what torch's round leaves, by a program's paths."""
    return as_arrays({"client": result.client, "upload": result.upload})


def as_arrays(tree: Any) -> Arrays:
    """Return a tree's tensors as arrays by their paths."""
    return {name: value.detach().numpy() for name, value in flatten(as_dicts(tree)).items()}


def _device_examples(examples: Examples) -> DeviceExamples:
    return DeviceExamples(examples.x.numpy(), examples.y.numpy())
