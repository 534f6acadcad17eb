"""The server's and the simulation's half of a round, made by their own functions, and jobs over it."""

from __future__ import annotations

import functools
import queue
from pathlib import Path
from typing import Any

import torch

from edge_agent.machine.commands import StartJob
from edge_agent.machine.events import Kind
from edge_agent.storage.data_folder import write_file
from edge_agent.training.job import Job, JobEnded, JobLine, TrainingProcess, make_job
from export.program.exporter import export_program, federation_of
from federation import wire
from federation.methods import method_from_json
from federation.plan import Plan
from federation.protocol.messages import Runtime
from federation.records import Client, Examples, Tree
from federation.records.tree import flatten
from federation.training.client_round import train_one
from federation.training.forward import initial_client, initial_model, network
from federation.training.local_round import Setup
from har_pipeline import ChannelStatistics, ClientWindows, dataset_settings, split_client
from models import build
from tests.edge_agent.factories import DEVICE, make_config, pointer


class Federation:
    """The server's and the simulation's half, made by their own functions."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.method = plan, method_from_json(plan.method)
        spec = plan.model
        self.module = initial_model(lambda: build(spec.name, classes=6, **spec.options), plan.training.seed)
        self.initial = initial_client(self.module)
        self.joined = self.method.init_client_state(self.initial, plan.training)
        self.setup = Setup(self.method, plan.training, network(self.module))
        self.state = self.method.server_init(self.initial.params, self.initial.buffers, plan.training)
        self.broadcast: Tree = self.method.broadcast(self.state, "")

    def round(self, client: Client, windows: ClientWindows, number: int, max_steps: int | None = None) -> Any:
        split = split_client(windows, "temporal", test_share=0.2, settings=dataset_settings("synthetic"))
        mine = windows.select(split.train)
        raw = self.plan.data.normalization == "none"
        x = torch.from_numpy(mine.x if raw else ChannelStatistics.of(mine.x).normalize(mine.x))
        examples = Examples(x, torch.from_numpy(mine.y))
        names: dict[str, Any] = {"client_id": DEVICE, "round_number": number, "max_steps": max_steps}
        return train_one(self.setup, client, self.broadcast, examples, **names)


def a_job(
    folder: Path,
    plan: Plan,
    kind: Kind = "train",
    round_number: int = 1,
    state: str = "",
    broadcast: Tree | None = None,
    *,
    continuous: bool = False,
    runtime: Runtime = "torch",
) -> Job:
    """A job over a broadcast, or over the initial one; without torch with the plan's program."""
    data = wire.encode(Federation(plan).broadcast if broadcast is None else broadcast)
    blob = folder / "blobs" / wire.digest(data)
    write_file(blob, data)
    model = pointer().model_copy(update={"sha256": wire.digest(data), "size": len(data)})
    command = StartJob(kind, round_number, model, plan, 4096, continuous)
    program = program_of(folder, plan) if runtime == "onnx" else None
    job = make_job(make_config(folder, nice=0, runtime=runtime), command, blob, state, program)
    job.out.mkdir(parents=True, exist_ok=True)
    return job


@functools.cache
def exported(plan: str) -> bytes:
    """A plan's program, made once."""
    return export_program(federation_of(Plan.model_validate_json(plan)))


def program_of(folder: Path, plan: Plan) -> Path:
    """A file with a plan's program, called by its digest as a device keeps it."""
    data = exported(plan.model_dump_json())
    path = folder / "networks" / wire.digest(data)
    write_file(path, data)
    return path


def assert_close(left: Tree, right: Tree, tolerance: float) -> None:
    a, b = flatten(left), flatten(right)
    assert a.keys() == b.keys()
    for name, value in a.items():
        if not name.endswith("noise_state"):
            assert torch.allclose(value.double(), b[name].double(), rtol=tolerance, atol=tolerance), name


def assert_same(left: Tree, right: Tree) -> None:
    a, b = flatten(left), flatten(right)
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


def run_process(job: Job, timeout_s: float = 120.0) -> tuple[list[str], JobEnded]:
    posted: queue.SimpleQueue[JobLine | JobEnded] = queue.SimpleQueue()
    process, events = TrainingProcess(job, timeout_s, posted.put), list[str]()
    try:
        while isinstance(item := posted.get(timeout=timeout_s), JobLine):
            events.append(item.record["event"])
    finally:
        process.stop(0.0)  # also one that never ends
    return events, item
