"""Compiled training steps: the numbers of the plain ones, a program for each shape, and no run that fails with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from federation.method import trains
from federation.methods import METHODS
from federation.plan import TrainingConfig
from federation.records import Examples, Tensors
from federation.records.tree import flatten
from federation.training.forward import initial_client, initial_model, network
from federation.training.local_round import LocalRound, Setup
from models import build
from sim.engines import ClientJob, Engine, Processes, Stacked
from sim.engines.compiled import Compiler
from tests.sim.small_runs import needs_fork

pytestmark = pytest.mark.ci

CLIENTS = 5


DENSE = {"input_shape": [7], "hidden": [6, 8]}


def jobs(method: str, model: str = "dense", **options: Any) -> list[ClientJob]:
    """Clients with 4, 7, 10, 13 and 16 examples, so that the last batch is ragged and some wait for others."""
    module = initial_model(lambda: build(model, classes=3, **(options or DENSE)), 0)
    training = TrainingConfig(
        classes=3, feature_dim=module.feature_dim, batch_size=6, epochs=1, optimizer="sgd", lr=0.05
    )
    setup = Setup(METHODS[method](), training, network(module))
    initial = setup.method.init_client_state(initial_client(module), training)
    state = setup.method.server_init(initial.params, initial.buffers, training)
    made = torch.Generator().manual_seed(1)

    def examples(count: int) -> Examples:
        x = torch.randn(count, *module.input_shape, generator=made)
        return Examples(x, torch.randint(3, (count,), generator=made))

    return [
        ClientJob(f"client-{k}", setup, initial, setup.method.broadcast(state, f"client-{k}"), examples(4 + 3 * k))
        for k in range(CLIENTS)
    ]


def numbers(result: LocalRound) -> Tensors:
    return flatten({"client": result.client._asdict(), "upload": result.upload, "loss": result.loss})


def assert_same(engine: Engine, work: list[ClientJob], rounds: int = 1) -> None:
    """The engine's numbers are those of one without a compiler."""
    for number in range(1, rounds + 1):
        found, wanted = dict(engine.run(work, number)), dict(Stacked(2).run(work, number))
        for name, result in wanted.items():
            mine, theirs = numbers(found[name]), numbers(result)
            assert mine.keys() == theirs.keys()
            for path, value in theirs.items():
                torch.testing.assert_close(mine[path], value, rtol=1e-4, atol=1e-5)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """What would be compiled: each graph runs as it was recorded."""
    seen: list[nn.Module] = []

    def keep(graph: nn.Module, **_options: Any) -> nn.Module:
        seen.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", keep)
    return seen


@pytest.mark.parametrize(
    "method", [name for name, kind in METHODS.items() if trains(kind(), TrainingConfig(classes=3))]
)
def test_a_recorded_step_gives_the_plain_steps_numbers(method: str, graphs: list[nn.Module]) -> None:
    said: list[str] = []
    small = {"channels": [8, 8], "feature_dim": 16, "hidden": 8, "prototypes": [5]}
    work = jobs(method, "har_cnn_alp", **small) if METHODS[method].traits.requires_alp else jobs(method)
    assert_same(Stacked(3, compiled=True, say=said.append), work[:3])
    assert graphs
    assert not said


def test_one_program_for_each_phase_and_size_of_chunk(graphs: list[nn.Module]) -> None:
    engine, work = Stacked(2, compiled=True), jobs("fedrep")
    assert_same(engine, work[:3], rounds=2)
    assert len(graphs) == 2 * 2  # head and base train in turn; a chunk of two clients, and one of one


@needs_fork
@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_forks_run_what_their_parent_compiled(method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled_by, ran_in = list[int](), tmp_path / "ran-in"

    def keep(graph: nn.Module, **_options: Any) -> Callable[..., Any]:
        def run(*tensors: Tensor) -> Any:
            with ran_in.open("a") as file:
                file.write(f"{os.getpid()}\n")
            return graph(*tensors)

        compiled_by.append(os.getpid())
        (tmp_path / f"compiled-by-{os.getpid()}").touch()
        return run

    monkeypatch.setattr(torch, "compile", keep)
    engine = Processes(2, 2, compiled=True)
    assert_same(engine, jobs(method)[:4], rounds=2)
    assert len(compiled_by) == (2 if method == "fedrep" else 1)  # head and base train in turn
    assert [path.name for path in tmp_path.glob("compiled-by-*")] == [f"compiled-by-{os.getpid()}"]
    forks = set(ran_in.read_text().split()) - {str(os.getpid())}
    assert len(forks) >= 2


@needs_fork
def test_that_nothing_is_compiled_for_large_steps_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.engines.processes.SMALL_STEP", 1)
    said: list[str] = []
    assert_same(Processes(2, None, compiled=True, say=said.append), jobs("fedavg")[:2])
    assert said == ["Clients train one by one because their steps are large: --compile has nothing to compile."]


def test_steps_of_the_same_shapes_are_told_apart_by_their_key(graphs: list[nn.Module]) -> None:
    compiler, x = Compiler(), torch.ones(2)
    assert torch.equal(compiler.compiled("once", lambda x: x)(x), x)
    assert torch.equal(compiler.compiled("twice", lambda x: 2 * x)(x), 2 * x)
    assert len(graphs) == 2


def test_beyond_the_limit_steps_run_as_they_are(graphs: list[nn.Module]) -> None:
    said: list[str] = []
    engine, work = Stacked(2, compiled=True, say=said.append), jobs("fedavg")
    engine.compiler = Compiler(report=said.append, max_programs=1)
    assert_same(engine, work, rounds=2)
    assert len(graphs) == 1
    assert len(said) == 1
    assert "1 programs are compiled, which is the limit" in said[0]


def test_a_compiler_that_fails_is_told_once_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_graph: nn.Module, **_options: Any) -> nn.Module:
        raise RuntimeError("no kernel for this\nand a long trace")

    monkeypatch.setattr(torch, "compile", refuse)
    said: list[str] = []
    assert_same(Stacked(2, compiled=True, say=said.append), jobs("fedavg"), rounds=2)
    assert said == ["torch.compile failed, so steps run as they are: RuntimeError: no kernel for this"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_without_a_compiler_for_c_the_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor import config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # what is compiled already needs no compiler
    said: list[str] = []
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}):
        assert_same(Stacked(2, compiled=True, say=said.append), jobs("fedavg"))
    assert len(said) == 1
    assert "compiler" in said[0].lower()


def test_running_out_of_memory_is_no_failure_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_graph: nn.Module, **_options: Any) -> nn.Module:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", full)
    said: list[str] = []
    with pytest.raises(torch.OutOfMemoryError):
        Compiler(report=said.append).compiled("key", torch.sin)(torch.zeros(2))
    assert not said


def test_a_tensor_that_is_expanded_needs_no_program_of_its_own(graphs: list[nn.Module]) -> None:
    def step(tree: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"twice": 2 * tree["x"]}

    fast = Compiler().compiled("key", step)
    assert torch.equal(fast({"x": torch.ones(1).expand(3)})["twice"], torch.full((3,), 2.0))
    assert torch.equal(fast({"x": torch.arange(3.0)})["twice"], 2 * torch.arange(3.0))
    assert len(graphs) == 1


def test_a_dimension_of_one_needs_no_program_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have any stride, as a 1×1 kernel's gradient has; torch.compile compiles for each."""
    strides: list[tuple[int, ...]] = []

    def keep(graph: nn.Module, **_options: Any) -> Callable[..., Any]:
        def run(tensor: Tensor) -> Any:
            strides.append(tensor.stride())
            return graph(tensor)

        return run

    monkeypatch.setattr(torch, "compile", keep)
    fast, x = Compiler().compiled("key", torch.neg), torch.arange(6.0).view(1, 2, 3, 1)
    odd = x.as_strided(x.shape, (0, 3, 1, 7))
    for given in (x, odd, x.contiguous(memory_format=torch.channels_last)):
        assert torch.equal(fast(given), -x)
    assert odd.is_contiguous()
    assert set(strides) == {x.stride()}


def test_a_tensor_that_comes_twice_is_not_taken_for_one(graphs: list[nn.Module]) -> None:
    def step(params: Tensor, anchor: Tensor) -> Tensor:
        return 3 * params - anchor

    fast = Compiler().compiled("key", step)
    same = torch.ones(2)
    assert torch.equal(fast(same, same), 2 * same)
    assert torch.equal(fast(2 * same, same), 5 * same)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what its compiler imports
def test_a_compiled_step_gives_the_plain_steps_numbers() -> None:
    said: list[str] = []
    engine = Stacked(5, compiled=True, say=said.append)
    assert_same(engine, jobs("fedavg"), rounds=2)
    assert not said
    assert engine.compiler
    assert len(engine.compiler.programs) == 1
