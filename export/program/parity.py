"""The gate that a program must pass before its file is written: whole local rounds that match torch's.

One step tells too little: where two of its inputs share memory, a graph can be right for one and wrong for a round.
"""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor

from export.program.exporter import EVALUATION_BATCH, Federation, export_program, federation_of, module_of
from export.program.host import DeviceExamples, ProgramRound, RoundIdentity, RoundOutcome, measure, served_by, train
from export.program.runtime import Arrays, TrainingProgram
from export.program.tracing import as_dicts
from export.runtime import ProgramError
from federation.plan.plan import read_plan
from federation.records import Client, Examples, Update
from federation.records.tree import flatten, map_tree
from federation.tasks.task import arrays
from federation.training.client_round import train_one, train_stacked
from federation.training.local_round import LocalRound
from federation.training.prediction import measure as measure_with_torch
from gaitway.files import write_file
from models.layers.alp import ALP, set_inference

ROUNDING_FACTOR = 10.0
"""How many times as far as torch from itself a program may end from torch."""
MAX_LOGIT_DELTA = 1e-4
SERVED_EXAMPLES = 8
"""On which the model that a device serves with is held against torch's."""
MAX_STEPS = 8
"""Of a gate's round."""
ONE_BIT = 2.0**-23
DRAWS = 3
"""Of numbers that are moved by their last bit: one alone may miss what rounding does."""
OTHER_ROUNDS = (3, 4)
"""Held against torch where the second one may have met a tie: other orders and dropout."""
DEVICE = "parity"


class RoundParity(NamedTuple):
    """Differences of a client and an upload after a round, and the scores of both models on its examples."""

    difference: float
    """The largest from torch."""
    rounding: float
    """The largest of torch from torch: stacked, and from parameters and examples that are moved by their last bit."""
    ratio: float
    """The largest of any tensor's, the former by the latter; what Adam makes of no gradient hides no other tensor."""
    scores: Mapping[str, float]
    torch_scores: Mapping[str, float]
    steps: int
    serving: float = 0.0
    """The largest difference of a logit of the graph `model` from torch's network with the round's numbers."""


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
    program: TrainingProgram,
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
    device_round = ProgramRound(
        program,
        {} if client is None else as_arrays({"client": client}),
        as_arrays({"broadcast": federation.broadcast}),
        DeviceExamples(examples.x.numpy(), examples.y.numpy(), federation.setup.channels),
        RoundIdentity(DEVICE, round_number, max_steps),
    )
    return PairedRound(train(device_round), theirs)


def compare_round(
    federation: Federation,
    program: TrainingProgram,
    examples: Examples,
    max_steps: int | None = None,
    round_number: int = 2,
) -> RoundParity:
    """Run a round of a new client with both, and with torch more often for what rounding alone does."""
    setup = federation.setup
    pair = run_both(federation, program, examples, round_number=round_number, max_steps=max_steps)
    theirs = outcome_arrays(pair.torch)
    (stacked,) = train_stacked(
        setup,
        [federation.initial],
        [federation.broadcast],
        [examples],
        client_ids=[DEVICE],
        round_number=round_number,
        max_steps=[max_steps],
    )
    others = [stacked, *(_moved_round(federation, examples, max_steps, round_number, seed) for seed in range(DRAWS))]
    apart = differences(theirs, pair.ours.client | pair.ours.upload)
    itself = [differences(theirs, outcome_arrays(other)) for other in others]
    rounding = {name: max(difference[name] for difference in itself) for name in apart}
    bits = {name: ONE_BIT * max(1.0, float(np.abs(value).max(initial=0))) for name, value in theirs.items()}
    scores = setup.task.scores(measure(program, pair.ours.client, _device_examples(examples)))
    found = measure_with_torch(setup, pair.torch.client, examples, EVALUATION_BATCH)
    return RoundParity(
        max(apart.values()),
        max(rounding.values()),
        max(apart[name] / (rounding[name] + bits[name]) for name in apart),
        scores,
        setup.task.scores(arrays(found)),
        pair.ours.steps,
        serving_difference(federation, program, pair.ours.client, examples.x[:SERVED_EXAMPLES]),
    )


def serving_difference(federation: Federation, program: TrainingProgram, client: Arrays, x: Tensor) -> float:
    """Hold the graph `model` against torch, on what a client serves with; 0 where devices have no use for it."""
    if not program.manifest.served:
        return 0.0
    module = module_of(federation)
    set_inference(module, "row")
    served = served_by(program, client)
    kept = {name.split("/", 2)[2]: torch.from_numpy(value.copy()) for name, value in served.items()}
    module.load_state_dict({**module.state_dict(), **kept})
    module.eval()
    with torch.no_grad():
        expected = module(x)[1].numpy()
    kinds = program.manifest.graphs["model"].inputs
    plain = {"input/mean": np.zeros, "input/std": np.ones}
    values = served | {name: make(kinds[name].shape, np.float32) for name, make in plain.items()}
    found = [program.run("model", values | {"x": example.numpy()[None]})["logits"] for example in x]
    return float(np.abs(np.concatenate(found) - expected).max())


def _moved_round(
    federation: Federation, examples: Examples, max_steps: int | None, round_number: int, seed: int
) -> LocalRound:
    """Run torch's round from parameters and examples of which each number is moved by its last bit, or not."""
    random = torch.Generator().manual_seed(seed)

    def moved(value: Tensor) -> Tensor:
        if value.dtype != torch.float32:
            return value
        return value * (1 + ONE_BIT * torch.randint(-1, 2, value.shape, generator=random))

    broadcast = {**federation.broadcast, **map_tree(moved, {"params": federation.broadcast.get("params", {})})}
    client = federation.initial._replace(params=map_tree(moved, federation.initial.params))
    near = examples._replace(x=moved(examples.x))
    return train_one(
        federation.setup, client, broadcast, near, client_id=DEVICE, round_number=round_number, max_steps=max_steps
    )


def check_round(federation: Federation, program: TrainingProgram, examples: Examples) -> RoundParity:
    """Hold a program against torch for a second round of at most `MAX_STEPS` steps.

    ALP layers choose: of two prototypes whose scores are equal up to rounding, either may get a token, and a gradient
    that this moves across 0 moves a parameter by two of Adam's steps. A round that ends too far by such a choice says
    nothing, so two others are held against torch, and both must end near; a program that is wrong is wrong in each.

    Raises:
        ProgramError: if it ends further from torch than rounding explains, or with another score.
    """
    after = after_one_round(federation, examples)
    parity = compare_round(after, program, examples, MAX_STEPS)
    if not parity.ratio <= ROUNDING_FACTOR and any(
        isinstance(module, ALP) for module in module_of(federation).modules()
    ):
        others = [compare_round(after, program, examples, MAX_STEPS, number) for number in OTHER_ROUNDS]
        parity = max(others, key=lambda module: math.inf if math.isnan(module.ratio) else module.ratio)
    # written so that a NaN fails
    if not parity.ratio <= ROUNDING_FACTOR:
        raise ProgramError(
            f"after {parity.steps} steps a tensor of the program's is {parity.ratio:.0f} times as far from torch's as "
            f"rounding takes it; expected at most {ROUNDING_FACTOR:.0f} times (the largest difference is "
            f"{parity.difference:.1e}, of rounding {parity.rounding:.1e})"
        )
    if not parity.serving <= MAX_LOGIT_DELTA:
        raise ProgramError(
            f"the program's model answers with logits that are {parity.serving:.1e} from torch's; expected at most "
            f"{MAX_LOGIT_DELTA:.0e}"
        )
    primary, task = federation.setup.task.primary_metric, federation.setup.task
    ours, theirs = parity.scores[primary], parity.torch_scores[primary]
    if not abs(ours - theirs) <= task.max_score_loss:
        raise ProgramError(
            f"after {parity.steps} steps the program's {primary} is {ours:.4f}, and torch's {theirs:.4f}"
        )
    return parity


def differences(first: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Return the largest absolute difference of each of the arrays, which have the same names."""
    if set(first) != set(other):
        raise ProgramError(f"names differ: {sorted(set(first) ^ set(other))[:4]}")
    return {name: float(np.abs(first[name].astype(np.float64) - other[name]).max(initial=0)) for name in first}


def outcome_arrays(result: LocalRound) -> Arrays:
    """Return what torch's round leaves, by a program's paths."""
    return as_arrays({"client": result.client, "upload": result.upload})


def as_arrays(tree: Any) -> Arrays:
    """Return a tree's tensors as arrays by their paths."""
    return {name: value.detach().numpy() for name, value in flatten(as_dicts(tree)).items()}


def _device_examples(examples: Examples) -> DeviceExamples:
    return DeviceExamples(examples.x.numpy(), examples.y.numpy())


def write_program_file(plan: Path, out: Path, examples: Path | None) -> Table:
    """Export a plan's program, hold a round of it against torch's, and write it.

    Raises:
        GaitwayError: if the plan is not one that a program can be made of, or the gate is not passed.
    """
    federation = federation_of(read_plan(plan))
    begun = time.monotonic()
    data = export_program(federation)
    seconds = time.monotonic() - begun
    program = TrainingProgram.load(data)
    batch = federation.setup.training.batch_size
    given = generated_examples(federation, batch + batch // 2 + 1) if examples is None else _read(examples, federation)
    parity = check_round(federation, program, given)
    write_file(out, data)
    return _table(out, program, parity, seconds)


def _read(path: Path, federation: Federation) -> Examples:
    expected = f"an .npz with x (n, {', '.join(map(str, federation.x))}) and y (n,)"
    try:
        with np.load(path, allow_pickle=False) as file:
            x, y = np.asarray(file["x"], np.float32), np.asarray(file["y"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise ProgramError(f"{path}: {error}; expected {expected}") from None
    if x.shape[1:] != federation.x or y.shape != x.shape[:1]:
        raise ProgramError(f"{path}: x {x.shape}, y {y.shape}; expected {expected}")
    return Examples(torch.from_numpy(x), torch.from_numpy(y))


def _table(out: Path, program: TrainingProgram, parity: RoundParity, seconds: float) -> Table:
    table = Table(title=f"{out}: {out.stat().st_size / 1e3:.0f} kB, exported in {seconds:.1f} s", show_header=False)
    for name, entry in program.manifest.graphs.items():
        table.add_row(name, f"{entry.nodes:,} nodes" if entry.file else "computes nothing")
    table.add_row(
        f"after {parity.steps} steps",
        f"|Δ| {parity.difference:.1e} from torch; of rounding alone {parity.rounding:.1e}; "
        f"of any tensor at most {parity.ratio:.1f} times",
    )
    for name, score in parity.scores.items():
        table.add_row(name, f"{score:.4f}; torch {parity.torch_scores[name]:.4f}")
    return table
