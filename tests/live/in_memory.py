"""Devices in the test's own process: the agent's code from the invitation to the outbox, with the server at hand.

Nothing of a device stays in memory between two rounds: each opens its data folder as an agent does after a crash.
"""

from __future__ import annotations

import queue
from pathlib import Path
from typing import NamedTuple

from edge_agent.config.settings import (
    AgentSection,
    Config,
    SensorsSection,
    ServerSection,
    TrainingSection,
    UploadsSection,
)
from edge_agent.machine.commands import StartJob
from edge_agent.machine.events import DataReady, Event
from edge_agent.sensors import open_source
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import forget_update, load_agent, save_round
from edge_agent.training import trainer
from edge_agent.training.job import CHECKPOINT, make_job
from federation import wire
from federation.plan import Plan
from federation.protocol.messages import Precision, UpdateManifest
from federation.records import Tensors, Tree
from models.checkpoint import load_checkpoint
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import FEDERATION, Parcel


class Device(NamedTuple):
    """One device: its config, and so its data folder."""

    config: Config

    @classmethod
    def named(
        cls,
        name: str,
        folder: Path,
        options: dict[str, object],
        model: str | None = None,
        precision: Precision = "lossless",
    ) -> Device:
        """Describe a device whose recordings are generated."""
        agent = AgentSection(device=name, federation=FEDERATION, data_dir=folder / name, model=model)
        sensors, server = SensorsSection(options=options), ServerSection(url="http://127.0.0.1:9")
        trainer, uploads = TrainingSection(nice=0), UploadsSection(precision=precision)
        return cls(Config(agent=agent, server=server, sensors=sensors, training=trainer, uploads=uploads))

    @property
    def name(self) -> str:
        """The device's id."""
        return self.config.agent.device

    @property
    def folder(self) -> Path:
        """Its data folder."""
        return self.config.agent.data_dir

    def collect(self, plan: Plan) -> int:
        """Run the sensor source; return the number of examples to train on."""
        posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
        replay = open_source(self.config, posted.put)
        replay.start(plan)
        event = posted.get(timeout=60)
        replay.stop(5.0)
        assert isinstance(event, DataReady), event
        return event.examples

    def take_part(self, server: Bench) -> UpdateManifest:
        """Train for the round that the device is invited to, and upload until the server has accepted."""
        store = StateStore(self.folder)
        store.put(identity=f"{server.now().instance}/plan")  # manifests name the instance
        load_agent(store)
        save_round(store, self.train(server, store))
        ((update_id, path),) = store.outbox().items()
        manifest = store.manifest(update_id)
        answer = server.upload(Parcel(manifest, path.read_bytes(), {}))
        assert answer.status == "accepted", answer
        forget_update(store, update_id, "accepted", "")
        store.close()
        return manifest

    def train(self, server: Bench, store: StateStore) -> trainer.Job:
        """Run the round's job as the training process would, and return it."""
        invitation, announced = server.wires.invitations(self.name)[-1], server.now()
        assert (invitation.round, invitation.instance) == (announced.round, announced.instance)
        blob = self.folder / "blobs" / invitation.model.sha256
        write_file(blob, server.runtime.blobs.read(invitation.model.sha256))
        asked = invitation.sum.body if invitation.sum else ""
        command = StartJob(
            "train", invitation.round, invitation.model, announced.plan, announced.chunk_bytes, sum_request=asked
        )
        job = make_job(self.config, command, blob, store.get("client_state"))
        job.out.mkdir(parents=True)
        trainer.train(trainer.build_context(job))
        return job

    def final_model(self, server: Bench) -> Tensors:
        """Lay the server's last model over the client, as the training process does in the end, and return it."""
        model, announced = server.now().model, server.now()
        assert model is not None
        blob = self.folder / "blobs" / model.sha256
        write_file(blob, server.runtime.blobs.read(model.sha256))
        store = StateStore(self.folder)
        command = StartJob("adopt", announced.round, model, announced.plan, announced.chunk_bytes)
        job = make_job(self.config, command, blob, store.get("client_state"))
        store.close()
        job.out.mkdir(parents=True)
        trainer.run(job)
        return load_checkpoint(job.out / CHECKPOINT)[0].state_dict()

    def kept(self) -> Tree:
        """Read the client that its last round left."""
        store = StateStore(self.folder)
        data = (self.folder / store.get("client_state")).read_bytes()
        store.close()
        return wire.decode(data, limit_bytes=len(data))
