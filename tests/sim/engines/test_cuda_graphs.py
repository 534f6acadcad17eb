"""Steps that are recorded as CUDA graphs: which are, what is said of those that cannot be, and on a GPU the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from federation.methods import METHODS
from federation.records import Examples
from federation.records.tree import flatten, map_tree
from federation.training.forward import compute_reproducibly
from gaitway.errors import ExitCode
from sim.cli.app import app
from sim.engines import ClientJob, Stacked
from sim.engines.compiled import CudaGraphs
from tests.federation.federated import SIZES, federation


class Recorder(CudaGraphs):
    """Records nothing, but says what was to be recorded."""

    def __init__(self, error: Exception | None = None, **limits: int) -> None:
        super().__init__(report=lambda said: self.said.append(said), **limits)
        self.said: list[str] = []
        self.error = error

    def _recorded(self, step: Any, tensors: list[Tensor], layout: Any) -> Any:
        if self.error:
            raise self.error
        return lambda given: ("replayed", step(*given))


def test_the_second_step_of_a_kind_is_recorded_and_other_shapes_are_other_kinds() -> None:
    graphs = Recorder()
    step, two, three = graphs.compiled("net", torch.neg), torch.ones(2), torch.ones(3)
    results = [step(each) for each in (two, three, two, two, three)]
    assert [type(each) is tuple for each in results] == [False, False, True, True, True]
    assert len(graphs.graphs) == 2
    assert not graphs.said
    assert type(graphs.compiled("another net", torch.abs)(two)) is Tensor


def test_a_step_that_cannot_be_recorded_runs_as_it_is_and_is_said_once() -> None:
    graphs = Recorder(RuntimeError("operation not permitted when stream is capturing\nadvice"))
    step, x = graphs.compiled("net", torch.neg), torch.ones(2)
    assert all(torch.equal(step(x), -x) for _ in range(4))
    assert graphs.said == [
        "a step cannot be recorded as a CUDA graph, so steps run as they are: "
        "RuntimeError: operation not permitted when stream is capturing"
    ]


def test_memory_that_runs_out_is_the_engines_matter() -> None:
    graphs = Recorder(torch.OutOfMemoryError("no more"))
    step = graphs.compiled("net", torch.neg)
    step(torch.ones(2))
    with pytest.raises(torch.OutOfMemoryError):
        step(torch.ones(2))


def test_no_more_graphs_than_the_limit() -> None:
    graphs = Recorder(max_graphs=1)
    step = graphs.compiled("net", torch.neg)
    for size in (2, 2, 3, 3, 3):
        step(torch.ones(size))
    assert len(graphs.graphs) == 1
    assert len(graphs.said) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_run_for_a_gpu_that_is_not_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    words = ["run", "--data", "synthetic", "--rounds", "1", "--device", "cuda", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, words)
    said = " ".join(result.output.split())
    assert result.exit_code == ExitCode.REFUSED
    assert "finds no GPU that it can use" in said
    assert "leave --device out" in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["fedavg", "fedali", "scaffold", "fedpac"])
def test_replayed_steps_are_the_steps_to_the_bit_and_the_cpus_up_to_rounding(method: str) -> None:
    compute_reproducibly()
    said: list[str] = []
    replaying, plain = Stacked(None, "cuda", say=said.append), Stacked(8, "cuda")
    plain.compiler = None
    found, expected, on_cpu = (
        numbers(engine, method, device)
        for engine, device in ((replaying, "cuda"), (plain, "cuda"), (Stacked(8), "cpu"))
    )
    assert not said
    assert replaying.compiler is not None
    assert vars(replaying.compiler)["graphs"]
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
        torch.testing.assert_close(value, on_cpu[name], rtol=1e-3, atol=1e-4)


def numbers(engine: Stacked, method: str, device: str) -> dict[str, Tensor]:
    """Return all numbers that a round of two epochs leaves."""
    fed = federation(METHODS[method](), dropout=0.1, epochs=2, dtype=torch.float32)

    def there(tree: Any) -> Any:
        return map_tree(lambda value: value.to(device), tree)

    jobs = [
        ClientJob(
            name, fed.setup, there(fed.initial), there(fed.setup.method.broadcast(fed.state, name)),
            Examples(*map(there, fed.examples[name])),
        )
        for name in SIZES
    ]  # fmt: skip
    results = {name: {"client": each.client._asdict(), "upload": each.upload} for name, each in engine.run(jobs, 2)}
    return {name: value.cpu() for name, value in flatten(results).items()}
