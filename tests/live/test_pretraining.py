"""Live: a federation without labels, then one with labels that starts from its model; both as simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import select

from aggregator_api.core.errors import NotFoundError, UnprocessableError
from aggregator_api.federations import exports
from aggregator_api.federations.service import NewFederation, VersionReference
from aggregator_api.rounds.announcements import announcement
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import EventRow
from edge_agent.machine.commands import StartJob
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.window_store import WindowStore
from edge_agent.training import trainer
from edge_agent.training.job import CLIENT_STATE, make_job
from edge_agent.training.local_data import local_data, pipeline_settings, stored_examples
from federation import wire
from federation.plan import ModelSpec, Plan
from federation.records import Examples
from har_pipeline import ChannelStatistics
from models.checkpoint import load_checkpoint
from sim.data.federated_data import ClientData, FederatedData
from sim.experiment.initialization import initialization
from sim.experiment.settings import Experiment
from sim.run import build_simulation, resolve, run
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import FEDERATION
from tests.live.in_memory import Device
from tests.live.test_every_method import played
from tests.live.walks import DEVICES, assert_same, data_options, experiment_for, plan_of

MINUTES = 1.0
TASK = {"name": "masked_reconstruction", "decoder_kernels": [3], "decoder_mlp": 16, "decoder_heads": 2}
HART: dict[str, Any] = {"feature_dim": 16, "blocks": 1, "heads": 2, "mlp": 16, "head_width": 16}


def experiment(method: str, task: dict[str, Any]) -> Experiment:
    """Describe a federation of a small HART."""
    model = ModelSpec(name="hart", options=HART)
    if method == "fedali":
        model = ModelSpec(name="hart_alp", options={**HART, "prototypes": [8]})
    return experiment_for(method, minutes=MINUTES).model_copy(update={"model": model, "task": task})


def held_by(devices: Sequence[Device], plan: Plan) -> FederatedData:
    """What the devices have collected for a plan, as a simulation's data."""
    clients = {}
    for device in devices:
        store, settings = WindowStore(device.folder), pipeline_settings(device.config.sensors, plan.data)
        own = local_data(stored_examples(store, device.config.sensor_client, settings, plan), plan.data, settings)
        store.close()
        arrays = ((own.normalized(part), part.y) for part in (own.train, own.holdout))
        clients[device.name] = ClientData(*(Examples(*map(torch.from_numpy, pair)) for pair in arrays))
    statistics = ChannelStatistics.of(clients[DEVICES[0]].train.x.numpy())
    return FederatedData(plan.labels, clients, dict.fromkeys(clients, statistics), False)


def first_state(server: Bench, name: str) -> dict[str, Any]:
    with server.runtime.database.read() as session:
        row = repositories.find_federation(session, name)
        assert row is not None
        sha256 = repositories.current_version(session, row).state_sha256
    data = server.runtime.blobs.read(sha256)
    return wire.decode(data, limit_bytes=len(data))


def trained(server: Bench, name: str, device: Device) -> dict[str, Any]:
    """Let a device train for another federation's first round; return the client that it keeps."""
    with server.runtime.database.read() as session:
        row = repositories.find_federation(session, name)
        assert row is not None
        announced = announcement(session, row, chunk_bytes=1024)
    assert announced.model is not None
    blob = device.folder / "blobs" / announced.model.sha256
    write_file(blob, server.runtime.blobs.read(announced.model.sha256))
    job = make_job(device.config, StartJob("train", 1, announced.model, announced.plan, 1024), blob, "")
    job.out.mkdir(parents=True, exist_ok=True)
    trainer.train(trainer.build_context(job))
    data = (job.out / CLIENT_STATE).read_bytes()
    return wire.decode(data, limit_bytes=len(data))


def assert_taken_away(server: Bench, plan: Plan, folder: Path) -> None:
    """The operator's file is the encoder as a simulation leaves it, and no classifier."""
    with server.runtime.database.read() as session:
        row = repositories.find_federation(session, FEDERATION)
        assert row is not None
        sha256 = repositories.current_version(session, row).broadcast_sha256
    made = exports.checkpoint(plan, FEDERATION, 1, server.runtime.blobs.read(sha256), {"mse": 0.5})
    (folder / "taken.safetensors").write_bytes(made)
    (taken, info), (own, _) = (
        load_checkpoint(path) for path in (folder / "taken.safetensors", folder / "run/models/global.safetensors")
    )
    assert info.fresh_head
    assert_same(dict(taken.state_dict()), dict(own.state_dict()), "the encoder with its fresh head")
    with pytest.raises(UnprocessableError, match="its head is untrained"):
        exports.onnx(made)


@pytest.mark.ci
@pytest.mark.parametrize("method", ["fedavg", "fedali"])
def test_a_federation_without_labels_and_one_that_starts_from_it(method: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    masked, labelled = experiment(method, TASK), experiment(method, {"name": "classification"})
    server = Bench(tmp_path / "server", plan_of(masked))
    devices = [Device.named(name, tmp_path / "devices", data_options(MINUTES)) for name in DEVICES]
    uploads = played(server, devices)
    assert {upload.class_counts for upload in uploads} == {None}
    assert all(upload.metrics["mse_after"] < upload.metrics["mse_before"] for upload in uploads)

    data = held_by(devices, plan_of(masked))
    assert {upload.client: upload.examples for upload in uploads} == data.train_sizes
    simulation = build_simulation(resolve(masked), data)
    for _record in simulation.run_rounds():
        pass
    assert_same(wire.decode(server.state(), limit_bytes=1 << 24), simulation.state, "the server's state")

    federations = server.runtime.federations
    start = VersionReference(federation=FEDERATION)
    federations.create(NewFederation(name="labelled", plan=plan_of(labelled), start_from=start))
    run(masked, tmp_path / "run", data=data)
    few = held_by(devices, plan_of(labelled))
    assert_taken_away(server, plan_of(masked), tmp_path)
    after = build_simulation(resolve(labelled.model_copy(update={"init": initialization(tmp_path / "run")})), few)
    assert_same(first_state(server, "labelled"), after.state, "what the second federation starts from")
    with pytest.raises(AssertionError):
        assert_same(after.state, build_simulation(resolve(labelled), few).state, "drawn weights")
    next(after.run_rounds())
    for device in devices:
        assert_same(trained(server, "labelled", device), after.clients[device.name]._asdict(), device.name)
    with server.runtime.database.read() as session:
        details = session.scalars(select(EventRow.detail).where(EventRow.kind == "federation.created")).all()
    assert [detail for detail in details if "started from version 2 of" in detail]
    server.runtime.stop()


def test_what_it_cannot_start_from_is_refused_in_words(tmp_path: Path) -> None:
    server = Bench(tmp_path, plan_of(experiment_for("fedavg", minutes=MINUTES)))
    hart = experiment("fedavg", {"name": "classification"})

    def create(settings: Experiment, **version: Any) -> None:
        start = VersionReference(**{"federation": FEDERATION, **version})
        server.runtime.federations.create(NewFederation(name="next", plan=plan_of(settings), start_from=start))

    with pytest.raises(UnprocessableError, match=r"version 0 of '.*' does not fit: its .* start from"):
        create(hart)
    with pytest.raises(NotFoundError, match="no model version 7"):
        create(hart, version=7)
    with pytest.raises(NotFoundError, match="there is no federation 'other'"):
        create(hart, federation="other")
    with pytest.raises(UnprocessableError, match="local sends devices no parameters"):
        create(experiment_for("local", minutes=MINUTES))
    create(experiment_for("fedavg", minutes=MINUTES))
    server.runtime.stop()
