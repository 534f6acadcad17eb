"""Training without torch: runs the federation's program with ONNX Runtime (`export.program.host`).

Order, seeds, rates, stops and checkpoints are those of a device with torch; the numbers are equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edge_agent.errors import JobError, NonRetryableJobError
from edge_agent.storage.data_folder import sha256_of, write_file
from edge_agent.storage.images import Preparation
from edge_agent.training.job import Job
from edge_agent.training.limits import ON_CPU, Placement, RoundBudget, fallback
from edge_agent.training.local_data import LocalData, noun
from edge_agent.training.program_candidate import export_candidate, save_candidate, served_logits
from edge_agent.training.runtime import (
    SentUpload,
    TrainedRound,
    TrainingRuntime,
    blaming_model,
    require_whole_broadcast,
)
from export.program.host import (
    DeviceExamples,
    ProgramRound,
    RoundIdentity,
    global_model,
    measure,
    receive,
    served_by,
    train,
)
from export.program.manifest import Manifest, digest_of
from export.program.runtime import Arrays, TrainingProgram
from export.runtime import ProgramError
from federation.errors import UpdateError, WireError
from federation.protocol import arrays
from federation.protocol.wire_format import HEADER_BYTES
from federation.training.window_changes import ChannelScale

SECURE_SUMS = (
    "the federation adds updates up by secure sums (secure.mode), in which a device takes part with torch so far: "
    "install gaitway[edge], or leave this federation to other devices"
)
OWED = "memory/residual/"
"""Where a client that is kept has what its last upload lost, as with torch (`federation.wire.uploads`)."""
BROADCAST, CLIENT, UPLOAD, REFERENCE = "broadcast/", "client/", "upload/", "reference/"


class ProgramRuntime(TrainingRuntime):
    """Trains by the federation's program; secure sums, and sums of a continuous federation, it refuses."""

    refusal = SECURE_SUMS

    def __init__(
        self,
        job: Job,
        settings: Preparation,
        data: LocalData,
        placement: Placement,
        program: TrainingProgram,
        broadcast: Arrays,
    ) -> None:
        super().__init__(job, settings, data, placement)
        self.program, self.broadcast = program, broadcast

    @classmethod
    def open(cls, job: Job, settings: Preparation, data: LocalData, placement: Placement = ON_CPU) -> ProgramRuntime:
        """Check the program and the broadcast against the plan.

        Raises:
            JobError: if there is no program, or one of the files is not the announced one.
            NonRetryableJobError: if the program is not of this plan, or needs more memory than the process may have.
            ProgramError: if it is not a program that may be run.
            UnusableModelError: if the broadcast is none.
        """
        if job.plan.secure.is_on:
            raise NonRetryableJobError(SECURE_SUMS)
        program = open_program(job, placement)
        if placement.processor == "cuda" and not program.runs_on_gpu():
            reason = "ONNX Runtime's CUDA provider does not load: its libraries of CUDA or cuDNN are missing or others"
            placement = fallback(reason, job.memory_mb)
            program = open_program(job)
        takes, shape = program.manifest.x.shape[1:], data.train.x.shape[1:]
        if takes != shape:
            raise NonRetryableJobError(f"the program takes {noun(settings)} of shape {takes}, and these are {shape}")
        return cls(job, settings, data, placement, program, _broadcast(job, program.manifest))

    @property
    def has_global_model(self) -> bool:
        """Whether the server has one model for all."""
        return self.program.manifest.has_global_model

    @property
    def trains(self) -> bool:
        """Whether a client takes steps at all."""
        return bool(self.program.manifest.phases)

    @property
    def keeps_partial_work(self) -> bool:
        """Whether an update is used whose client had no time for all steps."""
        return self.job.plan.rounds.keeps_partial_work(self.program.manifest.uses_partial_work)

    @property
    def _identity(self) -> RoundIdentity:
        return RoundIdentity(self.job.device, self.job.round)

    def load_client(self) -> tuple[Arrays, Arrays]:
        """Return the client as its last round left it, or the initial one, and what its last upload lost.

        Raises:
            JobError: if the kept state is of another model.
        """
        if self.job.client_state is None:
            return {}, {}
        kept = arrays.read_kept(self.job.client_state.read_bytes())
        residual = {name.removeprefix(OWED): value for name, value in kept.items() if name.startswith(OWED)}
        client = {CLIENT + name: value for name, value in kept.items() if not name.startswith(OWED)}
        expected = {name: (kind.dtype, kind.shape) for name, kind in self.program.manifest.client.items()}
        if {name: (value.dtype.name, value.shape) for name, value in client.items()} != expected:
            raise JobError("the stored client state doesn't match the plan; delete the data folder")
        return client, residual

    def received(self, client: Arrays) -> Arrays:
        """Lay the broadcast over a client."""
        return receive(self.program, client, self.broadcast, self._identity)

    def statistics(self, client: Arrays) -> Mapping[str, np.ndarray]:
        """Let the program compare a client's answers to the holdout."""
        return measure(self.program, client, self._examples(self.data, holdout=True))

    def train(self, client: Arrays, budget: RoundBudget) -> TrainedRound:
        """Run the round, a checkpoint an epoch, until it is done or the budget says stop.

        Raises:
            UpdateError: if training left NaN or infinity.
        """
        saved = _resumed(budget)
        try:
            begun = self._begin(client, self.data, saved)
        except ProgramError:
            if saved is None:
                raise
            budget.resumed(0, 0.0)  # of another network: as good as none
            begun = self._begin(client, self.data)
        steps_due, epoch = begun.steps_asked, begun.epoch

        def should_stop(now: ProgramRound) -> bool:
            nonlocal epoch
            if now.epoch > epoch:
                epoch = now.epoch
                _keep(budget, now)
            return budget.should_stop(now.steps)

        try:
            found = train(begun, should_stop)
            if begun.epoch > epoch:
                _keep(budget, begun)
        except ProgramError as error:
            if "NaN" in str(error):
                raise UpdateError(str(error)) from error
            raise
        return TrainedRound(found.client, found.upload, found.loss, steps_due)

    def sent(self, trained: TrainedRound, residual: Arrays) -> SentUpload:
        """Write what travels, as the job's precision and compression have it, and what is kept."""
        manifest = self.program.manifest
        start = {name.removeprefix(REFERENCE): value for name, value in self._reference().items()}
        upload = {name.removeprefix(UPLOAD): trained.upload[name] for name in manifest.upload}
        found = arrays.encode_upload(
            upload, start, residual, precision=self.job.precision, compression=self.job.compression
        )
        kept = {name.removeprefix(CLIENT): value for name, value in trained.client.items()}
        kept |= {OWED + name: value for name, value in found.residual.items()}
        return SentUpload(found.data, arrays.encode(kept))

    def _reference(self) -> Arrays:
        """Return where those tensors of an upload began whose change is sent; only int8 asks for them."""
        return self.program.run("reference", self.broadcast) if self.job.precision == "int8" else {}

    def is_trained(self) -> bool:
        """Whether the broadcast serves with other parameters than the network that the federation began with."""
        untrained = self.program.manifest.untrained_sha256
        return untrained is None or digest_of(global_model(self.program, {}, self.broadcast)) != untrained

    def shared_model(self, client: Arrays) -> Arrays:
        """Return the network that the server's model serves with, for this client; only where there is one."""
        return global_model(self.program, client, self.broadcast)

    def personal_model(self, client: Arrays) -> Arrays:
        """Return the network that a client serves with."""
        return served_by(self.program, client)

    def midway_model(self, first: Arrays, second: Arrays) -> Arrays:
        """Return the network with weights midway between two; what is no number with a fraction is the second's."""
        return {name: (first[name] + end) / 2 if end.dtype.kind == "f" else end for name, end in second.items()}

    def answers(self, served: Arrays, data: LocalData) -> np.ndarray:
        """Return a network's answers (n, ...) to the holdout."""
        spec = self.settings.input_spec(data.mean, data.std)
        return self.task.answers(served_logits(self.program, served, spec, data.holdout.x))

    def retrain(self, fold: LocalData) -> Arrays:
        """Train the round again, from its beginning, on a fold's training windows, and return the client."""
        return train(self._begin({}, fold)).client

    def save(self, served: Arrays, folder: Path, round_number: int) -> None:
        """Write the checkpoint of a network into a folder; the round made it."""
        save_candidate(self.job, self.input_spec, self.program, served, folder, round_number)

    def export(self, checkpoints: Mapping[Path, Path]) -> None:
        """Write checkpoint, ONNX model and parity report into each folder, from the checkpoint that it stands for."""
        for folder, path in checkpoints.items():
            export_candidate(self.job, self.data, path, folder, self.program)

    def _begin(self, client: Arrays, data: LocalData, saved: Arrays | None = None) -> ProgramRound:
        return ProgramRound(self.program, client, self.broadcast, self._examples(data), self._identity, saved)

    def _examples(self, data: LocalData, *, holdout: bool = False) -> DeviceExamples:
        part, kind, statistics = data.holdout if holdout else data.train, self.program.manifest.y.dtype, data.statistics
        x, y = data.normalized(part).astype(np.float32, copy=False), part.targets.astype(kind, copy=False)
        return DeviceExamples(x, y, None if statistics is None else ChannelScale.of(statistics.mean, statistics.std))


def open_program(job: Job, placement: Placement = ON_CPU) -> TrainingProgram:
    """Read the federation's program, checked against the plan.

    Raises:
        JobError: if there is none, or it is not the announced one.
        NonRetryableJobError: if it is of another plan, or needs more memory than the process may have.
        ProgramError: if it is not a program that may be run.
    """
    if job.program is None or not job.program.is_file():
        raise JobError(
            "there is no program of this federation here, without which a device without torch cannot train: none was "
            "announced, or it could not be fetched"
        )
    if sha256_of(job.program) != job.program.name:
        raise JobError(f"the program in {job.program} is damaged: its sha256 is not the announced one")
    gpu_memory_mb = job.memory_mb if placement.processor == "cuda" else None
    program, plan = TrainingProgram.load(job.program, threads=job.threads, gpu_memory_mb=gpu_memory_mb), job.plan
    # an operator may change how many rounds there are, which a schedule of learning rates ends with
    manifest = program.manifest = program.manifest.model_copy(update={"rounds": plan.rounds.rounds})
    if manifest.model["name"] != job.network.name or manifest.method.get("name") != plan.method.get("name"):
        raise NonRetryableJobError(
            f"the program is for {manifest.model['name']} and {manifest.method.get('name')}; the plan has another "
            "network or method"
        )
    if manifest.training != plan.training or dict(manifest.task).get("name") != dict(plan.task).get("name"):
        raise NonRetryableJobError("the program has other training settings, or another task, than the plan")
    # parameters, moments and gradients at the least: said before the cap ends the process
    least_mb = 3 * sum(kind.nbytes for kind in manifest.client.values()) >> 20
    if job.memory_mb and least_mb > job.memory_mb:
        raise NonRetryableJobError(
            f"the program needs at least {least_mb} MB to train, but the limit is {job.memory_mb} MB; raise [training] "
            "memory_mb, or 0 for no cap"
        )
    return program


def _broadcast(job: Job, manifest: Manifest) -> Arrays:
    require_whole_broadcast(job)
    limit = HEADER_BYTES + sum(kind.nbytes for kind in manifest.broadcast.values())
    with blaming_model():
        found = arrays.decode(job.broadcast.read_bytes(), limit_bytes=limit)
        for name, value in found.items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise UpdateError(f"tensor {name!r} contains NaN or infinity")
    return {BROADCAST + name: value for name, value in found.items()}


def _resumed(budget: RoundBudget) -> Arrays | None:
    """Read the checkpoint of an earlier run; a damaged one is as good as none."""
    budget.forget_others()
    try:
        saved = arrays.read_kept(budget.path.read_bytes())
        epoch, seconds = int(saved["progress/epoch"]), float(saved.pop("seconds"))
    except (OSError, WireError, KeyError, TypeError, ValueError):
        return None
    budget.resumed(epoch, seconds)
    return saved


def _keep(budget: RoundBudget, now: ProgramRound) -> None:
    write_file(budget.path, arrays.encode(now.saved | {"seconds": np.array(budget.used_s)}))
    budget.epoch_ended(now.epoch)
