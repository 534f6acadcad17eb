"""Where a training process computes: a GPU that is not there, one that fails on the way, and what is said of either."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
import torch

from edge_agent.doctor import machine
from edge_agent.doctor.check_result import Level
from edge_agent.supervisor.persistence import manifest_of
from edge_agent.training import entrypoint, limits, trainer
from edge_agent.training.job import CLIENT_STATE, RESULT, UPDATE, Job
from edge_agent.training.limits import ON_CPU, Placement, place
from edge_agent.training.program_runtime import open_program
from federation.records.tree import flatten
from federation.wire.schema import schema_of
from tests.edge_agent.factories import INSTANCE, PLANS, make_plan
from tests.edge_agent.reference import a_job
from tests.edge_agent.training.test_program_runtime import DITTO, read
from tests.one_device import GPU, OneDevice

MB = 1 << 20


@pytest.fixture(autouse=True)
def caps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the kernel would be asked for; this process itself gets no cap."""
    found: list[int] = []
    monkeypatch.setattr(limits, "cap_memory", found.append)
    monkeypatch.setattr(entrypoint, "cap_memory", found.append)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return found


@pytest.fixture
def orin(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A torch with CUDA and a board of 8 GB, and what is set on it."""
    found: dict[str, Any] = {}
    board = SimpleNamespace(name="Orin", total_memory=8192 * MB)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: board)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: found.update(share=share))
    monkeypatch.setattr(torch, "zeros", lambda *size, device: found.update(begun=device))
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on, warn_only: found.update(deterministic=on))
    return found


@pytest.mark.ci
@pytest.mark.parametrize("name", [pytest.param("fedavg", marks=pytest.mark.ci), "fedali"])
def test_a_round_lies_on_the_gpu_and_what_it_leaves_in_the_cpus_memory(name: str, device: Path) -> None:
    job = a_job(device, PLANS[name])
    trainer.train(trainer.build_context(job))
    expected = [schema_of(read(job, file)) for file in (UPDATE, CLIENT_STATE)]
    for path in job.checkpoints.iterdir():
        path.unlink()
    with OneDevice() as watched:
        context = trainer.build_context(job, Placement(GPU, "on a GPU"))  # type: ignore[arg-type]
        trainer.train(context)
        trainer.train(context)  # resumes after the last epoch
        answers = context.answers(context.personal_model(context.retrain(context.data)), context.data)
    assert watched.computed > 500
    assert answers.shape == (len(context.data.holdout),)
    assert [schema_of(read(job, file)) for file in (UPDATE, CLIENT_STATE)] == expected
    result = json.loads((job.out / RESULT).read_bytes())
    assert (result["processor"], result["placement"]) == (GPU, "on a GPU")


def test_torch_has_its_share_of_the_gpu_and_no_cap_of_its_address_space(
    orin: dict[str, Any], caps: list[int], monkeypatch: pytest.MonkeyPatch, device: Path
) -> None:
    job = a_job(device, make_plan()).model_copy(update={"processor": "cuda", "memory_mb": 1024, "nice": 0})
    entrypoint.limit_resources(job)
    found = place("torch", "cuda", 1024)
    assert found == Placement("cuda", f"on Orin, by torch {torch.__version__} with CUDA 12.6")
    assert orin == {"share": 0.125, "begun": "cuda", "deterministic": True}
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert caps == []
    monkeypatch.setattr(torch, "zeros", _raise(RuntimeError("CUDA driver error: initialization error\nCompile with")))
    said = place("torch", "cuda", 1024)
    assert said.describe() == (
        "on the CPU: CUDA can't be initialized: CUDA driver error: initialization error; install a build with CUDA "
        '(docs/devices.md), or set [training] device = "cpu"'
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds no usable GPU" in place("torch", "cuda", 512).words
    assert caps == [1024, 512]


def test_without_a_gpu_the_cap_is_set_at_once_and_nothing_is_looked_for(
    caps: list[int], monkeypatch: pytest.MonkeyPatch, device: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "GPU_FILES", (str(tmp_path / "nvidiactl"),))
    job = a_job(device, make_plan()).model_copy(update={"processor": "auto", "nice": 0})
    entrypoint.limit_resources(job)
    assert caps == [job.memory_mb]
    assert place("torch", "auto", 0) == ON_CPU
    (tmp_path / "nvidiactl").touch()
    entrypoint.limit_resources(job)
    assert caps == [job.memory_mb]
    if torch.version.cuda is None:
        assert "has no CUDA" in place("torch", "auto", 0).words
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        assert "has no CUDA provider" in place("onnx", "auto", 0).words


@pytest.mark.parametrize("words", ["CUDA out of memory. Tried to allocate 2.00 GiB", "CUBLAS_STATUS_ALLOC_FAILED"])
def test_a_gpu_that_fails_on_the_way_leaves_the_round_to_the_cpu(
    words: str, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, done = a_job(device, make_plan()), list[Placement]()

    def run(job: Job, placement: Placement) -> None:
        done.append(placement)
        if placement.processor == "cuda":
            raise RuntimeError(words)

    monkeypatch.setattr(trainer, "place", lambda *asked: Placement("cuda", "on Orin"))
    monkeypatch.setattr(trainer, "run", run)
    trainer.run_or_fall_back(job)
    assert [each.processor for each in done] == ["cuda", "cpu"]
    assert done[1].words == f"on the CPU: the GPU failed: {words}"


def test_onnx_runtime_is_asked_for_cuda_and_its_silence_is_noticed(
    device: Path, monkeypatch: pytest.MonkeyPatch, caps: list[int]
) -> None:
    asked: list[Any] = []
    real = onnxruntime.InferenceSession

    def session(graph: bytes, options: Any, providers: Any) -> Any:
        asked.append((providers, options.use_deterministic_compute))
        return real(graph, options, providers=["CPUExecutionProvider"])  # as where the libraries of CUDA are missing

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    job = a_job(device, DITTO, runtime="onnx").model_copy(update={"memory_mb": 1024})
    context = trainer.build_context(job, Placement("cuda", "on the GPU"))
    (cuda, options), cpu = asked[0][0]
    assert (cuda, cpu, asked[0][1]) == ("CUDAExecutionProvider", "CPUExecutionProvider", True)
    assert (options["gpu_mem_limit"], options["use_tf32"]) == (str(1024 * MB), "0")
    assert context.placement.words.startswith("on the CPU: ONNX Runtime's CUDA provider does not load")
    assert caps == [1024]
    monkeypatch.setattr(real, "get_providers", lambda self: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    asked.clear()
    context = trainer.build_context(job, Placement("cuda", "on the GPU"))
    trainer.train(context)
    assert all(providers[0][0] == "CUDAExecutionProvider" for providers, _ in asked)
    result = json.loads((job.out / RESULT).read_bytes())
    assert manifest_of(job, result, job.out / UPDATE, INSTANCE).processor == "cuda"
    asked.clear()
    open_program(job).run("initial", {})
    assert asked in ([], [(["CPUExecutionProvider"], False)])


def test_the_doctor_says_on_what_it_would_train(orin: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps(["torch 2.13", *fallback_of("torch has no CUDA")])
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0, stdout=said))
    found = machine.training_process("torch", "cuda")
    assert found.level is Level.WARNING
    assert "torch 2.13; on the CPU: torch has no CUDA" in found.message
    assert 'set [training] device = "cpu"' in found.advice


def fallback_of(reason: str) -> tuple[str, ...]:
    return limits.fallback(reason, 0)[1:]


def _raise(error: Exception) -> Any:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_a_round_on_a_gpu_is_the_cpus_up_to_rounding_and_itself_to_the_bit(runtime: Any, device: Path) -> None:
    if runtime == "onnx" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("needs onnxruntime-gpu, which has the CUDA provider")
    job = a_job(device, DITTO, runtime=runtime)
    trainer.train(trainer.build_context(job))
    expected = flatten(read(job, UPDATE))
    found = []
    for _ in range(2):
        for path in job.checkpoints.iterdir():
            path.unlink()
        context = trainer.build_context(job, place(runtime, "cuda", 1024))
        assert context.placement.processor == "cuda", context.placement.describe()
        trainer.train(context)
        found.append(flatten(read(job, UPDATE)))
    for name, value in expected.items():
        assert torch.equal(found[0][name], found[1][name]), name
        torch.testing.assert_close(found[0][name], value, rtol=1e-3, atol=1e-4, msg=name)
