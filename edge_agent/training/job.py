"""The training process from the supervisor's side: a job file in, JSON lines and files out; it may die at any time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from edge_agent.config.settings import Config
from edge_agent.config.training import TrainingDevice, resolve_runtime
from edge_agent.errors import JobError
from edge_agent.machine.commands import StartJob
from edge_agent.machine.events import Kind
from edge_agent.machine.state import incompatibility, network_of
from edge_agent.storage.data_folder import CANDIDATES, CHECKPOINTS, JOBS, write_file
from edge_agent.training.local_data import preparation
from federation.plan import ModelSpec, Name, Plan
from federation.protocol.messages import BlobPointer, Compression, Precision, Runtime
from gaitway.files import UMASK, private_file, private_folder
from gaitway.threads import ThreadFailure, run_in_thread

UPDATE, CLIENT_STATE, RESULT = "update.bin", "client.bin", "result.json"
CHECKPOINT, MODEL, PARITY = "candidate.safetensors", "model.onnx", "parity.json"
CROSS_VALIDATION = "cross_validation.json"
HEADS, ORIENTATION = "heads", "orientation.json"
"""Folder in a continuous federation's job folder with a folder for each head to choose among; how the device lies."""
UNTRAINED = "the federation's model is still the initial, untrained one"
KEY_BYTES = 8
WINDOW_KEYS = "windows.bin"
"""Numbers of the windows that a continuous federation's sums are of, eight bytes each."""
GLOBAL = "global"
"""Folder in a round's folder: the files of the global model that it began from."""
MIDWAY = "midway"
"""Folder beside it: weights midway between that model and the trained one."""
ENTRYPOINT = "edge_agent.training.entrypoint"
LOG_BYTES = 4000
OUT_OF_MEMORY = (
    *("bad_alloc", "can't allocate memory", "Cannot allocate memory", "MemoryError"),
    # while torch is imported: a library that does not fit, a MemoryError that got lost on the way
    *("failed to map segment", "cannot allocate memory for thread-local data"),
    # ONNX Runtime
    *("bad allocation", "Failed to allocate memory"),
    *("returned NULL without setting an exception", "with an exception set", "error return without exception set"),
)


def memory_cap_error(memory_mb: int) -> str:
    """Say that the training process wanted more memory than it may have."""
    return f"the round needs more memory than the cap of {memory_mb} MB; raise [training] memory_mb, or 0 for no cap"


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that there was not enough memory."""
    # torch raises a RuntimeError where its allocator gets no memory
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in OUT_OF_MEMORY)


class Job(BaseModel):
    """Everything that the training process is told; paths are absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    federation: Name
    device: Name
    round: int
    plan: Plan
    network: ModelSpec
    store: Path
    client: str
    pipeline: dict[str, Any]
    broadcast: Path
    model: BlobPointer  # that broadcast, as it was announced
    chunk_bytes: int
    client_state: Path | None
    onnx_network: Path | None = None  # an export of the network as the federation began with it
    candidate: Path | None = None  # export: the checkpoint that an earlier round left
    out: Path
    checkpoints: Path  # folder of the epochs' checkpoints
    threads: int
    processor: TrainingDevice = "cpu"  # what is wanted; what is used, is found in the process
    nice: int
    memory_mb: int  # 0: no cap
    round_s: float
    precision: Precision
    compression: Compression
    continuous: bool = False  # the federation
    runtime: Runtime = "torch"
    program: Path | None = None  # the federation's, for a runtime without torch
    sum_request: str = ""  # of the round's secure sum; empty: the update is sent as such
    plugins: tuple[str, ...] = ()  # packages whose entries the process may import


def make_job(config: Config, command: StartJob, broadcast: Path, client_state: str, fetched: Path | None = None) -> Job:
    """Describe a command's work; `client_state` is relative to the data folder, or empty before the first round.

    `fetched` is the ONNX file that the command names: the federation's program, or its network.

    Raises:
        JobError: if the plan does not offer the network that this device runs.
        PipelineError: if the plan's pipeline settings are impossible.
    """
    folder, training = config.agent.data_dir.resolve(), config.training
    network, runtime = network_of(command.plan, config.agent.model), resolve_runtime(training.runtime)
    by_program = runtime == "onnx" and not command.continuous
    if network is None:
        raise JobError(incompatibility(command.plan, config.agent.model))
    return Job(
        kind=command.kind,
        federation=config.agent.federation,
        device=config.agent.device,
        round=command.round,
        plan=command.plan,
        network=network,
        chunk_bytes=command.chunk_bytes,
        store=folder,
        client=config.sensor_client,
        pipeline=preparation(config.sensors, command.plan).to_json(),
        broadcast=broadcast.resolve(),
        model=command.model,
        client_state=folder / client_state if client_state else None,
        onnx_network=None if by_program else fetched and fetched.resolve(),
        program=fetched and fetched.resolve() if by_program else None,
        runtime=runtime,
        candidate=candidate_path(folder, command.round) if command.kind == "export" else None,
        out=job_folder(folder, command.round, command.kind),
        checkpoints=folder / CHECKPOINTS,
        threads=training.threads,
        # sums of features take seconds, and are to be the same on whatever the device computes
        processor="cpu" if command.continuous else training.device,
        nice=training.nice,
        memory_mb=training.memory_mb,
        round_s=training.max_round_s,
        # sums are exact, and whole numbers
        precision="lossless" if command.continuous or command.sum_request else config.uploads.precision,
        compression="none" if command.sum_request else config.uploads.compression,
        continuous=command.continuous,
        sum_request=command.sum_request,
        plugins=config.agent.plugins,
    )


def job_folder(folder: Path, round_number: int, kind: Kind) -> Path:
    """Return where a job's files lie, below the data folder."""
    return folder / JOBS / f"r{round_number}-{kind}"


def candidate_path(folder: Path, round_number: int) -> Path:
    """Return where a trained round's checkpoint lies until it is exported and judged, below the data folder."""
    return folder / CANDIDATES / f"r{round_number}.safetensors"


def midway_path(candidate: Path) -> Path:
    """Return where the checkpoint midway between a trained round's model and the shared one lies."""
    return candidate.with_name(f"{candidate.stem}-{MIDWAY}{candidate.suffix}")


def validation_path(checkpoint: Path) -> Path:
    """Return where the answers of cross-validation lie that belong to a checkpoint in `models/`."""
    return checkpoint.with_suffix(".json")


@dataclass(frozen=True)
class JobLine:
    """The process said something: {"event": …}."""

    job: Job
    record: dict[str, Any]


@dataclass(frozen=True)
class JobEnded:
    """The process is gone; `reason` is empty if it did its work."""

    job: Job
    reason: str
    final: bool = False
    """Whether another run would end in the same way."""
    is_unusable: bool = False
    """Whether the server's model is to blame."""


class TrainingProcess:
    """One run of `python -m edge_agent.training.entrypoint`; `post` is called from a watching thread."""

    def __init__(
        self, job: Job, timeout_s: float, post: Callable[[JobLine | JobEnded], None], program: str = ENTRYPOINT
    ) -> None:
        self.job, self.timeout_s, self.post = job, timeout_s, post
        shutil.rmtree(job.out.parent, ignore_errors=True)  # an earlier job's leavings too
        private_folder(job.out)
        path = job.out / "job.json"
        write_file(path, job.model_dump_json().encode())
        private_file(job.out / "errors.txt")
        self._errors = (job.out / "errors.txt").open("wb")
        self._stopped = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, str(path)],
            # never written to: the process ends when this end closes, however the supervisor dies
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            umask=UMASK,
        )
        self._deadline = time.monotonic() + timeout_s
        self._thread = run_in_thread("training", self._watch, self._watching_failed)

    def stop(self, timeout_s: float = 0.5) -> None:
        """End the process; nothing more is posted about it."""
        self._stopped = True
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(timeout_s)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def overdue(self) -> bool:
        """Whether it has run for longer than it may."""
        return time.monotonic() > self._deadline

    def _watch(self) -> None:
        try:
            ended = self._follow()
        finally:
            self._errors.close()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe:
                    pipe.close()
        if not self._stopped:
            self.post(ended)

    def _follow(self) -> JobEnded:
        """Post what the process says until it has ended."""
        reason, final, is_unusable = "", False, False
        for line in self._process.stdout or ():
            record = _record(line)
            if record.get("event") == "error":
                reason, final = str(record.get("reason", "it failed")), record.get("final") is True
                is_unusable = record.get("unusable") is True
            elif record and not self._stopped:
                self.post(JobLine(self.job, record))
        return replace(self._ended(self._process.wait(), reason, final), is_unusable=is_unusable)

    def _watching_failed(self, failure: ThreadFailure) -> None:
        self._process.kill()
        self._process.wait()
        if not self._stopped:
            self.post(JobEnded(self.job, f"its training process could not be followed: {failure.error}"))

    def _ended(self, code: int, reason: str, final: bool) -> JobEnded:
        if code == 0 or reason:
            return JobEnded(self.job, reason if code else "", final)
        errors = (self.job.out / "errors.txt").read_bytes()[-LOG_BYTES:].decode(errors="replace").strip()
        # C++ code that gets no memory ends the process before Python could say so; the last line may be another's
        if self.job.memory_mb > 0 and any(sign in errors for sign in OUT_OF_MEMORY):
            return JobEnded(self.job, memory_cap_error(self.job.memory_mb), True)
        if code < 0:
            return JobEnded(self.job, f"the training process was killed by signal {-code}", False)
        last = errors.splitlines()[-1] if errors else "no output"
        return JobEnded(self.job, f"the training process ended with code {code}: {last}", False)


class JobRunner:
    """The one training process that a device runs at a time; `program` is the module that is run.

    Only the supervisor's thread starts and stops it; `pid` may be asked from any thread.
    """

    def __init__(self, timeout_s: float, post: Callable[[JobLine | JobEnded], None], program: str = ENTRYPOINT) -> None:
        self.timeout_s, self.post, self.program = timeout_s, post, program
        self._process: TrainingProcess | None = None

    @property
    def pid(self) -> int | None:
        """The process's id, while there is one."""
        process = self._process  # read once: another thread asks
        return process.pid if process else None

    @property
    def overdue(self) -> Job | None:
        """The job that has run for longer than it may."""
        return self._process.job if self._process and self._process.overdue else None

    def is_current(self, job: Job) -> bool:
        """Whether what was posted is about the job that runs, and not about one that was stopped."""
        return self._process is not None and self._process.job is job

    def start(self, job: Job) -> None:
        """Run a job; the one before has ended or was stopped."""
        self._process = TrainingProcess(job, self.timeout_s, self.post, self.program)

    def ended(self) -> None:
        """Note that the process is gone."""
        self._process = None

    def stop(self, timeout_s: float) -> None:
        """End the process, if there is one; nothing more is posted about it."""
        if self._process:
            self._process.stop(timeout_s)
        self._process = None


def _record(line: bytes) -> dict[str, Any]:
    """Read a JSON line; a library's own output is not one, and is passed over."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
