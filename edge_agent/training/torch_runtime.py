"""Training with torch: `federation.training.client_round`, the same code as in the simulation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edge_agent.errors import JobError, NonRetryableJobError, UnusableModelError
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.images import Preparation
from edge_agent.training.job import Job, is_out_of_memory
from edge_agent.training.limits import ON_CPU, Placement, RoundBudget, is_of_gpu
from edge_agent.training.local_data import LocalData, noun
from edge_agent.training.runtime import (
    Orientation,
    SentUpload,
    TrainedRound,
    TrainingRuntime,
    blaming_model,
    require_whole_broadcast,
)
from edge_agent.training.torch_files import (
    EpochCheckpoints,
    export_candidates,
    export_heads,
    save_candidate,
    save_heads,
)
from federation import wire
from federation.aggregation.averaging import midway
from federation.aggregation.ridge_numpy import FixedSums, check_believable
from federation.method import SumMethod, sum_method_of, trains
from federation.methods import method_from_json
from federation.methods.fedavg import FedAvg
from federation.records import Client, Examples, Tree, Update
from federation.records.head import with_placeholder_head
from federation.records.tree import map_tree
from federation.rounds.gains import Gains
from federation.rounds.server_round import keeps_partial_work
from federation.secure_sums.summation import encoded, layout_of
from federation.tasks import task_from_json
from federation.tasks.task import arrays
from federation.training.client_round import steps_of, train_one
from federation.training.forward import Network, initial_client, initial_model, network
from federation.training.local_round import LocalRound, Setup, TrainingCallback
from federation.training.prediction import answer, measure, predict, task_mismatch
from federation.training.window_changes import ChannelScale, lacks_gyroscope
from federation.wire import uploads
from federation.wire.schema import check_tree, schema_of, size_limit, upload_schema
from har_pipeline import ClientWindows
from models import build
from models.errors import ModelError
from models.har_features import gravity_columns, mean_gravity
from models.mae import with_decoder

EVALUATION_BATCH = 256
"""The simulation's default: ALP looks at the whole batch, so scores compare only at equal sizes."""


class TorchRuntime(TrainingRuntime):
    """Trains with torch, on the GPU where there is one: what is kept, sent and exported lies in the CPU's memory."""

    def __init__(
        self, job: Job, settings: Preparation, data: LocalData, placement: Placement, module: nn.Module, setup: Setup
    ) -> None:
        super().__init__(job, settings, data, placement)
        self.module, self.setup = module, setup
        self.refusal = f"the method {setup.method.name} trains in rounds, and makes no heads of sums"
        self.initial = setup.method.init_client_state(initial_client(module), setup.training)
        self.broadcast = _broadcast(job, setup, self.initial)
        if (sums := sum_method_of(setup.method)) and lacks_gyroscope(data.train.x):
            self.broadcast = dict(sums.without_sensor(self.initial, self.broadcast))

    @classmethod
    def open(cls, job: Job, settings: Preparation, data: LocalData, placement: Placement = ON_CPU) -> TorchRuntime:
        """Read the broadcast, and build the model as the server did.

        Raises:
            JobError: if the broadcast is not the announced one.
            FederationError: if the broadcast does not fit the plan.
        """
        torch.set_num_threads(job.threads)
        plan, spec, method = job.plan, job.network, method_from_json(job.plan.method)
        task = task_from_json(plan.task)

        def make() -> nn.Module:
            return with_decoder(build(spec.name, classes=len(plan.labels), **spec.options), task.decoder)

        module = initial_model(make, plan.training.seed)
        net, rounds = _network(module, placement), plan.rounds.rounds
        setup = Setup(method, plan.training, net, task, rounds=rounds, has_secret_noise=True)
        if (statistics := data.statistics) is not None and data.channel_axis == -1:
            setup = replace(setup, channels=ChannelScale.of(statistics.mean, statistics.std))
        opened = cls(job, settings, data, placement, module, setup)
        opened._check_input()
        return opened

    @property
    def has_global_model(self) -> bool:
        """Whether the server has one model for all."""
        return self.setup.method.has_global_model

    @property
    def trains(self) -> bool:
        """Whether a client takes steps at all."""
        return trains(self.setup.method, self.setup.training)

    @property
    def keeps_partial_work(self) -> bool:
        """Whether an update is used whose client had no time for all steps."""
        return keeps_partial_work(self.job.plan.rounds, self.setup.method)

    def load_client(self) -> tuple[Client, Tree]:
        """Return the client as its last round left it, or the initial one, and what its last upload lost.

        Raises:
            JobError: if the kept state is of another model.
        """
        path, initial = self.job.client_state, self.initial
        if path is None:
            return initial, {}
        tree = wire.decode(path.read_bytes(), limit_bytes=path.stat().st_size)
        if set(tree) == {"memory"}:  # of a round without torch: sums alone, of which the rest is made again
            tree = {**initial._asdict(), "memory": {**initial.memory, **tree["memory"]}}
        client = Client(*(tree.get(name, {}) for name in Client._fields))  # the wire leaves out an empty group
        kept, residual = uploads.split_residual(client)
        for name, group, expected in zip(Client._fields, kept, initial, strict=True):
            if schema_of(group) != schema_of(expected):
                raise JobError(f"the kept client state has other {name} than the plan asks for; delete the data folder")
        return kept, residual

    def received(self, client: Client) -> Client:
        """Lay the broadcast over a client."""
        return self.setup.method.receive(client, self.broadcast)[0]

    def statistics(self, client: Client) -> Mapping[str, np.ndarray]:
        """Measure a client on the holdout, in the simulation's batches."""
        examples = self._examples(self.data, self.data.holdout)
        return arrays(measure(self.setup, self._there(client), examples, EVALUATION_BATCH))

    def train(self, client: Client, budget: RoundBudget) -> TrainedRound:
        """Run the round, a checkpoint an epoch, until it is done or the budget says stop.

        Raises:
            UpdateError: if training left NaN or infinity.
        """
        setup, examples = self.setup, self._examples(self.data, self.data.train)
        result = self._round(client, examples, EpochCheckpoints(budget, self.initial, self.placement.processor))
        check_tree(result.upload, upload_schema(setup.method, setup.training, self.initial))
        return TrainedRound(result.client, result.upload, float(result.loss), steps_of(setup, len(examples.y)))

    def class_counts(self) -> list[int] | None:
        """Count the training examples of each class."""
        return self.setup.task.class_counts(torch.from_numpy(self.data.train.targets), len(self.job.plan.labels))

    def sent(self, trained: TrainedRound, residual: Tree) -> SentUpload:
        """Write what travels, as the job's precision and compression have it, and what is kept."""
        sent = uploads.encode(
            trained.upload,
            self.setup.method.delta_reference(self.broadcast),
            residual,
            precision=self.job.precision,
            compression=self.job.compression,
        )
        kept = uploads.with_residual(trained.client, sent.residual)
        return SentUpload(sent.data, wire.encode(dict(kept._asdict())))

    def write_summand(self, trained: TrainedRound, steps: int, path: Path, gains: Gains) -> dict[str, Any]:
        """Write the update, and what the device reports of its models, as the method's whole numbers."""
        setup, secure = self.setup, self.job.plan.secure
        update = Update(self.job.device, len(self.data.train.y), steps, trained.upload)
        layout = layout_of(setup.method, setup.training, self.initial, secure)
        numbers = encoded(setup.method, layout, update, self.broadcast, secure, gains)
        write_file(path, numbers.astype("<i8").tobytes())
        return {"bound": layout.bound, "layout": layout.digest.hex()}

    def is_trained(self) -> bool:
        """Whether the broadcast serves with other parameters than the network that the federation began with.

        What serves is compared: where a method freezes the network and shares class means, these alone have learnt.
        """
        method = self.setup.method
        first = method.serving_model(self.initial).params
        now = method.serving_model(method.global_model(self.initial, self.broadcast)).params
        return any(not torch.equal(value, first[name]) for name, value in now.items())

    def shared_model(self, client: Client) -> Client:
        """Return the network that the server's model serves with, for this client; only where there is one."""
        method = self.setup.method
        return method.serving_model(method.global_model(client, self.broadcast))

    def personal_model(self, client: Client) -> Client:
        """Return the network that a client serves with."""
        return self.setup.method.serving_model(client)

    def midway_model(self, first: Client, second: Client) -> Client:
        """Return the network with weights midway between two; what is no number with a fraction is the second's."""
        return midway(first, second)

    def answers(self, served: Client, data: LocalData) -> np.ndarray:
        """Return a network's answers (n, ...) to the holdout."""
        itself = replace(self.setup, method=FedAvg())  # what serves needs no method to answer
        return predict(itself, self._there(served), self._examples(data, data.holdout).x, EVALUATION_BATCH)

    def retrain(self, fold: LocalData) -> Client:
        """Train the round again, from its beginning, on a fold's training windows, and return the client."""
        # a client that has taken part in nothing: what the method keeps has seen the fold
        return self._round(self.initial, self._examples(fold, fold.train)).client

    def save(self, served: Client, folder: Path, round_number: int) -> None:
        """Write the checkpoint of a network into a folder; the round made it."""
        save_candidate(self.job, self.input_spec, self.module, served, folder, round_number)

    def export(self, checkpoints: Mapping[Path, Path]) -> None:
        """Write checkpoint, ONNX model and parity report into each folder, from the checkpoint that it stands for."""
        export_candidates(self.job, self.data, checkpoints)

    def _examples(self, data: LocalData, part: ClientWindows) -> Examples:
        examples = Examples(torch.from_numpy(data.normalized(part)), torch.from_numpy(part.targets))
        return Examples(*map(self._there, examples))

    def _round(self, client: Client, examples: Examples, callback: TrainingCallback | None = None) -> LocalRound:
        """Run the job's round from a client, and return what it leaves in the CPU's memory."""
        result = train_one(
            self.setup,
            self._there(client),
            self._there(self.broadcast),
            examples,
            client_id=self.job.device,
            round_number=self.job.round,
            callback=callback,
        )
        left: LocalRound = map_tree(Tensor.cpu, result)
        return left

    def _there(self, tree: Any) -> Any:
        """Lay tensors into the memory of what computes."""
        where = self.placement.processor
        return tree if where == "cpu" else map_tree(lambda value: value.to(where), tree)

    def _check_input(self) -> None:
        """Let the network take one example before anything is trained.

        Raises:
            NonRetryableJobError: if it takes none of this shape, or does not answer what the task asks for.
        """
        data, model = self.data, self.job.network.name
        example = data.train.select(np.arange(1))
        shape = tuple(example.x.shape[1:])
        try:
            mismatch = task_mismatch(self.setup, self._there(self.initial), self._examples(data, example))
        except (RuntimeError, ValueError, ModelError) as error:
            if is_out_of_memory(error) or is_of_gpu(error):
                raise
            words = f"{model} takes no {noun(self.settings)} of shape {shape}: {error}"
            raise NonRetryableJobError(words) from error
        if mismatch:
            raise NonRetryableJobError(mismatch)

    @property
    def _sum_method(self) -> SumMethod:
        if (method := sum_method_of(self.setup.method)) is None:
            raise self.refused
        return method

    def refreshed_client(self) -> Client:
        """Return the client that is kept, with the newest sums of everybody."""
        return self._sum_method.refresh(self.received(self.load_client()[0]), self.broadcast)

    def heads(self, client: Client) -> Mapping[str, Client]:
        """Have the method make a network for each head."""
        return self._sum_method.serving_models(client)

    def orientation(self) -> Orientation:
        """Measure how far gravity on all windows lies from that in the shared sums."""
        return orientation_of(self.module, self.data, self.broadcast["sums"])

    def adapted_head(self, client: Client, *, is_far: bool) -> Client | None:
        """Have the method adapt the shared head to the features of the device's windows."""
        x = self._examples(self.data, self.data.train).x
        parts = [answer(self.setup, self._there(client), part).features for part in torch.split(x, EVALUATION_BATCH)]
        return self._sum_method.adapted_model(client, self.broadcast, torch.cat(parts), is_far=is_far)

    def save_heads(self, heads: Mapping[str, Client], version: int) -> None:
        """Write a checkpoint for each head, and export them all from the network that the federation began with."""
        first, began = copy.deepcopy(self.module), self._sum_method.serving_model(self.initial)
        first.load_state_dict({**with_placeholder_head(began.params), **began.buffers})
        save_heads(self.job, self.input_spec, self.module, heads, version)
        export_heads(self.job, self.data, first)


def orientation_of(module: nn.Module, data: LocalData, shared: Tree) -> Orientation:
    """Measure how far gravity on all windows (n, window, 6) of a device lies from that in the shared sums."""
    columns, x = gravity_columns(module), data.train.x
    gravity = mean_gravity(module, torch.from_numpy(x)).numpy()[None] if columns and len(x) else np.empty((0, 0))
    return Orientation.of(FixedSums.of(shared), columns, gravity)


def _network(module: nn.Module, placement: Placement) -> Network:
    if placement.processor == "cpu":
        return network(module)
    return network(copy.deepcopy(module).to(placement.processor))  # the other one is what is exported


def _broadcast(job: Job, setup: Setup, initial: Client) -> Tree:
    require_whole_broadcast(job)
    method = setup.method
    reference = method.broadcast(method.server_init(initial.params, initial.buffers, setup.training), job.device)
    schema = schema_of(reference)
    with blaming_model():
        tree = wire.decode(job.broadcast.read_bytes(), limit_bytes=size_limit(schema))
        check_tree(tree, schema)
    if job.continuous:
        sums = tree["sums"]
        fixed = FixedSums.of(sums)
        if reason := check_believable(fixed, int(sums["clients"])):
            raise UnusableModelError(reason)
    return tree
