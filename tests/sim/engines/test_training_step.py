"""Every network's training step is torch.optim's on the same module, with every optimizer and on every engine.

The gradients are the network's own, for what is wrong with them shows nowhere else: a convolution's come with other
strides than its parameters have, an attention's are slices of one product's. Ray's cases are in `test_ray`.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from models import MODELS
from sim.engines import Engine, Processes, Serial, Stacked
from tests.sim.engines.local_rounds import OPTIMIZERS, gaps, three_steps, too_far
from tests.sim.small_runs import needs_fork

LARGE = ("resnet18", "mobilenet_v2", "deeplab_v3plus", "vit_tiny", "vit_tiny_alp", "hart_alp")
"""Left to CI, for their size."""
COMPILED_IN_CI = {("har_cnn", "adam")}
"""A program takes half a minute to compile, an attention a whole one."""


ENGINES = (Serial(), Processes(2), Stacked(2))


def where_it_runs(engine: Engine, model: str, dtype: torch.dtype) -> list[pytest.MarkDecorator]:
    """Leave to CI what is large or rounds coarsely, to hand what is both; processes compute what one process does."""
    if isinstance(engine, Processes):
        return [needs_fork, pytest.mark.ci if (model, dtype) == ("har_cnn", torch.float32) else pytest.mark.slow]
    if model in LARGE:
        exact = dtype == torch.float64 and (isinstance(engine, Stacked) or model.endswith("alp"))
        return [pytest.mark.ci if exact else pytest.mark.slow]
    return [pytest.mark.ci] if dtype == torch.float32 else []


@pytest.mark.parametrize(
    ("engine", "model", "dtype"),
    [
        pytest.param(*each, marks=where_it_runs(*each), id=f"{type(each[0]).__name__}-{each[1]}-{each[2]}")
        for each in itertools.product(ENGINES, MODELS, (torch.float64, torch.float32))
    ],
)
def test_a_step_is_torchs(engine: Engine, model: str, dtype: torch.dtype) -> None:
    found = gaps(engine, [three_steps(model, optimizer, dtype) for optimizer in OPTIMIZERS])
    print(model, found)
    assert not too_far(found, model, reordered=isinstance(engine, Stacked))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what its compiler imports
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        pytest.param(
            model, optimizer, marks=pytest.mark.ci if (model, optimizer) in COMPILED_IN_CI else pytest.mark.slow
        )
        for model, optimizer in itertools.product(MODELS, OPTIMIZERS)
    ],
)
def test_a_compiled_step_is_torchs(model: str, optimizer: str) -> None:
    said: list[str] = []
    engine = Stacked(2, compiled=True, say=said.append)
    found = gaps(engine, [three_steps(model, optimizer, torch.float32)])
    print(model, found)
    assert not too_far(found, model, reordered=True)
    assert not said, "it was not compiled, so the comparison says nothing"


def test_the_bounds_see_another_step() -> None:
    """What is asked of a step is no bound that anything keeps: Adam's is not SGD's."""
    adam, sgd = (three_steps("har_cnn", name, torch.float64) for name in ("adam", "sgd"))
    swapped = adam._replace(training=sgd.training, clients=adam.clients)
    results = dict(Serial().run(swapped.jobs(), 1))
    assert too_far({adam.label: adam.gap(results)}, "har_cnn", reordered=False)
